"""What stands before Serve's HTTP proxy: sane ids, no orders to Serve from outside, no endless readers.

Serve calls ``middlewares`` when RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH names it, as ``make serve`` does.
"""

import asyncio
import logging

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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

        async def send_in_time(message: Message) -> None:
            try:
                async with asyncio.timeout(self.write_timeout_s):
                    await send(message)
            except TimeoutError:
                raise SlowReader from None

        try:
            await self.app(scope, receive, send_in_time)
        except SlowReader:
            logger.warning(
                "the client took nothing of its answer for %g s: its connection ends",
                self.write_timeout_s,
                extra={"request_id": request_id},
            )
            raise
