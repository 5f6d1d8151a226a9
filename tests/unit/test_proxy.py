"""The guard before Serve's proxy."""

import asyncio
import json
from typing import Any

import pytest

from app.proxy import IMPORT_PATH, ORDERS, Guard, SlowReader, middlewares
from app.serve import ENVIRONMENT


async def never() -> Any:
    await asyncio.Event().wait()


class Application:
    """Answers with two messages and remembers what it was asked and how it ended."""

    def __init__(self) -> None:
        self.headers: dict[bytes, bytes] = {}
        self.ended = False

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.headers = dict(scope["headers"])
        assert len(self.headers) == len(scope["headers"])
        try:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"x"})
        finally:
            self.ended = True


def test_make_serve_names_it_to_serve() -> None:
    """The path that Serve imports leads to the middlewares, and every server of ours is started with it."""
    assert ENVIRONMENT["RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"] == IMPORT_PATH
    assert f"{middlewares.__module__}:{middlewares.__name__}" == IMPORT_PATH
    assert [middleware.cls for middleware in middlewares()] == [Guard]


async def test_no_client_gives_orders_to_serve() -> None:
    """Headers that change timeouts, cancellation or routing are dropped, an unfit id is replaced."""
    application = Application()
    headers = [(name, b"\xff?1") for name in ORDERS]
    headers += [(b"x-request-id", b"\xff"), (b"x-request-id", b"two"), (b"authorization", b"Bearer k")]
    await Guard(application, 60)({"type": "http", "headers": headers}, never, lambda _: asyncio.sleep(0))  # type: ignore[arg-type]
    assert set(application.headers) == {b"x-request-id", b"authorization"}
    assert len(application.headers[b"x-request-id"]) == 36


@pytest.mark.parametrize("stalls_at", [0, 1])
async def test_a_client_that_never_reads_loses_its_connection(stalls_at: int) -> None:
    """What waits to be sent is dropped after the timeout, whichever it is; a slow client is waited for."""
    application, sent = Application(), []

    async def send(message: Any) -> None:
        if len(sent) == stalls_at:
            await never()
        await asyncio.sleep(0.02)
        sent.append(message)

    with pytest.raises(SlowReader):
        await asyncio.wait_for(Guard(application, 0.1)({"type": "http", "headers": []}, never, send), 10)
    assert application.ended
    assert len(sent) == stalls_at


class Dying:
    """Ends after the messages it was given, as Serve's proxy does when the replica behind it dies."""

    def __init__(self, *messages: dict[str, Any], reads: bool = False) -> None:
        self.messages = messages
        self.reads = reads

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if self.reads:
            await receive()
        for message in self.messages:
            await send(message)


def begun(content_type: bytes) -> dict[str, Any]:
    headers = [(b"content-type", content_type)]
    return {"type": "http.response.start", "status": 200, "headers": headers}


PIECE = {"type": "http.response.body", "body": b"data: 1\n\n", "more_body": True}


async def guarded(application: Dying) -> list[dict[str, Any]]:
    sent: list[dict[str, Any]] = []

    async def gone() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(dict(message))

    await Guard(application, 60)({"type": "http", "headers": []}, gone, send)
    return sent


async def test_an_ingress_that_dies_before_its_answer_is_a_503() -> None:
    """Where Serve sends nothing the client gets OpenAI's shape and may try again."""
    start, body = await guarded(Dying())
    assert start["status"] == 503
    assert (b"retry-after", b"1") in start["headers"]
    assert json.loads(body["body"])["error"]["type"] == "ServiceUnavailableError"


async def test_an_ingress_that_dies_in_mid_stream_ends_the_events_with_a_reason() -> None:
    """The events that came stay, an error event and the end follow."""
    *passed, last = await guarded(Dying(begun(b"text/event-stream; charset=utf-8"), PIECE))
    assert [message["type"] for message in passed] == ["http.response.start", "http.response.body"]
    assert not last.get("more_body", False)
    error, done = last["body"].decode().split("\n\n")[:2]
    assert json.loads(error.removeprefix("data: "))["error"]["code"] == 503
    assert done == "data: [DONE]"


async def test_half_a_body_gets_nothing_added() -> None:
    """JSON that broke off is not made to look whole."""
    messages = (begun(b"application/json"), PIECE)
    assert len(await guarded(Dying(*messages))) == len(messages)


async def test_a_client_that_has_gone_is_told_nothing() -> None:
    """Serve sends nothing to who left, nor does the guard."""
    assert await guarded(Dying(reads=True)) == []
