"""Who feeds which metric with what. Ray's objects are replaced by a ledger."""

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from app.embedding_cache import CacheCounts
from app.http_errors import HttpError
from app.request_watch import RequestWatch
from deployments import metrics
from deployments.messages import EncodeReceipt
from deployments.metrics import OF_CONTROLLER, OF_INGRESS, ControllerMetrics, IngressMetrics
from policies.stats import GraphStats, ReplicaReport

REPORT = ReplicaReport("r1", "s1", "VisionEncoder", "vision", "cuda:0", "n1", "ready", True, 1.0)
RECEIPT = EncodeReceipt("u", "vision", "r1", "4x4", 64, 256, "hit", 2, 0.1, 0.02, 0.03)

Ledger = Counter[tuple[str, ...]]


@pytest.fixture
def ledger(monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """What was counted, by metric and the values of its labels; a gauge holds its last value."""
    kept: Ledger = Counter()

    class Kept:
        def __init__(
            self, name: str, description: str, tag_keys: tuple[str, ...], boundaries: Any = None
        ) -> None:
            self.name, self.keys = name, tag_keys
            assert description

        def key(self, tags: dict[str, str]) -> tuple[str, ...]:
            assert set(tags) == set(self.keys), (self.name, tags)
            return (self.name.removeprefix("graphserve_"), *(tags[key] for key in self.keys))

        def inc(self, value: float, tags: dict[str, str]) -> None:
            assert value > 0
            kept[self.key(tags)] += value  # type: ignore[assignment]

        def set(self, value: float, tags: dict[str, str]) -> None:
            kept[self.key(tags)] = value  # type: ignore[assignment]

        def observe(self, value: float, tags: dict[str, str]) -> None:
            assert value >= 0
            kept[self.key(tags)] += 1

    for kind in ("Counter", "Gauge", "Histogram"):
        monkeypatch.setattr(metrics.serve_metrics, kind, Kept)
    return kept


def test_reports_are_counted_once(ledger: Ledger) -> None:
    """The same report again adds nothing, the next adds what is more, another start all of its own."""
    fed = ControllerMetrics(["vision", "audio"])
    first = replace(REPORT, stats=GraphStats(graph_hits=3, graph_misses=1, warmup_misses=1, num_graphs=1))
    for _ in range(2):
        fed.reported([first], [first])
    later = replace(first, stats=GraphStats(graph_hits=5, graph_misses=1, warmup_misses=1, num_graphs=2))
    other = replace(first, start_id="s2", replica_id="r2", state="failed", leaked_bytes=7)
    fed.reported([later, other], [later, other])
    assert ledger["graph_hits", "vision"] == 5 + 3
    assert ledger["graph_misses", "vision", "warmup"] == 1 + 1
    assert ledger["graphs_held", "vision"] == 3
    assert ledger["graph_leaked_bytes", "vision"] == 7
    assert (
        ledger["encoder_replicas", "vision", "ready"] == ledger["encoder_replicas", "vision", "failed"] == 1
    )


def test_gauges_fall_when_replicas_go(ledger: Ledger) -> None:
    """A replica that is gone leaves its counts and no graphs; a state that nobody is in is 0, not absent."""
    fed = ControllerMetrics(["vision", "audio"])
    report = replace(REPORT, stats=GraphStats(graph_hits=3, num_graphs=1))
    fed.reported([report], [report])
    fed.reported([report], [])
    assert ledger["graph_hits", "vision"] == 3
    assert ledger["graphs_held", "vision"] == 0
    assert ledger["encoder_replicas", "vision", "ready"] == 0
    assert ("encoder_replicas", "audio", "failed") in ledger


def test_items_by_shape(ledger: Ledger) -> None:
    """Items are counted under the name of their shape and whether they ran in a graph."""
    fed = ControllerMetrics(["vision"])
    report = replace(REPORT, calls_by_media_key=(("4x4", 5), ("8x8", 1)), hits_by_media_key=(("4x4", 4),))
    fed.reported([report], [report])
    assert ledger["shape_items", "vision", "4x4", "hit"] == 4
    assert ledger["shape_items", "vision", "4x4", "miss"] == 1
    assert ledger["shape_items", "vision", "8x8", "miss"] == 1


def test_an_encode_is_its_stages_and_the_rest_is_transfer(ledger: Ledger) -> None:
    """The stages sum up to the whole call; one that seems shorter than its stages has no transfer."""
    fed = IngressMetrics()
    fed.encoded(RECEIPT, 0.2)
    fed.encoded(RECEIPT, 0.1)
    sums = {key[1]: value for key, value in ledger.items() if key[0] == "stage_time_seconds"}
    assert sums == pytest.approx({"preprocess": 0.2, "queue": 0.04, "encode": 0.06, "transfer": 0.05})
    assert ledger["encode_stage_seconds", "vision", "transfer", "hit"] == 2
    assert ledger["encode_batch_size", "vision"] == 2


def test_the_cache_is_counted_by_differences(ledger: Ledger) -> None:
    """Cumulative counts are looked at once a period and never counted twice."""
    fed, counts = IngressMetrics(), CacheCounts(hits=2, misses=3, evictions=1, bytes=100)
    fed.looked(4, counts)
    fed.looked(4, counts)
    fed.looked(0, replace(counts, hits=5, shared=1, bytes=50))
    assert ledger["embedding_cache_lookups", "hit"] == 5
    assert ledger["embedding_cache_lookups", "miss"] == 3
    assert ledger["embedding_cache_lookups", "shared"] == 1
    assert ledger["embedding_cache_evictions",] == 1
    assert (ledger["embedding_cache_bytes",], ledger["requests_in_hand",]) == (50, 0)


def test_a_request_is_counted_once_with_what_became_of_it(ledger: Ledger) -> None:
    """Answered, streamed, refused, broken or gone: one count each, and latencies of the answered alone."""
    watch = RequestWatch(IngressMetrics())
    for streaming in (False, True):
        request = watch.begin()
        watch.answered(request, 200, "vision", streaming=streaming)
        watch.ended(request)
    for error in (HttpError(429, "no"), ValueError(), None):
        request = watch.begin()
        if error is not None:
            request.failed(error)
        watch.ended(request)
    assert ledger["requests", "200", "vision"] == 2
    assert [ledger["requests", status, "none"] for status in ("429", "500", "499")] == [1, 1, 1]
    assert ledger["request_seconds", "vision"] == 2
    assert ledger["first_token_seconds", "vision"] == 1
    traffic = watch.traffic()
    assert (traffic.in_hand, traffic.ok, traffic.refused, traffic.failed) == (0, 2, 2, 1)


def test_the_table_is_complete() -> None:
    """Histograms have bounds and nothing else has, names are ours, and labels are none of Serve's own."""
    for name, metric in {**OF_CONTROLLER, **OF_INGRESS}.items():
        assert name.startswith("graphserve_")
        assert bool(metric.bounds) == (metric.kind == "histogram")
        assert list(metric.bounds) == sorted(metric.bounds)
        assert not {"application", "deployment", "replica", "route"} & set(metric.labels)
    assert not set(OF_CONTROLLER) & set(OF_INGRESS)
