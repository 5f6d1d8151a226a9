"""How many requests ended of late and how long they took: counts in a moving window that merge by addition.

Every Ingress replica keeps its own window, so a sum over the replicas that answer is the whole
server's rate, whatever was restarted meanwhile.
"""

from bisect import bisect_left
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

WINDOW_S = 60.0
BOUNDS_S = (
    0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 7.5, 10, 20, 30, 60, 120,
)  # fmt: skip
"""Upper bounds of the buckets in which durations are counted; what is longer is in one more."""


@dataclass(frozen=True, slots=True)
class Durations:
    """A histogram over ``BOUNDS_S``."""

    counts: tuple[int, ...] = (0,) * (len(BOUNDS_S) + 1)
    sum_s: float = 0.0

    @classmethod
    def of(cls, values_s: Iterable[float]) -> "Durations":
        """Count these durations."""
        counts, sum_s = [0] * (len(BOUNDS_S) + 1), 0.0
        for value_s in values_s:
            counts[bisect_left(BOUNDS_S, value_s)] += 1
            sum_s += value_s
        return cls(tuple(counts), sum_s)

    def merge(self, other: "Durations") -> "Durations":
        """Add two disjoint sets of durations."""
        return Durations(
            tuple(a + b for a, b in zip(self.counts, other.counts, strict=True)), self.sum_s + other.sum_s
        )

    def quantile_s(self, share: float) -> float | None:
        """The duration that ``share`` of all stay within, by a straight line inside its bucket as Prometheus
        draws it; None when nothing was counted. Never more than the last bound.
        """
        wanted = share * sum(self.counts)
        if not wanted:
            return None
        below, low_s = 0, 0.0
        for count, high_s in zip(self.counts, BOUNDS_S, strict=False):
            if count and below + count >= wanted:
                return low_s + (high_s - low_s) * (wanted - below) / count
            below, low_s = below + count, high_s
        return low_s

    def summary(self) -> dict[str, float | None]:
        """Mean, median and 95th percentile in seconds; None each when nothing was counted."""
        total = sum(self.counts)
        mean_s = self.sum_s / total if total else None
        return {"mean": mean_s, "p50": self.quantile_s(0.5), "p95": self.quantile_s(0.95)}


@dataclass(frozen=True, slots=True)
class Traffic:
    """Requests that ended within one window, and those in hand now."""

    in_hand: int = 0
    ok: int = 0  # below 400
    refused: int = 0  # 400 to 499, clients that went away among them
    failed: int = 0  # 500 and more
    latency: Durations = field(default_factory=Durations)
    first_token: Durations = field(default_factory=Durations)  # streamed requests only

    def merge(self, other: "Traffic") -> "Traffic":
        """Add the traffic of two Ingress replicas."""
        sums: dict[str, Any] = {}
        for name in (f.name for f in fields(self)):
            mine, theirs = getattr(self, name), getattr(other, name)
            sums[name] = mine.merge(theirs) if isinstance(mine, Durations) else mine + theirs
        return Traffic(**sums)

    def summary(self, window_s: float = WINDOW_S) -> dict[str, Any]:
        """The JSON form. Latencies are of requests that were answered, not of those refused or failed."""
        return {
            "window_s": window_s,
            "in_hand": self.in_hand,
            "requests_per_s": (self.ok + self.refused + self.failed) / window_s,
            "ok": self.ok,
            "refused": self.refused,
            "failed": self.failed,
            "latency_s": self.latency.summary(),
            "first_token_s": self.first_token.summary(),
        }


class TrafficWindow:
    """The requests that ended at one Ingress replica within the last ``window_s`` seconds."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self.window_s = window_s
        self.ended: deque[tuple[float, int, float, float | None]] = deque()

    def add(self, now_s: float, status: int, latency_s: float, first_token_s: float | None) -> None:
        """Note one request that ended."""
        self.ended.append((now_s, status, latency_s, first_token_s))
        self._forget(now_s)

    def _forget(self, now_s: float) -> None:
        while self.ended and self.ended[0][0] < now_s - self.window_s:
            self.ended.popleft()

    def traffic(self, now_s: float, in_hand: int) -> Traffic:
        """The window as counts."""
        self._forget(now_s)
        statuses = [status for _, status, _, _ in self.ended]
        ok = [entry for entry in self.ended if entry[1] < 400]
        return Traffic(
            in_hand=in_hand,
            ok=len(ok),
            refused=sum(400 <= status < 500 for status in statuses),
            failed=sum(status >= 500 for status in statuses),
            latency=Durations.of(latency_s for _, _, latency_s, _ in ok),
            first_token=Durations.of(first_s for _, _, _, first_s in ok if first_s is not None),
        )
