"""Encoder-graph statistics and replica reports as frozen values that merge by addition.

One schema serves both kinds of graph adapter. Counters are per adapter since its start;
a restarted replica starts at zero under a new ``start_id``.
"""

from dataclasses import dataclass, field, fields
from typing import Any

UNKNOWN_KEY = "unknown"  # the media key of a piece of media whose header does not say its shape

COUNTERS = (
    "graph_hits",
    "graph_misses",
    "num_graphs",
    "ineligible_misses",
    "capacity_misses",
    "warmup_misses",
    "memory_misses",
    "capture_failures",
    "replay_failures",
    "tokens_replayed",
    "tokens_padded",
)


@dataclass(frozen=True, slots=True)
class GraphStats:
    """Cumulative counts of one adapter; ``unit`` says what one count is (``calls`` or ``items``).

    ``graph_misses`` is the sum of the four miss reasons. Token counts are encoder output tokens.
    """

    graph_hits: int = 0
    graph_misses: int = 0
    num_graphs: int = 0
    ineligible_misses: int = 0
    capacity_misses: int = 0
    warmup_misses: int = 0
    memory_misses: int = 0
    capture_failures: int = 0
    replay_failures: int = 0
    tokens_replayed: int = 0
    tokens_padded: int = 0
    unit: str = "calls"

    @property
    def hit_rate(self) -> float:
        """Share of counted work that ran in a graph; 0.0 when nothing ran."""
        total = self.graph_hits + self.graph_misses
        return self.graph_hits / total if total else 0.0

    def merge(self, other: "GraphStats") -> "GraphStats":
        """Add two disjoint sets of counts. Raises ValueError when their units differ."""
        if self.unit != other.unit:
            raise ValueError(f"cannot add counts of {self.unit} and of {other.unit}")
        sums = {name: getattr(self, name) + getattr(other, name) for name in COUNTERS}
        return GraphStats(**sums, unit=self.unit)

    def as_dict(self) -> dict[str, Any]:
        """The public JSON form, ``hit_rate`` included."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {**values, "hit_rate": self.hit_rate}


MISS_REASONS = ("ineligible", "capacity", "warmup", "memory")


def miss_reason(before: GraphStats, after: GraphStats) -> str:
    """Why calls between two looks at one adapter ran eagerly: the reasons joined by "+"; "" when none did."""
    grown = (r for r in MISS_REASONS if getattr(after, f"{r}_misses") > getattr(before, f"{r}_misses"))
    return "+".join(grown)


@dataclass(frozen=True, slots=True)
class ReplicaReport:
    """What one encoder replica says of itself at ``taken_at_s`` (its own wall clock, seconds)."""

    replica_id: str
    start_id: str
    deployment: str
    encoder: str
    device: str
    node_id: str
    state: str
    graphs_enabled: bool
    taken_at_s: float
    captured: tuple[str, ...] = ()
    captured_media: tuple[str, ...] = ()  # media keys that run in graphs, as requests are routed by them
    modules_loaded: tuple[str, ...] = ()
    preprocessing: str = "unknown"  # "fast" or "checkpoint" once its workers are warm
    hits_by_graph: tuple[tuple[str, int], ...] = ()
    calls_by_media_key: tuple[tuple[str, int], ...] = ()
    hits_by_media_key: tuple[tuple[str, int], ...] = ()  # those of the calls that ran in a graph
    leaked_bytes: int = 0
    failure: str | None = None
    stats: GraphStats = field(default_factory=GraphStats)
    stalled_s: float = 0.0  # how long the work in hand has made no progress; 0.0 when idle
    queued_s: float = 0.0  # the work in hand, in seconds of this replica
    seconds_per_token: float = 0.0  # its own pace lately; 0.0 until it has finished something
    warmup_failed: bool = False  # the failure came before the replica was ever ready
