"""What was counted between two reports, and which shapes have a name of their own in the metrics.

Metrics only increase and their labels are bounded; reports start at zero with every replica and name any
number of shapes.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from policies.stats import COUNTERS, ReplicaReport

OTHER = "other"  # the name that the less used shapes share


@dataclass(frozen=True, slots=True)
class Growth:
    """Counts that came since the report before; none is negative."""

    encoder: str
    stats: Mapping[str, int]  # by the names of GraphStats
    items: Mapping[tuple[str, bool], int]  # by media key and whether it ran in a graph


def growth(before: ReplicaReport | None, now: ReplicaReport) -> Growth:
    """What one start counted between two of its reports; all of it where there was none before."""
    stats = {
        name: getattr(now.stats, name) - (getattr(before.stats, name) if before else 0) for name in COUNTERS
    }
    calls = _difference(now.calls_by_media_key, before.calls_by_media_key if before else ())
    hits = _difference(now.hits_by_media_key, before.hits_by_media_key if before else ())
    items = {(key, True): hits.get(key, 0) for key in calls}
    items |= {(key, False): calls[key] - hits.get(key, 0) for key in calls}
    return Growth(
        now.encoder,
        {name: count for name, count in stats.items() if count > 0},
        {key: count for key, count in items.items() if count > 0},
    )


def _difference(now: Iterable[tuple[str, int]], before: Iterable[tuple[str, int]]) -> dict[str, int]:
    """By how much each count grew. One that is smaller was forgotten by its replica and begun anew."""
    held = dict(before)
    grown = {key: count - held.get(key, 0) if count >= held.get(key, 0) else count for key, count in now}
    return {key: count for key, count in grown.items() if count > 0}


@dataclass(slots=True)
class ShapeNames:
    """Gives the ``most`` used shapes of an encoder a name of their own, all others share ``other``.

    A name once given stays, for its counter must not fall; so that what is in use may change, four times
    ``most`` names are given at most.
    """

    most: int = 16
    uses: Counter[str] = field(default_factory=Counter)
    named: set[str] = field(default_factory=set)

    def add(self, items: Mapping[tuple[str, bool], int]) -> None:
        """Take in uses of shapes, and name those that are now among the most used."""
        for (key, _), count in items.items():
            self.uses[key] += count
        for key, _ in self.uses.most_common(self.most):
            if len(self.named) < 4 * self.most:
                self.named.add(key)
        if len(self.uses) > 64 * self.most:
            self.uses = Counter(dict(self.uses.most_common(32 * self.most)))

    def name(self, key: str) -> str:
        """The label of a shape."""
        return key if key in self.named else OTHER
