"""Spans of what happens inside a replica."""

import contextvars
import time
from collections.abc import Iterator

import pytest
from opentelemetry import context, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from app import serve
from deployments import tracing


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Iterator[InMemorySpanExporter]:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield exporter
    provider.shutdown()


def test_a_span_lies_under_the_requests_with_its_own_times(exported: InMemorySpanExporter) -> None:
    """What is noted is a child of the current span, begins and ends when it did, and has its attributes."""
    begun, epoch = time.monotonic(), time.time()
    with trace.get_tracer("test").start_as_current_span("request") as request:
        tracing.note("encode", begun + 1, begun + 3, shape_key="34x30", tokens=64)
    noted, _ = exported.get_finished_spans()
    assert noted.parent is not None
    assert noted.parent.span_id == request.get_span_context().span_id
    assert noted.start_time is not None
    assert noted.end_time is not None
    assert noted.start_time / 1e9 == pytest.approx(epoch + 1, abs=0.1)
    assert noted.end_time / 1e9 == pytest.approx(epoch + 3, abs=0.1)
    assert dict(noted.attributes or {}) == {"shape_key": "34x30", "tokens": 64}


def test_nothing_is_made_where_nobody_traces(exported: InMemorySpanExporter) -> None:
    """Without a span of the request there is none of ours, and no header for the engine."""
    tracing.note("encode", 0.0, 1.0)
    assert not exported.get_finished_spans()
    assert tracing.headers() == {}


def test_the_header_names_the_current_span(exported: InMemorySpanExporter) -> None:
    """Whoever takes ``traceparent`` from the headers continues this trace."""
    with trace.get_tracer("test").start_as_current_span("request") as request:
        found = request.get_span_context()
        assert tracing.headers()["traceparent"].startswith(f"00-{found.trace_id:032x}-{found.span_id:016x}-")


def test_another_context_gets_the_span_and_nothing_else(exported: InMemorySpanExporter) -> None:
    """Work shared by several requests is traced under the first of them, with none of its other values."""
    other = contextvars.Context()
    with trace.get_tracer("test").start_as_current_span("request") as request:
        token = context.attach(context.set_value("mine", 1))
        tracing.carry_over(other)
        context.detach(token)
    assert other.run(trace.get_current_span) is request
    assert other.run(context.get_value, "mine") is None


SERVES_OWN = "ray.serve._private.tracing_utils:default_tracing_exporter"


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ({}, {}),
        ({"enabled": False, "exporter_import_path": "a:b"}, {}),
        (
            {"enabled": True, "exporter_import_path": "a:b", "sampling_ratio": 0.5},
            {"RAY_SERVE_TRACING_EXPORTER_IMPORT_PATH": "a:b", "RAY_SERVE_TRACING_SAMPLING_RATIO": "0.5"},
        ),
        ({"enabled": True}, {"RAY_SERVE_TRACING_EXPORTER_IMPORT_PATH": SERVES_OWN}),
    ],
)
def test_serves_proxy_is_told_what_the_config_says(wanted: dict[str, object], told: dict[str, str]) -> None:
    """``make serve`` hands a config's tracing on to the proxy, which starts before Serve reads the config."""
    assert serve.tracing({"tracing_config": wanted} if wanted else {}) == told
