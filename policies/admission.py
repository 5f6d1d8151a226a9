"""Which calls may run in an encoder graph, and how every call is counted. No torch, no clock.

The order of the reasons is fixed: ineligible, (hit), capacity, warm-up, memory. A call is counted
once, under the first that applies, so the misses add up to ``graph_misses``.
"""

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, replace
from enum import Enum

from policies.graph_options import BudgetOptions, GraphOptions, OptionError, budget_options, graph_options
from policies.stats import GraphStats

__all__ = [
    "Admission",
    "BudgetOptions",
    "CallFacts",
    "Decision",
    "GraphOptions",
    "OptionError",
    "budget_options",
    "count",
    "graph_options",
    "ineligible_reason",
    "memory_allows",
]


class Decision(Enum):
    """What to do with one call; all but REPLAY and CAPTURE run eagerly, counted as misses."""

    INELIGIBLE = "ineligible"
    REPLAY = "replay"
    CAPACITY = "capacity"
    WARMUP = "warmup"
    MEMORY = "memory"
    CAPTURE = "capture"


@dataclass(frozen=True, slots=True)
class CallFacts:
    """What decides whether a call could run in a graph at all, read off once per call."""

    enabled: bool = True
    batch_size: int = 1
    devices: frozenset[str] = frozenset({"cuda:0"})  # of the tensor inputs, as torch spells them
    grad_enabled: bool = False
    autocast: bool = False
    capturing: bool = False


def ineligible_reason(facts: CallFacts, graph_batch_sizes: tuple[int, ...]) -> str | None:
    """Why this call may neither replay nor capture, or None when it may."""
    if not facts.enabled:
        return "graphs are disabled"
    if not facts.devices:
        return "no tensor input"
    if len(facts.devices) > 1:
        return "inputs on several devices"
    if not all(device.startswith("cuda") for device in facts.devices):
        return "inputs not on a CUDA device"
    if facts.grad_enabled:
        return "grad is enabled"
    if facts.autocast:
        return "autocast is on"
    if facts.capturing:
        return "the stream is already capturing"
    if facts.batch_size not in graph_batch_sizes:
        return f"batch size {facts.batch_size} is not among {list(graph_batch_sizes)}"
    return None


def memory_allows(free_bytes: int, min_free_bytes: int) -> bool:
    """Whether a new capture may start; a guard, not a reservation. A floor of 0 checks nothing."""
    return min_free_bytes == 0 or free_bytes >= min_free_bytes


class Admission:
    """Slots and call history of one adapter. Keys stay for good once captured; nothing is evicted."""

    def __init__(self, max_graphs: int, min_capture_calls: int) -> None:
        self.max_graphs = max_graphs
        self.min_capture_calls = min_capture_calls
        self._captured: set[Hashable] = set()
        self._calls: OrderedDict[Hashable, int] = OrderedDict()

    @property
    def history_limit(self) -> int:
        """Most keys whose calls are remembered; the one not called for longest falls out."""
        return 4 * self.max_graphs

    @property
    def remembered(self) -> tuple[Hashable, ...]:
        """Keys in the history, the one that falls out next first."""
        return tuple(self._calls)

    def decide(self, key: Hashable) -> Decision:
        """Count one eligible call of ``key`` and say what to do with it; never MEMORY."""
        if key in self._captured:
            return Decision.REPLAY
        if len(self._captured) >= self.max_graphs:
            self._calls.clear()  # nothing can be captured any more: no history to keep
            return Decision.CAPACITY
        self._calls[key] = self._calls.get(key, 0) + 1
        self._calls.move_to_end(key)
        if len(self._calls) > self.history_limit:
            self._calls.popitem(last=False)
        return Decision.CAPTURE if self._calls[key] >= self.min_capture_calls else Decision.WARMUP

    def captured(self, key: Hashable) -> None:
        """Give ``key`` a slot for good."""
        if len(self._captured) >= self.max_graphs:
            raise ValueError(f"all {self.max_graphs} slots are taken")
        self._captured.add(key)
        self._calls.pop(key, None)


_MISS = {
    Decision.INELIGIBLE: "ineligible_misses",
    Decision.CAPACITY: "capacity_misses",
    Decision.WARMUP: "warmup_misses",
    Decision.MEMORY: "memory_misses",
}


def count(stats: GraphStats, decision: Decision, *, units: int = 1, tokens: int = 0) -> GraphStats:
    """Book ``units`` of finished work under its one decision; a capturing call is a hit."""
    if decision in _MISS:
        name = _MISS[decision]
        return replace(stats, graph_misses=stats.graph_misses + units, **{name: getattr(stats, name) + units})
    return replace(
        stats,
        graph_hits=stats.graph_hits + units,
        tokens_replayed=stats.tokens_replayed + tokens,
        num_graphs=stats.num_graphs + (decision is Decision.CAPTURE),
    )
