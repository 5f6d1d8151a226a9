"""The recycling policy, case by case. Needs nothing."""

from dataclasses import replace

import pytest

from policies.lifecycle import ReplicaState as S
from policies.recycling import (
    Recycle,
    RecyclingPolicy,
    Refusal,
    Snapshot,
    decide,
    graphs_allowed,
    start_orders,
)
from policies.recycling_history import (
    CaptureFailure,
    GraphsOverride,
    OperatorRequest,
    RecyclingHistory,
    ReplicaView,
)
from policies.stats import GraphStats, ReplicaReport

POLICY = RecyclingPolicy(
    window_s=600.0,
    max_recycles_per_window=3,
    first_delay_s=10.0,
    delay_growth=3.0,
    max_delay_s=60.0,
    capture_window_s=1000.0,
    capture_failures_to_disable=2,
    stuck_after_s=30.0,
    replacement_timeout_s=300.0,
)
V = "VisionEncoder"
READY = ReplicaView("a", "a-1", V, S.READY, first_seen_s=0.0)
FAILED = replace(READY, state=S.FAILED, failure="capture broke")
NONE = RecyclingHistory()


def closed(*times_s: float, deployment: str = V) -> RecyclingHistory:
    """A history of recycles at these times whose replacements came one second later."""
    history = NONE
    for index, at_s in enumerate(times_s):
        history = history.with_recycle(f"old{index}", deployment, "test", at_s)
        new = ReplicaView(f"new{index}", f"new{index}-1", deployment, S.READY, first_seen_s=at_s + 1)
        history = history.settled([new], at_s + 1, POLICY.replacement_timeout_s)
    return history


def failures(*times_s: float, during_warmup: bool = False) -> RecyclingHistory:
    history = NONE
    for at_s in times_s:
        history = history.with_capture_failure(CaptureFailure(V, f"start@{at_s}", at_s, during_warmup))
    return history


CASES = {
    "a ready replica is left alone": (READY, NONE, None),
    "a warming replica is left alone": (replace(READY, state=S.WARMING), NONE, None),
    "an error that passed is no cause": (replace(READY, failure="one bad batch"), NONE, None),
    "slow work is no cause": (replace(READY, stalled_s=29.9), NONE, None),
    "a failed replica goes": (FAILED, NONE, "failed for good: capture broke"),
    "a stuck replica goes": (replace(READY, stalled_s=30.0), NONE, "stuck"),
    "a replica stuck in its warm-up goes": (replace(READY, state=S.WARMING, stalled_s=31.0), NONE, "stuck"),
    "a draining replica leaves by itself": (replace(READY, state=S.DRAINING, stalled_s=99.0), NONE, None),
    "the delay after the last recycle has passed": (FAILED, closed(989.0), "failed for good"),
    "recycles of long ago do not count": (FAILED, closed(10.0, 100.0, 399.0), "failed for good"),
    "another deployment's recycles do not count": (
        FAILED,
        closed(990.0, 995.0, 998.0, deployment="AudioEncoder"),
        "failed for good",
    ),
}


@pytest.mark.parametrize(("view", "history", "cause"), CASES.values(), ids=CASES.keys())
def test_who_is_recycled(view: ReplicaView, history: RecyclingHistory, cause: str | None) -> None:
    """A replica is recycled exactly when it is failed or proven stuck and the bounds allow it."""
    decisions = decide(Snapshot((view,), history), 1000.0, POLICY)
    if cause is None:
        assert decisions == ()
    else:
        (decision,) = decisions
        assert isinstance(decision, Recycle)
        assert decision.replica_id == "a"
        assert decision.reason.startswith(cause)


REFUSALS = {
    "a recycle of the deployment is under way": (NONE.with_recycle("b", V, "test", 900.0), "another", None),
    "its own recycle is under way": (NONE.with_recycle("a", V, "test", 900.0), "already", None),
    "the bound of the window is reached": (closed(500.0, 600.0, 700.0), "3 recycles", 100.0),
    "the delay runs": (closed(995.0), "waits", 5.0),
    "the delay grows": (closed(900.0, 980.0), "waits", 10.0),
}


@pytest.mark.parametrize(("history", "reason", "retry_after_s"), REFUSALS.values(), ids=REFUSALS.keys())
def test_a_failed_replica_is_refused(
    history: RecyclingHistory, reason: str, retry_after_s: float | None
) -> None:
    """A failed replica waits while a bound forbids its recycle, and is told why and for how long."""
    (decision,) = decide(Snapshot((FAILED,), history), 1000.0, POLICY)
    assert isinstance(decision, Refusal)
    assert reason in decision.reason
    assert decision.retry_after_s == (None if retry_after_s is None else pytest.approx(retry_after_s))


