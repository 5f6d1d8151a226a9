"""The front door: HTTP in OpenAI's shape. Needs no GPU and never touches a tensor."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from ray import serve
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from app import openapi, request_id
from app.body import Body, Room, parse_json
from app.chat import Answer, ChatFront
from app.config import AppConfig
from app.embedding_cache import EmbeddingCache
from app.failures import classify
from app.http_errors import HttpError
from app.keys import Keys
from app.media_fetch import FetchOptions, MediaFetcher
from app.readiness import Readiness
from app.request_id import RequestId
from app.request_watch import CLIENT_GONE, GONE, RequestWatch, Watched
from app.status_page.routes import router
from deployments.families.base import Family
from deployments.metrics import IngressMetrics
from policies.limits import MediaLimits
from policies.traffic import Traffic

ON_ONE_LOOP = {
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
}
"""Has Serve run its own part of the replica, and its calls of others, on the event loop of this code: neither
holds it long, and between two loops every message of an answer changes threads twice."""

logger = logging.getLogger("ray.serve")
app = FastAPI(title="GraphServe", openapi_url=None, redirect_slashes=False)
app.add_middleware(RequestId)
app.include_router(router)


@app.exception_handler(HttpError)
async def _refused(_: Request, error: HttpError) -> JSONResponse:
    return error.response()


@app.exception_handler(HTTPException)
async def _no_such_route(_: Request, error: HTTPException) -> JSONResponse:
    response = HttpError(error.status_code, str(error.detail)).response()
    response.headers.update(error.headers or {})
    return response


@app.exception_handler(Exception)
async def _broken(_: Request, error: Exception) -> JSONResponse:
    logger.error("a request failed by a fault of ours", exc_info=error)
    return HttpError(500, "internal error").response()


async def _gone(_: Request, __: Exception) -> Response:
    """Nobody reads this answer; that a client goes away is no fault."""
    return Response(status_code=CLIENT_GONE)


for gone in GONE:
    app.add_exception_handler(gone, _gone)


class EventStream(StreamingResponse):
    """The events of one answer. However it ends, even before the first of them, ``ended`` is called."""

    def __init__(self, answer: Answer, ended: Callable[[], None]) -> None:
        assert answer.events is not None
        super().__init__(answer.events, media_type="text/event-stream")
        self.ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            with contextlib.suppress(*GONE):
                await super().__call__(scope, receive, send)
        finally:
            self.ended()


@dataclass(frozen=True)
class IngressOptions:
    """What the Ingress is told at build."""

    config: AppConfig
    family: Family
    model_name: str
    identity: str
    limits: MediaLimits
    fetch: FetchOptions
    deployments: tuple[str, ...]
    control_tokens: tuple[str, ...] = ()  # of the model's tokenizer: written by a client they are text


# Everything that Ingress's methods use stands above it: serve.ingress() freezes the class, and the module's
# names as they are at that moment, when it decorates.


def over(value: Any, limit: int) -> bool:
    """Whether a number is over a limit, in every form in which upstream's schema takes it for a number."""
    try:
        return isinstance(value, int | float | str) and float(value) > limit
    except (ValueError, OverflowError):
        return isinstance(value, int)  # too large even for a float; a text is upstream's to refuse


