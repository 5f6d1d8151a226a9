"""The edge of the Ingress: bodies that are no JSON, and streams that end before they begin."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.chat import Answer
from app.http_errors import HttpError, from_client_error
from app.ingress import EventStream, parse_json, read_body
from deployments.errors import ClientError

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
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
    with pytest.raises(HttpError) as slow:
        await read_body(trickle(2), 100, 0.05)
    assert slow.value.status == 504
    with pytest.raises(HttpError) as large:
        await read_body(trickle(6), 10, 60)
    assert large.value.status == 413

    async def whole() -> AsyncIterator[bytes]:
        yield b"12"
        yield b"3"

    assert await read_body(whole(), 3, 60) == b"123"


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
