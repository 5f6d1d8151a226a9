"""The body of a request: read within limits, and parsed as JSON."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import msgspec

from app.http_errors import HttpError

BODY_ITEMS = 100_000
"""Commas and opening brackets in a body: the event loop stands still while a parser builds what they part."""

BODY_DEPTH = 100
"""Objects and lists within each other."""

ITEM_MARKS = (b",", b"[", b"{")


@dataclass
class Room:
    """Bytes that all bodies in hand may have together."""

    free_bytes: int

    def take(self, size: int) -> None:
        """Raises HttpError 429 when it is not there."""
        if size > self.free_bytes:
            raise HttpError(429, "too many large requests in hand; try again shortly", retry_after_s=1)
        self.free_bytes -= size


class Body:
    """One body on its way in; what it has taken of the room is given back at the end of ``with``."""

    def __init__(self, room: Room, max_bytes: int, timeout_s: float) -> None:
        self.room = room
        self.max_bytes = max_bytes
        self.timeout_s = timeout_s
        self.size = 0

    def __enter__(self) -> "Body":
        return self

    def __exit__(self, *_: object) -> None:
        self.room.free_bytes += self.size

    async def read(self, stream: AsyncIterator[bytes]) -> bytes:
        """The whole body.

        Raises HttpError: 413 too large, 504 the client is too slow, 429 too much in hand.
        """
        chunks: list[bytes] = []
        items = 0
        try:
            async with asyncio.timeout(self.timeout_s):
                async for chunk in stream:
                    self.room.take(len(chunk))
                    self.size += len(chunk)
                    # Whether there are any is found out ten times faster than how many: base64 has none.
                    items += sum(chunk.count(mark) for mark in ITEM_MARKS if mark in chunk)
                    if self.size > self.max_bytes:
                        raise HttpError(413, f"the body is larger than {self.max_bytes} bytes")
                    if items > BODY_ITEMS:
                        raise HttpError(413, f"the body has more than {BODY_ITEMS} commas and brackets")
                    chunks.append(chunk)
        except TimeoutError:
            raise HttpError(504, f"the body did not come within {self.timeout_s:g} s") from None
        return b"".join(chunks)


def parse_json(body: bytes) -> dict[str, Any]:
    """The object in a body. Raises HttpError 400.

    Strict where Python's own parser is not: no NaN or Infinity, no number that is too large for one, and no
    half of a surrogate pair, which is no text and cannot even be sent back in an error.
    """
    try:
        request = msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise HttpError(400, f"the body is not JSON: {error}") from error
    if not isinstance(request, dict):
        raise HttpError(400, "the body must be a JSON object")
    _check_depth(request)
    return request


def _check_depth(request: dict[str, Any]) -> None:
    """Raise HttpError 400 for what could not be pickled on its way to the decoder."""
    level: list[Any] = [request]
    for _ in range(BODY_DEPTH):
        inner = (child for node in level for child in (node.values() if isinstance(node, dict) else node))
        level = [child for child in inner if isinstance(child, dict | list)]
        if not level:
            return
    raise HttpError(400, f"the request is nested too deeply: more than {BODY_DEPTH} levels")
