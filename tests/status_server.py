"""The real status page beside reports and answers that a test scripts."""

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from app.status_page.routes import router
from policies.recycling_history import RecyclingHistory
from policies.stats import GraphStats, ReplicaReport
from policies.totals import ClusterState, Totals, cluster_report, shape_rows
from policies.traffic import Traffic, TrafficWindow
from tests.servers import free_port

PHONE, DESK = (390, 844), (1280, 900)


def replica(number: int, encoder: str, state: str, **values: Any) -> ReplicaReport:
    name = f"{encoder.title()}Encoder"
    stats = GraphStats(
        graph_hits=90 * number, graph_misses=10, warmup_misses=7, capacity_misses=3, num_graphs=2
    )
    return ReplicaReport(
        **{
            "replica_id": f"{encoder}{number}abcd", "start_id": f"s{encoder}{number}", "deployment": name,
            "encoder": encoder, "device": f"cuda:{number}", "node_id": "n1", "state": state,
            "graphs_enabled": True, "taken_at_s": time.time(), "stats": stats,
            "captured_media": ("34x30", "30x34"),
            "calls_by_media_key": (("34x30", 80 * number), ("30x34", 15), ("16x64", 5)),
            "hits_by_media_key": (("34x30", 78 * number), ("30x34", 12)),
            **values,
        }
    )  # fmt: skip


def reports() -> tuple[dict[str, Any], dict[str, Any]]:
    """What a busy server with one broken replica says at ``/v1/graphs`` and ``/v1/status``."""
    now_s = time.time()
    replicas = (
        replica(1, "vision", "ready"),
        replica(2, "vision", "failed", failure="RuntimeError: <b>capture</b> broke", graphs_enabled=False),
        replica(1, "audio", "warming"),
    )
    totals = Totals.begin(now_s - 4000, {"vision": "calls", "audio": "calls"})
    for report in replicas:
        totals = totals.with_report(report, now_s)
    history = RecyclingHistory().with_recycle(
        "vision0abcd", "VisionEncoder", "failed for good: RuntimeError: <b>capture</b> broke", now_s - 90
    )
    graphs = cluster_report(ClusterState(totals, history), now_s)
    window = TrafficWindow()
    for n in range(120):
        window.add(now_s, 200 if n % 20 else 429, 0.2 + n / 200, 0.05 + n / 1000)
    names = {"Ingress": 2, "VisionEncoder": 2, "AudioEncoder": 1, "Decoder": 1, "GraphController": 1}
    deployments = [
        {
            "name": name, "status": "HEALTHY", "wanted": count,
            "replicas": [
                {"replica_id": f"{name.removesuffix('Encoder').lower()}{n + 1}abcd", "state": "RUNNING"}
                for n in range(count)
            ],
        }
        for name, count in names.items()
    ]  # fmt: skip
    traffic: Traffic = window.traffic(now_s, in_hand=3)
    status = {
        "now": now_s,
        "deployments": deployments,
        "traffic": {"ingresses": 2, **traffic.summary()},
        "shapes": {e: shape_rows(totals.shapes(e), {"34x30", "30x34"}) for e in ("vision", "audio")},
    }
    return graphs, status


class Said:
    """What the server behind the page says now; a test changes it."""

    def __init__(self) -> None:
        self.graphs, self.status = reports()
        self.health: dict[str, Any] = {
            "status": "degraded",
            "parts": {"VisionEncoder": "unhealthy: 1 running"},
        }
        self.key: str | None = None
        self.broken = False
        self.asked: list[dict[str, Any]] = []
        self.words = ("The", " word", " is", " seven", ".")
        self.refusal: tuple[int, str] | None = None
        self.breaks_off = False
        self.goes_on = threading.Event()
        """The second half of an answer waits for it."""
        self.goes_on.set()

    def stream(self) -> Iterator[str]:
        """The answer as a model of another name than ours gives it."""
        for place, word in enumerate(self.words):
            if place == 2:
                assert self.goes_on.wait(30)
                if self.breaks_off:
                    return
            yield self._event({"delta": {"content": word}, "finish_reason": None})
        yield self._event({"delta": {"content": ""}, "finish_reason": "stop"})
        yield "data: [DONE]\n\n"

    def _event(self, choice: dict[str, Any]) -> str:
        return f"data: {json.dumps({'model': 'another-model', 'choices': [choice]})}\n\n"


def application(said: Said) -> FastAPI:
    """The page's own routes and the scripted ones."""
    app = FastAPI()
    app.include_router(router)

    def answer(request: Request, body: Any) -> JSONResponse:
        if said.broken:
            return JSONResponse({"error": {}}, 503)
        if said.key is not None and request.headers.get("authorization") != f"Bearer {said.key}":
            return JSONResponse({"error": {}}, 401)
        return JSONResponse(body)

    @app.get("/v1/graphs")
    def graphs(request: Request) -> JSONResponse:
        return answer(request, said.graphs)

    @app.get("/v1/status")
    def status(request: Request) -> JSONResponse:
        return answer(request, said.status)

    @app.post("/v1/chat/completions", response_model=None)
    def chat(request: Request, body: dict[str, Any]) -> Response:
        allowed = answer(request, {})
        if allowed.status_code != 200:
            return JSONResponse({"error": {"message": "a key is needed"}}, allowed.status_code)
        if said.refusal is not None:
            status, reason = said.refusal
            return JSONResponse({"error": {"message": reason}}, status)
        said.asked.append(body)
        return StreamingResponse(said.stream(), media_type="text/event-stream")

    @app.get("/health")
    def health() -> JSONResponse:
        return JSONResponse(said.health)

    return app


@contextlib.contextmanager
def serving(said: Said) -> Iterator[str]:
    """The page's address."""
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(application(said), host="127.0.0.1", port=port, log_level="error"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until = time.monotonic() + 20
    while not server.started:
        assert time.monotonic() < until
        time.sleep(0.02)
    yield f"http://127.0.0.1:{port}/"
    server.should_exit = True
    thread.join(10)
