"""What the recycling policy looks at: replicas as seen, and what was done about them before."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from policies.lifecycle import ReplicaState
from policies.stats import ReplicaReport


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """One encoder replica as the controller sees it; times are the controller's clock.

    ``stalled_s`` is how long the work in hand has made no progress by the replica's own account
    (0.0 when idle). Silence proves nothing: an unreachable replica keeps its last view.
    """

    replica_id: str
    start_id: str
    deployment: str
    state: ReplicaState
    first_seen_s: float
    failure: str | None = None
    stalled_s: float = 0.0

    @classmethod
    def of(cls, report: ReplicaReport, first_seen_s: float) -> "ReplicaView":
        """The view of a report. Raises ValueError when its state is none of ours."""
        return cls(
            report.replica_id,
            report.start_id,
            report.deployment,
            ReplicaState(report.state),
            first_seen_s,
            report.failure,
            report.stalled_s,
        )


@dataclass(frozen=True, slots=True)
class OperatorRequest:
    """A person asked for this replica to be replaced."""

    replica_id: str
    reason: str
    at_s: float


@dataclass(frozen=True, slots=True)
class RecycleRecord:
    """One recycle that was ordered. It is under way until ``ended_at_s``; ``ready_at_s`` stays None
    when the replacement failed or did not come in time.
    """

    replica_id: str
    deployment: str
    reason: str
    requested_at_s: float
    replacement: str | None = None
    ready_at_s: float | None = None
    ended_at_s: float | None = None


@dataclass(frozen=True, slots=True)
class CaptureFailure:
    """One start whose capture failed; a start can fail only once."""

    deployment: str
    start_id: str
    at_s: float
    during_warmup: bool = False


@dataclass(frozen=True, slots=True)
class GraphsOverride:
    """An operator's word on graphs: False holds until the next word, True forgives what was before."""

    deployment: str
    graphs_enabled: bool
    at_s: float


@dataclass(frozen=True, slots=True)
class RecyclingHistory:
    """Recycles (oldest first), capture failures and operators' overrides."""

    recycles: tuple[RecycleRecord, ...] = ()
    capture_failures: tuple[CaptureFailure, ...] = ()
    overrides: tuple[GraphsOverride, ...] = ()

    def under_way(self, deployment: str) -> tuple[RecycleRecord, ...]:
        """Recycles of this deployment whose replacement is still awaited."""
        return tuple(r for r in self.recycles if r.deployment == deployment and r.ended_at_s is None)

    def requested_since(self, deployment: str, since_s: float) -> list[float]:
        """Times of this deployment's recycles after ``since_s``, oldest first."""
        return sorted(
            r.requested_at_s
            for r in self.recycles
            if r.deployment == deployment and r.requested_at_s > since_s
        )

    def latest_override(self, deployment: str) -> GraphsOverride | None:
        """The operator's last word on this deployment's graphs."""
        words = [o for o in self.overrides if o.deployment == deployment]
        return max(words, key=lambda o: o.at_s, default=None)

    def with_recycle(self, replica_id: str, deployment: str, reason: str, now_s: float) -> "RecyclingHistory":
        """Record an order before it is carried out, so that no second look repeats it."""
        record = RecycleRecord(replica_id, deployment, reason, now_s)
        return replace(self, recycles=(*self.recycles, record))

    def with_capture_failure(self, failure: CaptureFailure) -> "RecyclingHistory":
        """Record a failed capture once per start; a later account may add that it was in warm-up."""
        others = tuple(f for f in self.capture_failures if f.start_id != failure.start_id)
        known = [f for f in self.capture_failures if f.start_id == failure.start_id]
        if known:
            first = known[0]
            failure = replace(first, during_warmup=first.during_warmup or failure.during_warmup)
        return replace(self, capture_failures=(*others, failure))

    def with_override(self, override: GraphsOverride) -> "RecyclingHistory":
        """Record an operator's word; only the last one per deployment is kept."""
        others = tuple(o for o in self.overrides if o.deployment != override.deployment)
        return replace(self, overrides=(*others, override))

    def observed(self, reports: Iterable[ReplicaReport], now_s: float) -> "RecyclingHistory":
        """Record the capture failures that reports tell of."""
        history = self
        for report in reports:
            if report.stats.capture_failures > 0:
                failure = CaptureFailure(report.deployment, report.start_id, now_s, report.warmup_failed)
                history = history.with_capture_failure(failure)
        return history

    def settled(
        self, replicas: Iterable[ReplicaView], now_s: float, replacement_timeout_s: float
    ) -> "RecyclingHistory":
        """Close recycles whose replacement is ready, has failed itself, or did not come in time.

        A replacement is a replica of the deployment first seen after the order and not yet claimed.
        """
        views = sorted(replicas, key=lambda view: view.first_seen_s)
        claimed = {r.replacement for r in self.recycles}
        records = []
        for record in self.recycles:
            settled = record
            if record.ended_at_s is None:
                settled = _settle(record, views, claimed, now_s, replacement_timeout_s)
                claimed.add(settled.replacement)
            records.append(settled)
        return replace(self, recycles=tuple(records))

    def pruned(self, now_s: float, *, keep_s: float, keep_recycles: int = 50) -> "RecyclingHistory":
        """Drop what no decision within ``keep_s`` needs, but show the last ``keep_recycles``.

        ``keep_s`` must be at least twice the longest window of the policy.
        """
        since_s = now_s - keep_s
        shown_from = len(self.recycles) - keep_recycles
        kept = tuple(
            record
            for index, record in enumerate(self.recycles)
            if index >= shown_from or record.ended_at_s is None or record.requested_at_s > since_s
        )
        failures = tuple(f for f in self.capture_failures if f.at_s > since_s)
        return replace(self, recycles=kept, capture_failures=failures)


def _settle(
    record: RecycleRecord,
    views: list[ReplicaView],
    claimed: set[str | None],
    now_s: float,
    replacement_timeout_s: float,
) -> RecycleRecord:
    for view in views:
        fits = view.deployment == record.deployment and view.first_seen_s > record.requested_at_s
        if not fits or view.replica_id in claimed or view.replica_id == record.replica_id:
            continue
        if view.state is ReplicaState.READY:
            return replace(record, replacement=view.replica_id, ready_at_s=now_s, ended_at_s=now_s)
        if view.state.is_leaving:
            return replace(record, replacement=view.replica_id, ended_at_s=now_s)
    if now_s - record.requested_at_s >= replacement_timeout_s:
        return replace(record, ended_at_s=now_s)
    return record
