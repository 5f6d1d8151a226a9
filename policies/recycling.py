"""Which encoder replicas to replace, and how a replacement starts: decisions, no deeds.

Only a replica that is terminally failed, proven stuck or named by an operator is recycled; one of
a deployment at a time, a bounded number per window, with growing delay. What is under way is part
of the snapshot, so that a second look cannot pick twice.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from policies.lifecycle import ReplicaState
from policies.recycling_history import OperatorRequest, RecyclingHistory, ReplicaView
from policies.stats import UNKNOWN_KEY


@dataclass(frozen=True, slots=True)
class RecyclingPolicy:
    """The bounds. The n-th recycle of a deployment within a window waits
    ``first_delay_s * delay_growth ** (n - 2)`` after the one before it, at most ``max_delay_s``.
    """

    window_s: float = 600.0
    max_recycles_per_window: int = 6
    first_delay_s: float = 2.0
    delay_growth: float = 2.0
    max_delay_s: float = 60.0
    capture_window_s: float = 1800.0
    capture_failures_to_disable: int = 2
    stuck_after_s: float = 60.0
    replacement_timeout_s: float = 300.0

    def __post_init__(self) -> None:
        for name in ("window_s", "capture_window_s", "stuck_after_s", "replacement_timeout_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, not {getattr(self, name)}")
        for name in ("max_recycles_per_window", "capture_failures_to_disable", "delay_growth"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 0 <= self.first_delay_s <= self.max_delay_s:
            raise ValueError("first_delay_s must be between 0 and max_delay_s")

    def delay_s(self, recycles_in_window: int) -> float:
        """How long after the previous recycle the next may start; 0 for the first of a window."""
        if recycles_in_window == 0:
            return 0.0
        delay_s = self.first_delay_s
        for _ in range(recycles_in_window - 1):
            delay_s = min(delay_s * self.delay_growth, self.max_delay_s)
        return delay_s


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything a decision depends on."""

    replicas: tuple[ReplicaView, ...] = ()
    history: RecyclingHistory = field(default_factory=RecyclingHistory)
    requests: tuple[OperatorRequest, ...] = ()


@dataclass(frozen=True, slots=True)
class Recycle:
    """Replace this replica; ``graphs_enabled`` is what its replacement will be told.

    ``cause`` is ``failed``, ``stuck`` or ``asked``; ``reason`` is the same in a sentence.
    """

    replica_id: str
    deployment: str
    reason: str
    graphs_enabled: bool
    cause: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """Leave this replica for now. ``reason`` is the same text at every look, so that a log can
    drop repeats; ``retry_after_s`` says when the answer may differ, None when time alone does not help.
    """

    replica_id: str
    reason: str
    retry_after_s: float | None = None


Decision = Recycle | Refusal


@dataclass(frozen=True, slots=True)
class StartOrders:
    """How a starting replica of a deployment is to begin, and why."""

    graphs_enabled: bool
    warm_keys: tuple[str, ...]
    reason: str


