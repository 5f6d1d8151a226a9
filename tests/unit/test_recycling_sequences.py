"""The recycling policy against arbitrary sequences of reports. Needs nothing."""

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from policies.lifecycle import ReplicaState as S
from policies.recycling import Recycle, RecyclingPolicy, Refusal, Snapshot, decide
from policies.recycling_history import CaptureFailure, OperatorRequest, RecyclingHistory, ReplicaView

POLICY = RecyclingPolicy(
    window_s=100.0, max_recycles_per_window=3, first_delay_s=1.0, max_delay_s=8.0, stuck_after_s=10.0
)
DEPLOYMENTS = ("VisionEncoder", "AudioEncoder")
deployments = st.sampled_from(DEPLOYMENTS)
picks = st.integers(0, 50)


class RecyclingMachine(RuleBasedStateMachine):
    """No sequence of reports recycles more than the bound, two of one deployment at once, or a
    healthy replica.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1000.0
        self.views: dict[str, ReplicaView] = {}
        self.history = RecyclingHistory()
        self.requests: tuple[OperatorRequest, ...] = ()
        self.recycled: list[tuple[str, str, float]] = []
        self.born = 0

    @initialize()
    def begin(self) -> None:
        for deployment in DEPLOYMENTS * 2:
            self.start(deployment, ready=True)

    @rule(deployment=deployments, ready=st.booleans())
    def start(self, deployment: str, ready: bool) -> None:
        self.born += 1
        name = f"r{self.born}"
        state = S.READY if ready else S.WARMING
        self.views[name] = ReplicaView(name, f"{name}-1", deployment, state, self.now_s)

    def change(self, pick: int, **values: object) -> ReplicaView | None:
        if not self.views:
            return None
        name = sorted(self.views)[pick % len(self.views)]
        self.views[name] = replace(self.views[name], **values)  # type: ignore[arg-type]
        return self.views[name]

    @rule(pick=picks, state=st.sampled_from([S.READY, S.DRAINING, S.STOPPED]))
    def moves(self, pick: int, state: S) -> None:
        self.change(pick, state=state, stalled_s=0.0)

    @rule(pick=picks, during_warmup=st.booleans())
    def capture_fails(self, pick: int, during_warmup: bool) -> None:
        view = self.change(pick, state=S.FAILED, failure="capture")
        if view is not None:
            failure = CaptureFailure(view.deployment, view.start_id, self.now_s, during_warmup)
            self.history = self.history.with_capture_failure(failure)

    @rule(pick=picks, stalled_s=st.floats(0.0, 20.0))
    def stalls(self, pick: int, stalled_s: float) -> None:
        self.change(pick, stalled_s=stalled_s)

    @rule(pick=picks)
    def has_a_passing_error(self, pick: int) -> None:
        self.change(pick, failure="one bad batch")

    @rule(pick=picks)
    def vanishes(self, pick: int) -> None:
        if self.views:
            del self.views[sorted(self.views)[pick % len(self.views)]]

    @rule(pick=picks)
    def operator_asks(self, pick: int) -> None:
        name = sorted(self.views)[pick % len(self.views)] if self.views else "ghost"
        self.requests = (*self.requests, OperatorRequest(name, "by hand", self.now_s))

    @rule(elapsed_s=st.floats(0.0, 30.0))
    def time_passes(self, elapsed_s: float) -> None:
        self.now_s += elapsed_s
        self.history = self.history.settled(self.views.values(), self.now_s, POLICY.replacement_timeout_s)
        self.history = self.history.pruned(
            self.now_s, keep_s=2 * max(POLICY.window_s, POLICY.capture_window_s), keep_recycles=1
        )

    @rule(deployment=deployments, elapsed_s=st.floats(0.1, 10.0))
    def one_fails_and_is_replaced(self, deployment: str, elapsed_s: float) -> None:
        """The usual round at once, so that runs reach the bound of the window."""
        self.start(deployment, ready=True)
        self.views[f"r{self.born}"] = replace(self.views[f"r{self.born}"], state=S.FAILED)
        self.controller_looks()
        self.now_s += 0.1
        self.start(deployment, ready=True)
        self.time_passes(elapsed_s)

    @precondition(lambda self: self.views)
    @rule()
    def controller_looks(self) -> None:
        snapshot = Snapshot(tuple(self.views.values()), self.history, self.requests)
        asked = {request.replica_id for request in self.requests}
        decided = decide(snapshot, self.now_s, POLICY)
        for decision in decided:
            if isinstance(decision, Recycle):
                self.check_cause(decision, asked)
                assert not self.history.under_way(decision.deployment)
                self.history = self.history.with_recycle(
                    decision.replica_id, decision.deployment, decision.reason, self.now_s
                )
                self.recycled.append((decision.replica_id, decision.deployment, self.now_s))
        self.requests = ()
        again = decide(replace(snapshot, history=self.history, requests=()), self.now_s, POLICY)
        assert all(isinstance(d, Refusal) for d in again), "a second look picked again"
        judged = {d.replica_id for d in decided}
        failed = {name for name, view in self.views.items() if view.state is S.FAILED}
        assert failed <= judged, "a failed replica was passed over in silence"

    def check_cause(self, decision: Recycle, asked: set[str]) -> None:
        view = self.views[decision.replica_id]
        stuck = view.stalled_s >= POLICY.stuck_after_s
        assert view.state is S.FAILED or stuck or decision.replica_id in asked
        assert view.state not in (S.DRAINING, S.STOPPED)

    @invariant()
    def one_at_a_time(self) -> None:
        for deployment in DEPLOYMENTS:
            assert len(self.history.under_way(deployment)) <= 1

    @invariant()
    def bounded_in_every_window(self) -> None:
        for deployment in DEPLOYMENTS:
            times_s = [at_s for _, name, at_s in self.recycled if name == deployment]
            bound = POLICY.max_recycles_per_window
            for first, last in zip(times_s, times_s[bound:], strict=False):
                assert last - first >= POLICY.window_s


RecyclingMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)
TestRecyclingSequences = RecyclingMachine.TestCase
