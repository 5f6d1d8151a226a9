"""What GraphServe measures, by ``ray.serve.metrics``: the table of metrics, and who feeds which.

Ray's agent on each node exports them for Prometheus under ``ray_`` and the name; docs/metrics.md lists them.
The Ingress feeds what a request meets, a few calls a request and none a token; the GraphController feeds
what the encoders' reports say, once a period.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ray.serve import metrics as serve_metrics

from deployments.messages import EncodeReceipt
from policies.growth import ShapeNames, growth
from policies.lifecycle import ReplicaState
from policies.stats import MISS_REASONS, ReplicaReport

Kind = Literal["counter", "gauge", "histogram"]

SECONDS = (
    0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3,
    0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0, 120.0,
)  # fmt: skip
BATCHES = (1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0, 128.0, 256.0)


@dataclass(frozen=True, slots=True)
class Metric:
    """One row of the table; ``labels`` come beside Serve's own (application, deployment, replica)."""

    kind: Kind
    meaning: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()


OF_CONTROLLER: Mapping[str, Metric] = {
    "graphserve_graph_hits": Metric("counter", "calls or items that ran in a CUDA graph", ("encoder",)),
    "graphserve_graph_misses": Metric(
        "counter", "calls or items that ran eagerly, by the reason", ("encoder", "reason")
    ),
    "graphserve_graph_tokens_replayed": Metric("counter", "embedding tokens out of graphs", ("encoder",)),
    "graphserve_graph_tokens_padded": Metric(
        "counter", "tokens that graphs computed for nothing, as padding", ("encoder",)
    ),
    "graphserve_graph_capture_failures": Metric(
        "counter", "captures that broke; each ends its replica", ("encoder",)
    ),
    "graphserve_graph_replay_failures": Metric(
        "counter", "replays that broke; each ends its replica", ("encoder",)
    ),
    "graphserve_shape_items": Metric(
        "counter",
        "items encoded, by shape and whether in a graph; the less used shapes are `other`",
        ("encoder", "shape", "outcome"),
    ),
    "graphserve_encoder_recycles": Metric(
        "counter", "replicas that were ordered to leave, by cause", ("encoder", "cause")
    ),
    "graphserve_graphs_held": Metric("gauge", "graphs that the living replicas hold", ("encoder",)),
    "graphserve_graph_leaked_bytes": Metric(
        "gauge", "device memory that broken captures keep until their process ends", ("encoder",)
    ),
    "graphserve_encoder_replicas": Metric(
        "gauge", "replicas by their own state, as they last reported", ("encoder", "state")
    ),
}
"""Fed by the GraphController."""

OF_INGRESS: Mapping[str, Metric] = {
    "graphserve_requests": Metric(
        "counter", "chat requests that ended, by HTTP status; 499: the client went away", ("status", "media")
    ),
    "graphserve_request_seconds": Metric(
        "histogram", "from a request's arrival to the end of its answer", ("media",), SECONDS
    ),
    "graphserve_first_token_seconds": Metric(
        "histogram", "from a streamed request's arrival to its first event", ("media",), SECONDS
    ),
    "graphserve_requests_in_hand": Metric("gauge", "chat requests not yet answered in full"),
    "graphserve_encode_stage_seconds": Metric(
        "histogram",
        "one item's time in a stage of its encode; outcome says whether it ran in a graph",
        ("encoder", "stage", "outcome"),
        SECONDS,
    ),
    "graphserve_encode_batch_size": Metric(
        "histogram", "items in the batch of an item", ("encoder",), BATCHES
    ),
    "graphserve_handover_seconds": Metric(
        "histogram",
        "a request's way to a decoder and back, embeddings included, without the decoder's own time",
        ("media",),
        SECONDS,
    ),
    "graphserve_stage_time_seconds": Metric("counter", "exact sum of the time spent in a stage", ("stage",)),
    "graphserve_failed_attempts": Metric(
        "counter",
        "calls of encoders and decoders that failed, then tried again or given up",
        ("part", "kind"),
    ),
    "graphserve_media_fetches": Metric("counter", "pieces of media fetched", ("source",)),
    "graphserve_media_bytes": Metric("counter", "bytes of the media that were fetched", ("source",)),
    "graphserve_media_fetch_seconds": Metric(
        "histogram", "time to have one piece of media", ("source",), SECONDS
    ),
    "graphserve_media_rejects": Metric(
        "counter", "pieces of media refused, by error code and status", ("where", "reason", "status")
    ),
    "graphserve_embedding_cache_lookups": Metric(
        "counter", "lookups: hit, miss, or shared with an encode under way", ("outcome",)
    ),
    "graphserve_embedding_cache_evictions": Metric("counter", "embeddings that made room for others"),
    "graphserve_embedding_cache_bytes": Metric("gauge", "bytes of the embeddings kept now"),
}
"""Fed by each Ingress replica."""