def _bearer(raw: Request) -> str:
    kind, _, token = raw.headers.get("authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else ""


@serve.deployment(
    name="Ingress",
    health_check_period_s=1,
    health_check_timeout_s=10,
    max_ongoing_requests=1024,
    ray_actor_options={"num_cpus": 0, "runtime_env": {"env_vars": ON_ONE_LOOP}},
)
@serve.ingress(app)
class Ingress:
    """Routes, admission and the two kinds of key."""

    def __init__(
        self, options: IngressOptions, encoders: dict[str, Any], decoder: Any, controller: Any
    ) -> None:
        config = options.config
        self.options = options
        self.decoder = decoder
        self.controller = controller
        self.watch = RequestWatch(IngressMetrics())
        self.front = ChatFront(
            options.family,
            options.identity,
            encoders,
            decoder,
            MediaFetcher(options.fetch, options.limits),
            options.limits,
            EmbeddingCache(config.embedding_cache_bytes, request_id.of_no_request),
            config.request_deadline_s,
            options.control_tokens,
            self.watch.metrics,
        )
        self.readiness = Readiness(serve.get_replica_context().app_name, options.deployments)
        self.room = Room(config.max_bodies_bytes)
        self.keys = Keys(config.api_keys)
        self.admin = Keys([config.admin_token] if config.admin_token is not None else [])

    async def check_health(self) -> None:
        """Also the hook by which the watch over the application starts inside the event loop."""
        self.readiness.start()

    @app.post("/v1/chat/completions", openapi_extra=openapi.CHAT)
    async def chat_completions(self, raw: Request) -> Response:
        """OpenAI's chat completions as vLLM serves them."""
        watched = self.watch.begin()
        streaming = False
        try:
            self._check_key(raw)
            if self.watch.in_hand > self.options.config.max_requests:
                raise HttpError(429, "too many requests in hand; try again shortly")
            with self._new_body() as body:
                request = await self._request(raw, body)
                answer = await self.front.answer(request, request_id.current())
            self.watch.answered(watched, answer.status, answer.media, streaming=answer.events is not None)
            if answer.events is None:
                return Response(answer.body, status_code=answer.status, media_type="application/json")
            streaming = True
            return EventStream(answer, lambda: self._ended(answer, watched))
        except Exception as error:
            watched.failed(error)
            raise
        finally:
            if not streaming:
                self.watch.ended(watched)

    def _ended(self, answer: Answer, watched: Watched) -> None:
        answer.cancel()
        self.watch.ended(watched)

    async def traffic_report(self) -> Traffic:
        """What the GraphController collects of each Ingress replica: the requests of the last minute."""
        self.watch.metrics.looked(self.watch.in_hand, self.front.cache.counts)
        return self.watch.traffic()

    def _new_body(self) -> Body:
        config = self.options.config
        return Body(self.room, config.max_body_bytes, config.request_deadline_s)

    async def _request(self, raw: Request, body: Body) -> dict[str, Any]:
        """What was asked. It must be called JSON, which browsers send for no page that was not allowed to."""
        if raw.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise HttpError(400, "Unsupported Media Type: Only 'application/json' is allowed")
        request = parse_json(await body.read(raw.stream()))
        given = request.get("request_id")
        if isinstance(given, str) and not request_id.SANE.fullmatch(given):
            raise HttpError(400, f"request_id must match {request_id.SANE.pattern}", "request_id")
        model = request.get("model")
        if isinstance(model, str) and model != self.options.model_name:
            known = self.options.model_name
            raise HttpError(404, f"The model `{model:.200}` does not exist. Valid aliases: {known}.", "model")
        if over(request.get("n"), self.options.config.max_n):
            raise HttpError(400, f"n must be at most {self.options.config.max_n}", "n")
        return request

    def _check_key(self, raw: Request) -> None:
        if self.keys and not self.keys.hold(_bearer(raw)):
            raise HttpError(401, "an API key is needed: Authorization: Bearer ...")

    @app.get("/openapi.json", include_in_schema=False)
    async def schema(self, raw: Request) -> Response:
        """The description of these paths, for those who may use them."""
        self._check_key(raw)
        return JSONResponse(openapi.described(app))

    @app.get("/v1/models")
    async def models(self, raw: Request) -> Response:
        """The served model, as vLLM lists it."""
        self._check_key(raw)
        return JSONResponse(await self._call(self.decoder.model_list.remote()))

    @app.get("/v1/graphs")
    async def graphs(self, raw: Request) -> Response:
        """The cluster's encoder-graph report."""
        self._check_key(raw)
        return JSONResponse(await self._call(self.controller.cluster_report.remote()))

    @app.get("/v1/status")
    async def status(self, raw: Request) -> Response:
        """Deployments, traffic and coverage by shape, as the status page shows them."""
        self._check_key(raw)
        return JSONResponse(await self._call(self.controller.status_report.remote()))

    @app.post("/admin/replicas/{replica_id}/recycle")
    async def recycle(self, replica_id: str, raw: Request) -> Response:
        """Recycle one encoder replica by hand."""
        if not self.admin:
            raise HttpError(404, "Not Found")
        if not self.admin.hold(_bearer(raw)):
            raise HttpError(401, "the admin token is needed: Authorization: Bearer ...")
        verdict = await self._call(self.controller.request_recycle.remote(replica_id, "HTTP request"))
        return JSONResponse(verdict, status_code=404 if verdict["status"] == "unknown" else 202)

    async def _call(self, response: Any, timeout_s: float = 10.0) -> Any:
        try:
            return await asyncio.wait_for(response, timeout_s)
        except TimeoutError:
            raise HttpError(503, "the part that knows did not answer in time") from None
        except Exception as error:
            raise HttpError(503, f"the part that knows cannot answer: {classify(error)[1]}") from error

    @app.head("/health", include_in_schema=False)
    @app.get("/health")
    async def health(self) -> Response:
        """Ready once everything was; from then on 200 while text can be answered."""
        health = self.readiness.health
        return JSONResponse(health.body(), status_code=health.status)

    @app.get("/health/live")
    async def live(self) -> Response:
        """The process answers."""
        return JSONResponse({"status": "ok"})
