"""The id of a request: the client's ``X-Request-Id`` where that is fit for a log, otherwise one of ours.

It travels in Serve's request context, which every call of a handle passes on and Serve's log filter writes
into each record as ``request_id``.
"""

import contextvars
import re
import uuid
from dataclasses import replace

from ray import serve
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments import tracing

HEADER = b"x-request-id"
SANE = re.compile(r"[A-Za-z0-9._:=+/@~-]{1,128}")
"""What is kept: printable without quotes or spaces, and short enough to stand in every line of a log."""


def current() -> str:
    """The id of the request that is being handled here; empty outside of one."""
    request_id: str = serve.context._get_serve_request_context().request_id
    return request_id


def of_no_request() -> contextvars.Context:
    """A context for work that several requests wait for: it has this one's id for the logs, and its span, but
    Serve, which calls off whatever a request has begun when its client goes away, does not count it as begun
    here.
    """
    mine = serve.context._get_serve_request_context()
    context = contextvars.Context()
    context.run(serve.context._serve_request_context.set, replace(mine, _internal_request_id=""))
    tracing.carry_over(context)
    return context


def settled(given: list[bytes]) -> tuple[str, bool]:
    """The id for a request that came with these headers, and whether it is the one that was given."""
    text = given[0].decode("latin-1") if len(set(given)) == 1 else ""
    if SANE.fullmatch(text):
        return text, True
    return str(uuid.uuid4()), False


class RequestId:
    """ASGI middleware of the Ingress: sees to it that the id is sane from here on.

    Serve's proxy has put an id into the request and will put the same one into the response. Where that is
    not fit, another takes its place in the context, the logs and, before the proxy's, the response.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id, kept = settled([value for name, value in scope["headers"] if name == HEADER])
        if kept:
            await self.app(scope, receive, send)
            return
        context = serve.context._get_serve_request_context()
        serve.context._serve_request_context.set(replace(context, request_id=request_id))

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-Id"] = request_id
            await send(message)

        await self.app(scope, receive, send_named)
