"""Cluster totals that never go backwards, and the ``GET /v1/graphs`` report made from them.

Reports are kept by ``start_id``: a restarted replica is a new start and adds to what the old one
counted. A start that is gone keeps its last counts; after ``KEEP_GONE_S`` they are folded into one
sum per encoder, so that memory does not grow with the number of restarts.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from policies.recycling import Refusal
from policies.recycling_history import RecyclingHistory
from policies.stats import COUNTERS, GraphStats, ReplicaReport

KEEP_GONE_S = 3600.0
STALE_AFTER_S = 5.0
SHOWN_SHAPES = 16


@dataclass(frozen=True, slots=True)
class Seen:
    """The last report of one start, when the first and the last came (the controller's clock)."""

    report: ReplicaReport
    first_seen_s: float
    received_at_s: float
    gone_at_s: float | None = None


@dataclass(frozen=True, slots=True)
class Totals:
    """All that was counted since ``counting_since_s``. Every method returns a new value."""

    counting_since_s: float
    starts: Mapping[str, Seen] = field(default_factory=dict)
    folded: Mapping[str, GraphStats] = field(default_factory=dict)

    @classmethod
    def begin(cls, now_s: float, units: Mapping[str, str]) -> "Totals":
        """Nothing counted yet. ``units`` names every encoder of the app and what it counts in."""
        return cls(now_s, {}, {encoder: GraphStats(unit=unit) for encoder, unit in units.items()})

    def with_report(self, report: ReplicaReport, now_s: float) -> "Totals":
        """Take in a report. One older than what is held of its start changes nothing; a start that
        was given up and speaks again is counted once.

        Raises ValueError when its unit is not that of its encoder.
        """
        unit = self._unit(report.encoder)
        if unit is not None and unit != report.stats.unit:
            raise ValueError(f"{report.encoder} is counted in {unit}, not in {report.stats.unit}")
        held = self.starts.get(report.start_id)
        if held is None:
            seen = Seen(report, now_s, now_s)
        elif report.taken_at_s < held.report.taken_at_s:
            return self
        else:
            report = replace(report, stats=_at_least(report.stats, held.report.stats))
            seen = Seen(report, held.first_seen_s, now_s)
        return replace(self, starts={**self.starts, report.start_id: seen})

    def with_alive(self, replica_ids: Collection[str], now_s: float) -> "Totals":
        """Mark the starts of replicas that no longer exist; fold those that are gone for long.

        A replica that merely does not answer belongs in ``replica_ids``: it is stale, not gone.
        """
        starts: dict[str, Seen] = {}
        folded = dict(self.folded)
        for start_id, seen in self.starts.items():
            if seen.gone_at_s is None:
                gone = self._is_gone(seen, replica_ids)
                starts[start_id] = replace(seen, gone_at_s=now_s) if gone else seen
            elif now_s - seen.gone_at_s < KEEP_GONE_S:
                starts[start_id] = seen
            else:
                _add(folded, seen.report)
        return replace(self, starts=starts, folded=folded)

    def per_encoder(self) -> dict[str, GraphStats]:
        """Sums over every start since ``counting_since_s``, by encoder."""
        sums = dict(self.folded)
        for seen in self.starts.values():
            _add(sums, seen.report)
        return sums

    def living(self) -> tuple[Seen, ...]:
        """The last word of every replica that exists, by deployment and replica id."""
        alive = (seen for seen in self.starts.values() if seen.gone_at_s is None)
        return tuple(sorted(alive, key=lambda s: (s.report.deployment, s.report.replica_id)))

    def shapes(self, encoder: str) -> dict[str, tuple[int, int]]:
        """Calls and hits by media key, over the living and the recently gone."""
        calls, hits = Counter[str](), Counter[str]()
        for seen in self.starts.values():
            if seen.report.encoder == encoder:
                calls.update(dict(seen.report.calls_by_media_key))
                hits.update(dict(seen.report.hits_by_media_key))
        return {key: (count, hits[key]) for key, count in calls.items()}

    def calls_by_media_key(self, deployment: str) -> dict[str, int]:
        """How often each media key was asked for, over the living and the recently gone."""
        calls: Counter[str] = Counter()
        for seen in self.starts.values():
            if seen.report.deployment == deployment:
                calls.update(dict(seen.report.calls_by_media_key))
        return dict(calls)

    def _unit(self, encoder: str) -> str | None:
        if encoder in self.folded:
            return self.folded[encoder].unit
        units = (s.report.stats.unit for s in self.starts.values() if s.report.encoder == encoder)
        return next(units, None)

    def _is_gone(self, seen: Seen, replica_ids: Collection[str]) -> bool:
        """Whether its replica left, or began anew under the same id."""
        report = seen.report
        if report.replica_id not in replica_ids:
            return True
        same = (s for s in self.starts.values() if s.report.replica_id == report.replica_id)
        return any(other.first_seen_s > seen.first_seen_s for other in same)


def _add(sums: dict[str, GraphStats], report: ReplicaReport) -> None:
    held = sums.get(report.encoder)
    sums[report.encoder] = report.stats if held is None else held.merge(report.stats)


def _at_least(new: GraphStats, old: GraphStats) -> GraphStats:
    return replace(new, **{name: max(getattr(new, name), getattr(old, name)) for name in COUNTERS})


@dataclass(frozen=True, slots=True)
class ClusterState:
    """What the controller knows and reports."""

    totals: Totals
    history: RecyclingHistory = field(default_factory=RecyclingHistory)
    refusals: tuple[tuple[Refusal, float], ...] = ()  # with the time of each, oldest first


def cluster_report(
    state: ClusterState, now_s: float, *, stale_after_s: float = STALE_AFTER_S
) -> dict[str, Any]:
    """The JSON of ``GET /v1/graphs``."""
    totals = state.totals.per_encoder()
    return {
        "totals": {encoder: stats.as_dict() for encoder, stats in totals.items()},
        "counting_since": state.totals.counting_since_s,
        "replicas": [_replica(seen, now_s, stale_after_s) for seen in state.totals.living()],
        "recycles": [
            {
                "replica_id": record.replica_id,
                "replacement": record.replacement,
                "reason": record.reason,
                "requested_at": record.requested_at_s,
                "ready_at": record.ready_at_s,
            }
            for record in state.history.recycles
        ],
        "refusals": [
            {"replica_id": refusal.replica_id, "reason": refusal.reason, "at": at_s}
            for refusal, at_s in state.refusals
        ],
    }


def _replica(seen: Seen, now_s: float, stale_after_s: float) -> dict[str, Any]:
    """One line of the report; its age is by the controller's clock alone, for clocks differ by node."""
    report = seen.report
    hits = dict(report.hits_by_media_key)
    age_s = max(now_s - seen.received_at_s, 0.0)
    return {
        "replica_id": report.replica_id,
        "start_id": report.start_id,
        "deployment": report.deployment,
        "encoder": report.encoder,
        "device": report.device,
        "node_id": report.node_id,
        "state": report.state,
        "graphs_enabled": report.graphs_enabled,
        "captured": list(report.captured),
        "age_s": age_s,
        "stale": age_s > stale_after_s,
        "modules_loaded": list(report.modules_loaded),
        "preprocessing": report.preprocessing,
        "hits_by_graph": dict(report.hits_by_graph),
        "shapes": shape_rows(
            {key: (calls, hits.get(key, 0)) for key, calls in report.calls_by_media_key},
            report.captured_media,
        ),
        "leaked_bytes": report.leaked_bytes,
        "queued_s": report.queued_s,
        "seconds_per_token": report.seconds_per_token,
        "stats": report.stats.as_dict(),
    }


def shape_rows(
    shapes: Mapping[str, tuple[int, int]], captured: Collection[str], most: int = SHOWN_SHAPES
) -> list[dict[str, Any]]:
    """The most used shapes first: media key, items, how many of them ran in a graph, whether one is held."""
    ranked = sorted(shapes.items(), key=lambda entry: (-entry[1][0], entry[0]))
    return [
        {"shape": key, "calls": calls, "hits": hits, "captured": key in captured}
        for key, (calls, hits) in ranked[:most]
    ]
