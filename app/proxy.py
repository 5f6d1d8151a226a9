"""What stands before Serve's HTTP proxy: sane ids, no orders to Serve from outside, no endless readers, and a
reason where Serve would give none.

Serve calls ``middlewares`` when RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH names it, as ``make serve`` does.
"""

import asyncio
import logging

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.http_errors import HttpError, error_event
from app.request_id import HEADER, settled

IMPORT_PATH = "app.proxy:middlewares"
WRITE_TIMEOUT_S = 60.0
"""Longest wait until a client takes more of its answer; then the connection ends and what waits is freed."""
ORDERS = (
    b"x-request-timeout-seconds",
    b"x-request-disconnect-disabled",
    b"serve_multiplexed_model_id",
    b"serve-multiplexed-model-id",
    b"x-session-id",
)
"""Headers by which Serve lets any client change how its request is routed, timed and cancelled."""

logger = logging.getLogger("ray.serve")


def middlewares() -> list[Middleware]:
    """What Serve puts before its proxy, the outermost last."""
    return [Middleware(Guard, write_timeout_s=WRITE_TIMEOUT_S)]


class SlowReader(Exception):
    """The client has not taken its answer in time."""


class Guard:
    """ASGI middleware of the proxy."""

    def __init__(self, app: ASGIApp, write_timeout_s: float) -> None:
        self.app = app
        self.write_timeout_s = write_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id, _ = settled([value for name, value in scope["headers"] if name == HEADER])
        kept = [(name, value) for name, value in scope["headers"] if name not in (HEADER, *ORDERS)]
        scope = {**scope, "headers": [*kept, (HEADER, request_id.encode())]}
        exchange = _Exchange(receive, send, self.write_timeout_s)
        try:
            await self.app(scope, exchange.receive, exchange.send)
        except SlowReader:
            logger.warning(
                "the client took nothing of its answer for %g s: its connection ends",
                self.write_timeout_s,
                extra={"request_id": request_id},
            )
            raise
        if not (exchange.ended or exchange.gone):
            logger.warning("the Ingress left an answer unfinished", extra={"request_id": request_id})
            await exchange.give_reason(scope)


class _Exchange:
    """How far one request and its answer have come."""

    def __init__(self, receive: Receive, send: Send, write_timeout_s: float) -> None:
        self._receive = receive
        self._send = send
        self.write_timeout_s = write_timeout_s
        self.begun = self.ended = self.events = self.gone = False

    async def receive(self) -> Message:
        """Pass one message of the client on."""
        message = await self._receive()
        self.gone = self.gone or message["type"] == "http.disconnect"
        return message

    async def send(self, message: Message) -> None:
        """Pass one message on. Raises SlowReader when the client does not take it in time."""
        if message["type"] == "http.response.start":
            self.begun = True
            self.events = dict(message["headers"]).get(b"content-type", b"").startswith(b"text/event-stream")
        elif message["type"] == "http.response.body":
            self.ended = not message.get("more_body", False)
        try:
            async with asyncio.timeout(self.write_timeout_s):
                await self._send(message)
        except TimeoutError:
            raise SlowReader from None

    async def give_reason(self, scope: Scope) -> None:
        """End in OpenAI's shape what Serve broke off without a word, as it does when the Ingress dies."""
        if not self.begun:
            refusal = HttpError(503, "the Ingress replica died before it had begun its answer")
            await refusal.response()(scope, self._receive, self.send)
        elif self.events:
            broken = HttpError(503, "the Ingress replica died in mid-stream; the answer is incomplete")
            await self.send({"type": "http.response.body", "body": error_event(broken).encode()})