class Instruments:
    """The metrics of one table as Ray's objects."""

    def __init__(self, table: Mapping[str, Metric]) -> None:
        self._made: dict[str, Any] = {name: _instrument(name, metric) for name, metric in table.items()}

    def count(self, name: str, value: float = 1, **labels: str) -> None:
        """Increase a counter; nothing for 0."""
        if value > 0:
            self._made[name].inc(value, tags=labels)

    def set(self, name: str, value: float, **labels: str) -> None:
        """Set a gauge."""
        self._made[name].set(value, tags=labels)

    def observe(self, name: str, value: float, **labels: str) -> None:
        """Add to a histogram. Clocks that step backwards count as 0."""
        self._made[name].observe(max(value, 0.0), tags=labels)


def _instrument(name: str, metric: Metric) -> Any:
    if metric.kind == "histogram":
        return serve_metrics.Histogram(
            name, description=metric.meaning, boundaries=list(metric.bounds), tag_keys=metric.labels
        )
    kind = serve_metrics.Counter if metric.kind == "counter" else serve_metrics.Gauge
    return kind(name, description=metric.meaning, tag_keys=metric.labels)


MISSES = {f"{reason}_misses": reason for reason in MISS_REASONS}
COUNTED = {
    "graph_hits": "graphserve_graph_hits",
    "tokens_replayed": "graphserve_graph_tokens_replayed",
    "tokens_padded": "graphserve_graph_tokens_padded",
    "capture_failures": "graphserve_graph_capture_failures",
    "replay_failures": "graphserve_graph_replay_failures",
}


class ControllerMetrics:
    """Feeds ``OF_CONTROLLER`` with what each report has more than the one before of the same start."""

    def __init__(self, encoders: Iterable[str]) -> None:
        self.instruments = Instruments(OF_CONTROLLER)
        self.shapes = {encoder: ShapeNames() for encoder in encoders}
        self.last: dict[str, ReplicaReport] = {}

    def reported(self, starts: Iterable[ReplicaReport], living: Iterable[ReplicaReport]) -> None:
        """Take in the last report of every start that is remembered, and of those that live."""
        starts = tuple(starts)
        for report in starts:
            if report is not self.last.get(report.start_id):
                self._grown(self.last.get(report.start_id), report)
        self.last = {report.start_id: report for report in starts}
        self._gauges(tuple(living))

    def recycled(self, encoder: str, cause: str) -> None:
        """One replica was ordered to leave."""
        self.instruments.count("graphserve_encoder_recycles", encoder=encoder, cause=cause)

    def _grown(self, before: ReplicaReport | None, now: ReplicaReport) -> None:
        grown = growth(before, now)
        for name, count in grown.stats.items():
            if name in MISSES:
                self.instruments.count(
                    "graphserve_graph_misses", count, encoder=now.encoder, reason=MISSES[name]
                )
            elif name in COUNTED:
                self.instruments.count(COUNTED[name], count, encoder=now.encoder)
        names = self.shapes.setdefault(now.encoder, ShapeNames())
        names.add(grown.items)
        for (key, hit), count in grown.items.items():
            outcome = "hit" if hit else "miss"
            self.instruments.count(
                "graphserve_shape_items", count, encoder=now.encoder, shape=names.name(key), outcome=outcome
            )

    def _gauges(self, living: tuple[ReplicaReport, ...]) -> None:
        for encoder in self.shapes:
            mine = [report for report in living if report.encoder == encoder]
            held = sum(report.stats.num_graphs for report in mine)
            leaked = sum(report.leaked_bytes for report in mine)
            self.instruments.set("graphserve_graphs_held", held, encoder=encoder)
            self.instruments.set("graphserve_graph_leaked_bytes", leaked, encoder=encoder)
            for state in ReplicaState:
                count = sum(report.state == state.value for report in mine)
                self.instruments.set("graphserve_encoder_replicas", count, encoder=encoder, state=state.value)