class _Cause(IntEnum):
    """Why a replica may have to go, the most urgent first."""

    FAILED = 0
    STUCK = 1
    ASKED = 2


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A replica that there is cause to recycle."""

    cause: _Cause
    since_s: float
    view: ReplicaView
    reason: str


def decide(snapshot: Snapshot, now_s: float, policy: RecyclingPolicy | None = None) -> tuple[Decision, ...]:
    """What to do about every replica that is failed, stuck or named by an operator.

    At most one Recycle per deployment; every candidate that is not recycled, and every request that
    cannot be met, gets a Refusal. Replicas without cause get no entry at all.
    """
    policy = policy or RecyclingPolicy()
    known = {view.replica_id for view in snapshot.replicas}
    decisions: list[Decision] = [
        Refusal(request.replica_id, "no such encoder replica")
        for request in snapshot.requests
        if request.replica_id not in known
    ]
    by_deployment: dict[str, list[_Candidate]] = {}
    for candidate in _candidates(snapshot, policy):
        by_deployment.setdefault(candidate.view.deployment, []).append(candidate)
    for deployment in sorted(by_deployment):
        ranked = sorted(by_deployment[deployment], key=lambda c: (c.cause, c.since_s, c.view.replica_id))
        decisions.extend(_decide_deployment(ranked, deployment, snapshot.history, now_s, policy))
    return tuple(decisions)


def _candidates(snapshot: Snapshot, policy: RecyclingPolicy) -> Iterable[_Candidate]:
    asked = {request.replica_id: request for request in snapshot.requests}
    for view in snapshot.replicas:
        if view.state is ReplicaState.FAILED:
            reason = f"failed for good: {view.failure or 'no cause given'}"
            yield _Candidate(_Cause.FAILED, view.first_seen_s, view, reason)
        elif not view.state.is_leaving and view.stalled_s >= policy.stuck_after_s:
            reason = f"stuck: no progress on the work in hand for {policy.stuck_after_s:g} s"
            yield _Candidate(_Cause.STUCK, view.first_seen_s, view, reason)
        elif view.replica_id in asked:
            request = asked[view.replica_id]
            reason = f"asked for by the operator: {request.reason}"
            yield _Candidate(_Cause.ASKED, request.at_s, view, reason)


def _decide_deployment(
    ranked: list[_Candidate],
    deployment: str,
    history: RecyclingHistory,
    now_s: float,
    policy: RecyclingPolicy,
) -> Iterable[Decision]:
    """The verdict on each candidate of one deployment, in order of urgency."""
    taken = False
    for candidate in ranked:
        replica_id = candidate.view.replica_id
        refusal = _refusal(candidate, history, now_s, policy)
        if refusal is not None:
            yield refusal
        elif taken:
            yield Refusal(replica_id, "another replica of this deployment is being recycled")
        else:
            taken = True
            enabled, _ = graphs_allowed(history, deployment, now_s, policy)
            cause = candidate.cause.name.lower()
            yield Recycle(replica_id, deployment, candidate.reason, enabled, cause)


def _refusal(
    candidate: _Candidate, history: RecyclingHistory, now_s: float, policy: RecyclingPolicy
) -> Refusal | None:
    """Why this candidate may not be recycled now, or None when it may."""
    view = candidate.view
    under_way = {record.replica_id for record in history.under_way(view.deployment)}
    if view.replica_id in under_way:
        return Refusal(view.replica_id, "is already being recycled")
    if view.state in (ReplicaState.DRAINING, ReplicaState.STOPPED):
        return Refusal(view.replica_id, "is already leaving")
    if under_way:
        return Refusal(view.replica_id, "another replica of this deployment is being recycled")
    recent = history.requested_since(view.deployment, now_s - policy.window_s)
    if len(recent) >= policy.max_recycles_per_window:
        reason = f"{policy.max_recycles_per_window} recycles within {policy.window_s:g} s is the bound"
        return Refusal(view.replica_id, reason, recent[0] + policy.window_s - now_s)
    # An operator who asks has looked: only the bounds hold for them, not the delay.
    if recent and candidate.cause is not _Cause.ASKED:
        wait_s = recent[-1] + policy.delay_s(len(recent)) - now_s
        if wait_s > 0:
            return Refusal(view.replica_id, "waits for the delay after the recycle before it", wait_s)
    return None


def graphs_allowed(
    history: RecyclingHistory, deployment: str, now_s: float, policy: RecyclingPolicy
) -> tuple[bool, str]:
    """Whether a replica of this deployment that starts now may capture graphs, and why.

    A capture that failed during warm-up counts as all ``capture_failures_to_disable`` at once: a
    deployment that cannot warm has only a few starts before Serve gives it up.
    """
    override = history.latest_override(deployment)
    if override is not None and not override.graphs_enabled:
        return False, "graphs were disabled by the operator"
    since_s = override.at_s if override is not None else float("-inf")
    failures = [f for f in history.capture_failures if f.deployment == deployment and f.at_s > since_s]
    k, window_s = policy.capture_failures_to_disable, policy.capture_window_s
    times_s = sorted(f.at_s for f in failures)
    tripped_s = [f.at_s for f in failures if f.during_warmup]
    tripped_s += [
        last for first, last in zip(times_s, times_s[k - 1 :], strict=False) if last - first <= window_s
    ]
    if any(now_s < at_s + window_s for at_s in tripped_s):
        return False, f"captures failed; graphs stay disabled for {window_s:g} s"
    return True, "no cause against graphs"


def start_orders(
    history: RecyclingHistory,
    deployment: str,
    now_s: float,
    *,
    policy: RecyclingPolicy,
    calls_by_media_key: Mapping[str, int],
    warm_graphs: int,
    held: Collection[str] = (),
) -> StartOrders:
    """How a replica of ``deployment`` that starts now begins.

    Args:
        calls_by_media_key: how often the deployment was asked for each key.
        warm_graphs: most keys to warm.
        held: keys that a living replica has a graph for; they are warmed only after all others, since
            a second graph of one key takes a slot from a key that has none.
    """
    enabled, reason = graphs_allowed(history, deployment, now_s, policy)
    if not enabled:
        return StartOrders(False, (), reason)
    used = [key for key, calls in calls_by_media_key.items() if calls > 0 and key != UNKNOWN_KEY]
    ranked = sorted(used, key=lambda key: (key in held, -calls_by_media_key[key], key))
    return StartOrders(True, tuple(ranked[: max(warm_graphs, 0)]), reason)