def test_a_refusal_expires_when_it_said() -> None:
    """After ``retry_after_s`` the same snapshot is decided the other way."""
    for history in (closed(500.0, 600.0, 700.0), closed(995.0)):
        (refusal,) = decide(Snapshot((FAILED,), history), 1000.0, POLICY)
        assert isinstance(refusal, Refusal)
        assert refusal.retry_after_s is not None
        (later,) = decide(Snapshot((FAILED,), history), 1000.0 + refusal.retry_after_s, POLICY)
        assert isinstance(later, Recycle)


def test_of_two_failed_replicas_one_goes() -> None:
    """Two failed replicas of one deployment get one Recycle and one Refusal; a third deployment its own."""
    audio = replace(FAILED, replica_id="c", deployment="AudioEncoder")
    snapshot = Snapshot((replace(FAILED, replica_id="b", first_seen_s=5.0), FAILED, audio))
    decisions = decide(snapshot, 1000.0, POLICY)
    assert [d.replica_id for d in decisions if isinstance(d, Recycle)] == ["c", "a"]
    assert [d.replica_id for d in decisions if isinstance(d, Refusal)] == ["b"]


def test_failed_goes_before_stuck_before_asked() -> None:
    """When several have cause, the one that can do no work at all goes first."""
    stuck = replace(READY, replica_id="b", stalled_s=99.0)
    asked = replace(READY, replica_id="c")
    failed = replace(FAILED, replica_id="d", first_seen_s=50.0)
    request = OperatorRequest("c", "try it", 1.0)
    for views, first in (((asked, stuck, failed), "d"), ((asked, stuck), "b"), ((asked,), "c")):
        decisions = decide(Snapshot(views, NONE, (request,)), 1000.0, POLICY)
        assert [d.replica_id for d in decisions if isinstance(d, Recycle)] == [first]
        assert len(decisions) == len(views)


def test_an_operator_recycles_a_healthy_replica_without_delay_but_within_bounds() -> None:
    """A request of the operator skips the delay, not the bound nor the one at a time."""
    request = OperatorRequest("a", "driver update", 1000.0)
    (decision,) = decide(Snapshot((READY,), closed(995.0), (request,)), 1000.0, POLICY)
    assert decision == Recycle("a", V, "asked for by the operator: driver update", True, "asked")
    for history in (closed(990.0, 995.0, 998.0), NONE.with_recycle("b", V, "test", 990.0)):
        (decision,) = decide(Snapshot((READY,), history, (request,)), 1000.0, POLICY)
        assert isinstance(decision, Refusal)


def test_a_request_for_nobody_is_refused() -> None:
    """A request that names no replica, or one that is leaving, is answered with the reason."""
    requests = (OperatorRequest("ghost", "x", 1.0), OperatorRequest("a", "x", 1.0))
    decisions = decide(Snapshot((replace(READY, state=S.DRAINING),), NONE, requests), 2.0, POLICY)
    assert decisions == (Refusal("ghost", "no such encoder replica"), Refusal("a", "is already leaving"))


def test_refusals_read_the_same_at_every_look() -> None:
    """The reason of a refusal does not change with the clock, so that a log can drop repeats."""
    snapshot = Snapshot((FAILED,), closed(995.0))
    assert len({d.reason for now in (996.0, 998.5, 1004.0) for d in decide(snapshot, now, POLICY)}) == 1


GRAPHS = {
    "no failures": (NONE, 0.0, True),
    "fewer than k": (failures(100.0), 101.0, True),
    "k in a window": (failures(100.0, 900.0), 901.0, False),
    "still within the window after the k-th": (failures(100.0, 900.0), 1899.0, False),
    "the window has passed": (failures(100.0, 900.0), 1900.0, True),
    "k, but too far apart": (failures(100.0, 1200.0), 1201.0, True),
    "one in warm-up is enough": (failures(100.0, during_warmup=True), 101.0, False),
    "one in warm-up is forgiven too": (failures(100.0, during_warmup=True), 1100.0, True),
    "the operator says no": (NONE.with_override(GraphsOverride(V, False, 5.0)), 99999.0, False),
    "the operator forgives": (
        failures(100.0, 200.0).with_override(GraphsOverride(V, True, 300.0)),
        301.0,
        True,
    ),
    "failures after forgiveness count": (
        failures(100.0, 400.0, 500.0).with_override(GraphsOverride(V, True, 300.0)),
        501.0,
        False,
    ),
    "only the operator's last word counts": (
        NONE.with_override(GraphsOverride(V, False, 5.0)).with_override(GraphsOverride(V, True, 6.0)),
        7.0,
        True,
    ),
    "another deployment's failures": (
        failures(1.0).with_capture_failure(CaptureFailure("AudioEncoder", "x", 2.0, True)),
        3.0,
        True,
    ),
}


@pytest.mark.parametrize(("history", "now_s", "allowed"), GRAPHS.values(), ids=GRAPHS.keys())
def test_when_graphs_are_allowed(history: RecyclingHistory, now_s: float, allowed: bool) -> None:
    """Graphs are off after k failed captures in a window until it passes or the operator speaks."""
    assert graphs_allowed(history, V, now_s, POLICY)[0] is allowed
    (decision,) = decide(Snapshot((FAILED,), history), now_s, POLICY)
    assert isinstance(decision, Recycle)
    assert decision.graphs_enabled is allowed


