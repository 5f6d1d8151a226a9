"""Spans of requests, sent by OTLP to a collector that this test is.

Needs: Ray, vLLM on the CPU.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests import media
from tests.asking import MODEL, text, user
from tests.servers import Server, app_config, running_app, wait_for

CLIENTS_SPAN = "00f067aa0ba902b7"
SERVES = {
    "Ingress": "replica_handle_request Ingress __call__",
    "VisionEncoder": "replica_handle_request VisionEncoder encode",
    "AudioEncoder": "replica_handle_request AudioEncoder encode",
    "Decoder": "replica_handle_request Decoder chat",
}
"""Serve's own spans by the deployment in which they are."""
OURS = {"fetch": "Ingress", "preprocess": "Encoder", "queue": "Encoder", "encode": "Encoder"}
OF_THE_ANSWER = ("accept", "first_token", "stream")


@dataclass
class Collector:
    """What came in, by trace."""

    traces: dict[str, dict[str, Any]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        found = [span for r in request.resource_spans for s in r.scope_spans for span in s.spans]
        with self.lock:
            for span in found:
                self.traces.setdefault(span.trace_id.hex(), {})[span.span_id.hex()] = span

    def of(self, trace_id: str) -> dict[str, Any]:
        with self.lock:
            return dict(self.traces.get(trace_id, {}))


@pytest.fixture(scope="module")
def collector() -> Iterator[tuple[Collector, str]]:
    kept = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            kept.take(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield kept, f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture(scope="module")
def traced(
    collector: tuple[Collector, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, Collector]]:
    """The application with Serve's tracing on, and vLLM's own."""
    kept, address = collector
    tracing = {
        "enabled": True,
        "exporter_import_path": "deployments.tracing:otlp",
        "sampling_ratio": 0.0,  # of requests that bring no trace of their own
    }
    env = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": address,
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        "OTEL_BSP_SCHEDULE_DELAY": "300",
    }
    decoder = app_config(0)["applications"][0]["args"]["decoder"]
    decoder["engine_args"]["otlp_traces_endpoint"] = f"{address}/v1/traces"
    with running_app(
        tmp_path_factory.mktemp("traced"), {"decoder": decoder}, env=env, top={"tracing_config": tracing}
    ) as server:
        yield server, kept


def ask(server: Server, number: int, *, stream: bool) -> str:
    """A request with a picture and a sound of its own. Returns its trace."""
    trace_id = f"{number:032x}"
    picture = dict(media.image_part(media.image_bytes(media.drawn(110, 84, seed=9100 + number))))
    sound = dict(
        media.input_audio_part(media.sound_bytes(media.tone(0.9 + number / 50, 16_000), 16_000, "WAV"), "wav")
    )
    answer = httpx.post(
        f"{server.base_url}/v1/chat/completions",
        json={
            "model": MODEL, "messages": user(picture, sound, text("Look")), "max_tokens": 6,
            "temperature": 0, "stream": stream,
        },
        headers={"traceparent": f"00-{trace_id}-{CLIENTS_SPAN}-01"}, timeout=60, trust_env=False,
    )  # fmt: skip
    assert answer.status_code == 200, answer.text
    return trace_id


def above(spans: dict[str, Any], span: Any) -> list[str]:
    """Names of the spans that a span is under, the nearest first; fails where the chain breaks."""
    names = []
    while (parent := span.parent_span_id.hex()) != CLIENTS_SPAN:
        assert parent in spans, f"{span.name} is under a span of another trace or none"
        span = spans[parent]
        names.append(span.name)
    return names


def whole(spans: dict[str, Any]) -> bool:
    """Whether the proxy's own span has come, which ends last, and everything under it."""
    parents = {span.parent_span_id.hex() for span in spans.values()}
    names = {span.name for span in spans.values()}
    return parents - set(spans) == {CLIENTS_SPAN} and {*SERVES.values(), *OF_THE_ANSWER} <= names


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_one_trace_from_proxy_to_engine(traced: tuple[Server, Collector], stream: bool) -> None:
    """Every span of a request lies in its client's trace, under the deployment that it tells of, in order."""
    server, collector = traced
    trace_id = ask(server, 1 + stream, stream=stream)
    wanted = {*SERVES.values(), *OURS, *OF_THE_ANSWER, "llm_request"}

    def missing() -> set[str]:
        return wanted - {span.name for span in collector.of(trace_id).values()}

    assert wait_for(lambda: not missing() and whole(collector.of(trace_id)), 20), missing()
    spans = collector.of(trace_id)
    named: dict[str, list[Any]] = {}
    for span in spans.values():
        named.setdefault(span.name, []).append(span)
        assert span.start_time_unix_nano <= span.end_time_unix_nano
    for name, place in OURS.items():
        assert len(named[name]) == 2, name  # one for each medium
        for span in named[name]:
            assert place in above(spans, span)[0]
    for name in (*OF_THE_ANSWER, "llm_request"):
        assert SERVES["Decoder"] in above(spans, named[name][0]), name
    for name in SERVES.values():
        assert SERVES["Ingress"] in (name, *above(spans, named[name][0]))
    for span in named["encode"]:
        told = {each.key: each.value for each in span.attributes}
        assert told["shape_key"].string_value
        assert told["outcome"].string_value == "miss"
        assert told["tokens"].int_value > 0
        assert told["batch_size"].int_value == 1
    encoded = max(span.end_time_unix_nano for span in named["encode"])
    (accepted,) = named["accept"]
    assert encoded <= accepted.end_time_unix_nano <= named["first_token"][0].end_time_unix_nano


def test_traces_of_many_at_once_do_not_mix(traced: tuple[Server, Collector]) -> None:
    """Of 12 requests at once each has its own two encodes, and no span of another."""
    server, collector = traced
    numbers = range(100, 112)
    with ThreadPoolExecutor(len(numbers)) as pool:
        traces = list(pool.map(lambda number: ask(server, number, stream=bool(number % 2)), numbers))
    for trace_id in traces:
        assert wait_for(lambda it=trace_id: whole(collector.of(it)), 20), sorted(
            span.name for span in collector.of(trace_id).values()
        )
        names = [span.name for span in collector.of(trace_id).values()]
        assert [names.count(each) for each in ("fetch", "encode", "accept")] == [2, 2, 1]


def test_what_is_not_sampled_is_not_sent(traced: tuple[Server, Collector]) -> None:
    """A request without a trace of its own follows the sampling ratio, here none."""
    server, collector = traced
    before = set(collector.traces)
    answer = httpx.post(
        f"{server.base_url}/v1/chat/completions",
        json={"model": MODEL, "messages": user(text("Hello")), "max_tokens": 2}, timeout=60, trust_env=False,
    )  # fmt: skip
    assert answer.status_code == 200
    known = ask(server, 500, stream=False)
    assert wait_for(lambda: whole(collector.of(known)), 20)
    ours = {s.name for t in set(collector.traces) - before - {known} for s in collector.of(t).values()}
    assert not ours & {*SERVES.values(), *OURS, *OF_THE_ANSWER}
