"""The edge of the Ingress: bodies that are no JSON, and streams that end before they begin."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.body import BODY_ITEMS, Body, Room, parse_json
from app.chat import Answer
from app.http_errors import HttpError, from_client_error
from app.ingress import EventStream, over
from deployments.errors import ClientError

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**100), 2**100)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(max_size=3), values, max_size=3), st.booleans())
def test_every_json_object_is_read(value: dict[str, Any], escaped: bool) -> None:
    """Whole surrogate pairs, escaped or not, and every other text come through as they are."""
    assert parse_json(json.dumps(value, ensure_ascii=escaped).encode()) == value


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b"null",
        b'{"temperature": NaN}',
        b'{"temperature": -Infinity}',
        b'{"model": "\\ud800"}',
        b'{"\\uDFFF": 1}',
        b'{"messages": [{"content": "a \\ud83d b"}]}',
        b"\xff\xfe",
        b'{"a": "\xff"}',
        b"[" * 100_000,
        b'{"n": ' + b"9" * 5000 + b"}",
        b'{"n": 1e999}',
        b'{"a": ' + b"[" * 100 + b"]" * 100 + b"}",
    ],
    ids=lambda body: repr(body[:24]),
)
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    """Anything else is a 400 whose own body can be sent."""
    with pytest.raises(HttpError) as caught:
        parse_json(body)
    assert caught.value.status == 400
    assert json.loads(caught.value.response().body)["error"]["code"] == 400


async def trickle(pieces: int) -> AsyncIterator[bytes]:
    for _ in range(pieces):
        yield b"12"
    await _never()


async def test_a_body_that_never_ends_is_given_up() -> None:
    """Too large or too slow, it does not hold its place in the Ingress for ever; a whole one is kept."""
    room = Room(12)

    async def read(stream: AsyncIterator[bytes], max_bytes: int, timeout_s: float = 60) -> bytes:
        with Body(room, max_bytes, timeout_s) as body:
            return await body.read(stream)

    async def refused(*args: Any) -> int:
        with pytest.raises(HttpError) as caught:
            await read(*args)
        assert room.free_bytes == 12
        return caught.value.status

    assert await refused(trickle(2), 100, 0.05) == 504
    assert await refused(trickle(6), 10) == 413
    assert await refused(trickle(7), 100) == 429

    async def whole() -> AsyncIterator[bytes]:
        yield b"12"
        yield b"3"

    assert await read(whole(), 3) == b"123"


async def test_a_body_of_many_small_things_is_refused() -> None:
    """What would stop the event loop in the parser is not parsed; a body of large texts is."""

    async def pieces(text: bytes) -> AsyncIterator[bytes]:
        for at in range(0, len(text), 1 << 16):
            yield text[at : at + (1 << 16)]

    with Body(Room(1 << 30), 1 << 30, 60) as body:
        with pytest.raises(HttpError) as caught:
            await body.read(pieces(b"[" + b"[]," * BODY_ITEMS + b"1]"))
        assert caught.value.status == 413
    with Body(Room(1 << 30), 1 << 30, 60) as body:
        large = b'{"a":"' + b"A" * (1 << 22) + b'"}'
        assert await body.read(pieces(large)) == large


@pytest.mark.parametrize("value", [129, 129.0, "129", " 1_29 ", 10**400, float("inf")])
def test_every_form_of_a_number_that_is_over_the_limit_is_seen(value: Any) -> None:
    """Upstream takes texts and floats for numbers too."""
    assert over(value, 128)


@pytest.mark.parametrize("value", [128, "128", 1.0, True, None, "many", [500], {"n": 500}])
def test_what_is_not_over_the_limit_passes(value: Any) -> None:
    """And what is no number is left to upstream's schema."""
    assert not over(value, 128)


def test_errors_have_openais_shape() -> None:
    """Message, type, param and code are always there; a client error keeps its path, status and code."""
    error = from_client_error(ClientError("too large", status=413, code="media_limit"), "messages[0]")
    response = error.response()
    assert response.status_code == 413
    assert json.loads(response.body) == {
        "error": {
            "message": "too large",
            "type": "RequestTooLargeError",
            "param": "messages[0]",
            "code": "media_limit",
        }
    }
    assert HttpError(429, "busy", retry_after_s=3).response().headers["retry-after"] == "3"


class Sent:
    """An ASGI ``send`` that breaks off at a given message."""

    def __init__(self, breaks_at: int = -1) -> None:
        self.breaks_at = breaks_at
        self.messages: list[dict[str, Any]] = []

    async def __call__(self, message: dict[str, Any]) -> None:
        if len(self.messages) == self.breaks_at:
            raise OSError("the client has gone")
        self.messages.append(message)


async def _never() -> dict[str, Any]:
    import asyncio

    await asyncio.Event().wait()
    raise AssertionError


async def events() -> AsyncIterator[str]:
    yield "data: one\n\n"
    yield "data: [DONE]\n\n"


@pytest.mark.parametrize("breaks_at", [-1, 0, 1, 2])
async def test_a_stream_ends_once_wherever_it_breaks_off(breaks_at: int) -> None:
    """Sent whole, broken in the middle or before its first byte: the request is counted out exactly once."""
    ended: list[bool] = []
    response = EventStream(Answer(200, events=events()), lambda: ended.append(True))
    sent = Sent(breaks_at)
    scope = {"type": "http", "asgi": {"spec_version": "2.4"}}
    await response(scope, _never, sent)  # type: ignore[arg-type]
    assert ended == [True]
    if breaks_at < 0:
        body = b"".join(message.get("body", b"") for message in sent.messages)
        assert body == b"data: one\n\ndata: [DONE]\n\n"
        assert response.headers["content-type"].startswith("text/event-stream")