class IngressMetrics:
    """Feeds ``OF_INGRESS``: a few calls a request, none a token."""

    def __init__(self) -> None:
        self.instruments = Instruments(OF_INGRESS)
        self._cache: dict[str, int] = {}

    def encoded(self, receipt: EncodeReceipt, call_s: float) -> None:
        """One encode, by its receipt; what the call took beyond its stages is the transfer."""
        stages = {
            "preprocess": receipt.preprocess_s,
            "queue": receipt.queue_s,
            "encode": receipt.encode_s,
        }
        stages["transfer"] = call_s - sum(stages.values())
        for stage, seconds in stages.items():
            self.instruments.observe(
                "graphserve_encode_stage_seconds",
                seconds,
                encoder=receipt.encoder,
                stage=stage,
                outcome=receipt.outcome,
            )
            self.spent(stage, seconds)
        self.instruments.observe("graphserve_encode_batch_size", receipt.batch_size, encoder=receipt.encoder)

    def handed_over(self, seconds: float, media: str) -> None:
        """One request reached a decoder and its answer began to come back."""
        self.instruments.observe("graphserve_handover_seconds", seconds, media=media)
        self.spent("handover", seconds)

    def spent(self, stage: str, seconds: float) -> None:
        """Add to the exact sum of a stage."""
        self.instruments.count("graphserve_stage_time_seconds", max(seconds, 0.0), stage=stage)

    def attempt_failed(self, part: str, kind: str) -> None:
        """One call of an encoder or decoder failed."""
        self.instruments.count("graphserve_failed_attempts", part=part, kind=kind)

    def fetched(self, source: str, size_bytes: int, seconds: float) -> None:
        """One piece of media is there."""
        self.instruments.count("graphserve_media_fetches", source=source)
        self.instruments.count("graphserve_media_bytes", size_bytes, source=source)
        self.instruments.observe("graphserve_media_fetch_seconds", seconds, source=source)
        self.spent("fetch", seconds)

    def rejected(self, where: str, reason: str, status: int) -> None:
        """One piece of media was refused: when it was fetched, or by an encoder."""
        self.instruments.count("graphserve_media_rejects", where=where, reason=reason, status=str(status))

    def ended(self, status: int, media: str, latency_s: float, first_token_s: float | None) -> None:
        """One chat request ended. Latencies are counted of those that were answered."""
        self.instruments.count("graphserve_requests", status=str(status), media=media)
        if status >= 400:
            return
        self.instruments.observe("graphserve_request_seconds", latency_s, media=media)
        if first_token_s is not None:
            self.instruments.observe("graphserve_first_token_seconds", first_token_s, media=media)

    def looked(self, in_hand: int, cache: Any) -> None:
        """Once a period: what is in hand, and what the embedding cache (its ``CacheCounts``) has done."""
        self.instruments.set("graphserve_requests_in_hand", in_hand)
        self.instruments.set("graphserve_embedding_cache_bytes", cache.bytes)
        lookups = {"hit": cache.hits, "miss": cache.misses, "shared": cache.shared}
        for outcome, count in lookups.items():
            self.instruments.count(
                "graphserve_embedding_cache_lookups", self._more(outcome, count), outcome=outcome
            )
        self.instruments.count(
            "graphserve_embedding_cache_evictions", self._more("evictions", cache.evictions)
        )

    def _more(self, name: str, count: int) -> int:
        more = count - self._cache.get(name, 0)
        self._cache[name] = count
        return more
