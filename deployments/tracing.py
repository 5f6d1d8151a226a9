"""OpenTelemetry spans of what a request does inside a replica, under those that Serve makes between replicas.

Serve traces where its config has a ``tracing_config``; without one nothing here does anything.
"""

import time
from collections.abc import Mapping
from contextvars import Context

from opentelemetry import context, trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

NAMED = "graphserve"


def note(name: str, begun_s: float, ended_s: float, **attributes: str | int | float | bool) -> None:
    """A span of something that has ended, under the request's span; times as ``time.monotonic()`` counts."""
    if not trace.get_current_span().is_recording():
        return
    epoch_s = time.time() - time.monotonic()
    span = trace.get_tracer(NAMED).start_span(
        name, start_time=int((epoch_s + begun_s) * 1e9), attributes=attributes
    )
    span.end(int((epoch_s + ended_s) * 1e9))


def headers() -> Mapping[str, str]:
    """``traceparent`` of the request's span, for code that takes it from HTTP headers; empty without one."""
    found: dict[str, str] = {}
    if trace.get_current_span().is_recording():
        TraceContextTextMapPropagator().inject(found)
    return found


def carry_over(other: Context) -> None:
    """Give another context the span of this one, and nothing else of it."""
    other.run(context.attach, trace.set_span_in_context(trace.get_current_span(), context.Context()))


def otlp() -> list[object]:
    """For Serve's ``exporter_import_path``: spans go by OTLP over HTTP to OTEL_EXPORTER_OTLP_ENDPOINT."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    return [BatchSpanProcessor(OTLPSpanExporter())]