def test_one_start_fails_once() -> None:
    """The same failure told by many reports counts once, and warm-up is remembered."""
    report = ReplicaReport("a", "a-1", V, "vision", "cuda:0", "n", "failed", True, 0.0)
    report = replace(report, stats=GraphStats(capture_failures=1))
    history = NONE
    for now_s in (10.0, 11.0, 12.0):
        history = history.observed([report], now_s)
    assert history.capture_failures == (CaptureFailure(V, "a-1", 10.0, False),)
    history = history.observed([replace(report, warmup_failed=True)], 13.0)
    assert history.capture_failures == (CaptureFailure(V, "a-1", 10.0, True),)


def orders(history: RecyclingHistory = NONE, **kwargs: object) -> tuple[bool, tuple[str, ...]]:
    calls = {"448x448": 9, "32x32": 50, "unknown": 70, "64x16": 9, "1x1": 0}
    given = {"policy": POLICY, "calls_by_media_key": calls, "warm_graphs": 2, **kwargs}
    result = start_orders(history, V, 1000.0, **given)  # type: ignore[arg-type]
    return result.graphs_enabled, result.warm_keys


def test_what_a_start_is_told() -> None:
    """A start warms the most used keys, never the unknown one, keys that nobody holds first."""
    assert orders() == (True, ("32x32", "448x448"))
    assert orders(warm_graphs=9) == (True, ("32x32", "448x448", "64x16"))
    assert orders(held={"32x32"}) == (True, ("448x448", "64x16"))
    assert orders(held={"32x32", "64x16"}) == (True, ("448x448", "32x32"))
    assert orders(warm_graphs=0) == (True, ())


def test_a_failed_warm_up_disables_graphs_on_the_very_next_start() -> None:
    """One capture that fails during warm-up is enough, for Serve allows few starts."""
    assert orders(failures(999.0, during_warmup=True)) == (False, ())


def test_a_recycle_ends_when_its_replacement_is_ready() -> None:
    """A recycle is under way until a replica first seen after it is ready, and names that one."""
    history = NONE.with_recycle("a", V, "test", 10.0)
    old = replace(READY, replica_id="b", first_seen_s=9.0)
    new = replace(READY, replica_id="n", first_seen_s=12.0, state=S.WARMING)
    assert history.settled([FAILED, old, new], 13.0, 300.0).under_way(V)
    settled = history.settled([old, replace(new, state=S.READY)], 20.0, 300.0)
    assert not settled.under_way(V)
    assert (settled.recycles[0].replacement, settled.recycles[0].ready_at_s) == ("n", 20.0)


def test_a_replacement_that_fails_itself_ends_the_recycle_and_may_be_recycled() -> None:
    """A failed replacement does not block its own recycle: the first one ends without ready time."""
    new = replace(FAILED, replica_id="n", first_seen_s=12.0)
    settled = NONE.with_recycle("a", V, "test", 10.0).settled([new], 20.0, 300.0)
    assert (settled.recycles[0].replacement, settled.recycles[0].ready_at_s) == ("n", None)
    (decision,) = decide(Snapshot((new,), settled), 20.0, POLICY)
    assert isinstance(decision, Recycle)


def test_a_replacement_that_never_comes_does_not_block_for_ever() -> None:
    """After the time limit a recycle ends, so that other failed replicas get their turn."""
    history = NONE.with_recycle("a", V, "test", 10.0)
    assert history.settled([], 309.9, 300.0).under_way(V)
    assert not history.settled([], 310.0, 300.0).under_way(V)


def test_pruning_keeps_what_decisions_need() -> None:
    """Memory is bounded, what is under way stays, and the last recycles can still be shown."""
    history = closed(*[float(t) for t in range(0, 1000, 10)]).with_recycle("x", V, "test", 5.0)
    history = history.with_capture_failure(CaptureFailure(V, "s", 1.0))
    pruned = history.pruned(10_000.0, keep_s=2000.0, keep_recycles=20)
    assert len(pruned.recycles) == 20
    assert pruned.under_way(V)
    assert pruned.capture_failures == ()
    assert history.pruned(1000.0, keep_s=2000.0, keep_recycles=0) == history


@pytest.mark.parametrize(
    "wrong",
    [
        {"window_s": 0.0},
        {"max_recycles_per_window": 0},
        {"capture_failures_to_disable": 0},
        {"delay_growth": 0.5},
        {"first_delay_s": 61.0, "max_delay_s": 60.0},
    ],
)
def test_bounds_that_bound_nothing_are_errors(wrong: dict[str, float]) -> None:
    """A policy whose bounds make no sense is refused when it is made."""
    with pytest.raises(ValueError):
        RecyclingPolicy(**wrong)  # type: ignore[arg-type]
