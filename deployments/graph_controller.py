"""Collects every encoder replica's report, decides by policy, and has replicas replaced.

Collect, snapshot, decide, enact: one pass a period, and one at once when a replica fails.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ray import serve

from deployments import serve_view
from deployments.metrics import ControllerMetrics
from policies.lifecycle import ReplicaState
from policies.recycling import Recycle, RecyclingPolicy, Refusal, Snapshot, decide, start_orders
from policies.recycling_history import OperatorRequest, ReplicaView
from policies.stats import ReplicaReport
from policies.totals import ClusterState, Totals, cluster_report, shape_rows
from policies.traffic import Traffic

logger = logging.getLogger("ray.serve")

KEPT_REFUSALS = 100


@dataclass(frozen=True)
class ControllerOptions:
    """What the controller watches: deployment to (encoder, unit of its counts), and how it decides."""

    encoders: Mapping[str, tuple[str, str]]
    warm_graphs: Mapping[str, int]
    warm_keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    policy: RecyclingPolicy = field(default_factory=RecyclingPolicy)
    period_s: float = 1.0


@serve.deployment(
    name="GraphController",
    health_check_period_s=1,
    health_check_timeout_s=10,
    max_ongoing_requests=256,
    ray_actor_options={"num_cpus": 0},
)
class GraphController:
    """One replica. Restarted, it counts anew from the living replicas."""

    def __init__(self, options: ControllerOptions) -> None:
        self.options = options
        units = dict(options.encoders.values())
        self.state = ClusterState(Totals.begin(time.time(), units))
        self.requests: dict[str, OperatorRequest] = {}
        self.app_name = serve.get_replica_context().app_name
        self.handles: dict[str, Any] = {}
        self.decoders: list[dict[str, Any]] = []
        self.traffic: list[Traffic] = []
        self.deployments: list[dict[str, Any]] = []
        self.metrics = ControllerMetrics(encoder for encoder, _ in options.encoders.values())
        self._loop_task: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()

    async def check_health(self) -> None:
        """Start the supervising loop inside the event loop; a loop that ended is a failed controller."""
        if self._loop_task is None:
            self._loop_task = asyncio.get_running_loop().create_task(self._supervise(), name="supervise")
        elif self._loop_task.done():
            self._loop_task.result()
            raise RuntimeError("the supervising loop ended")

    async def _supervise(self) -> None:
        while True:
            try:
                await self.step()
            except Exception:  # one bad pass must not end supervision; the next pass looks again
                logger.exception("a pass of the controller failed")
            await asyncio.sleep(self.options.period_s)

    async def step(self) -> None:
        """One pass."""
        await self._act(*await self._collect())

    async def _act(self, reports: tuple[ReplicaReport, ...], alive: set[str] | None) -> None:
        async with self._lock:
            now_s = time.time()
            snapshot = self._snapshot(reports, alive, now_s)
            decisions = decide(snapshot, now_s, self.options.policy)
            recycles = self._record(decisions, now_s)
        await self._enact(recycles)

    # ---- collect ----

    async def _collect(self) -> tuple[tuple[ReplicaReport, ...], set[str] | None]:
        """Reports of all that answer, and the ids of all that exist (None when Serve does not say)."""
        asked = [self._ask(name, "graph_report") for name in self.options.encoders]
        self.decoders, self.traffic, *answers = await asyncio.gather(
            self._ask("Decoder", "decoder_report"), self._ask("Ingress", "traffic_report"), *asked
        )
        reports = tuple(r for answer in answers for r in answer)
        return reports, await asyncio.to_thread(self._alive)

    async def _ask(self, deployment: str, method: str) -> list[Any]:
        try:
            answers = (
                await self._handle(deployment)
                .broadcast(method)
                .results_async(timeout_s=self.options.period_s * 5, return_exceptions=True)
            )
        except Exception as error:  # a deployment with no running replica has nothing to say
            logger.debug("no reports from %s: %s", deployment, error)
            return []
        return [answer for answer in answers if not isinstance(answer, Exception)]

    def _handle(self, deployment: str) -> Any:
        if deployment not in self.handles:
            self.handles[deployment] = serve.get_deployment_handle(deployment, self.app_name)
        return self.handles[deployment]

    def _alive(self) -> set[str] | None:
        try:
            self.deployments = serve_view.deployments(self.app_name)
        except Exception as error:  # Serve's controller restarts: nobody is declared gone meanwhile
            logger.warning("cannot list replicas: %s", error)
            return None
        encoders = (known for known in self.deployments if known["name"] in self.options.encoders)
        return {replica["replica_id"] for known in encoders for replica in known["replicas"]}

    # ---- snapshot ----

    def _snapshot(self, reports: tuple[ReplicaReport, ...], alive: set[str] | None, now_s: float) -> Snapshot:
        totals = self.state.totals
        for report in reports:
            totals = totals.with_report(report, now_s)
        if alive is not None:
            totals = totals.with_alive(alive | {r.replica_id for r in reports}, now_s)
        views = tuple(ReplicaView.of(seen.report, seen.first_seen_s) for seen in totals.living())
        policy = self.options.policy
        history = self.state.history.observed(reports, now_s)
        history = history.settled(views, now_s, policy.replacement_timeout_s)
        history = history.pruned(now_s, keep_s=2 * max(policy.window_s, policy.capture_window_s))
        self.state = ClusterState(totals, history, self.state.refusals)
        self.metrics.reported(
            (seen.report for seen in totals.starts.values()), (seen.report for seen in totals.living())
        )
        return Snapshot(views, history, tuple(self.requests.values()))

    # ---- decide ----

    def _record(self, decisions: tuple[Recycle | Refusal, ...], now_s: float) -> list[Recycle]:
        """Write decisions down before they are carried out, so that no second look repeats them."""
        history, refusals = self.state.history, list(self.state.refusals)
        last = {refusal.replica_id: refusal.reason for refusal, _ in refusals}
        recycles = []
        for decision in decisions:
            if isinstance(decision, Recycle):
                logger.warning("recycling %s: %s", decision.replica_id, decision.reason)
                history = history.with_recycle(
                    decision.replica_id, decision.deployment, decision.reason, now_s
                )
                self.requests.pop(decision.replica_id, None)
                encoder, _ = self.options.encoders[decision.deployment]
                self.metrics.recycled(encoder, decision.cause)
                recycles.append(decision)
            elif last.get(decision.replica_id) != decision.reason:
                logger.warning("not recycling %s: %s", decision.replica_id, decision.reason)
                refusals.append((decision, now_s))
        self.state = ClusterState(self.state.totals, history, tuple(refusals[-KEPT_REFUSALS:]))
        return recycles

    # ---- enact ----

    async def _enact(self, recycles: list[Recycle]) -> None:
        for recycle in recycles:
            try:
                await asyncio.wait_for(
                    self._handle(recycle.deployment)
                    .broadcast("leave_if_you_are", recycle.replica_id, recycle.reason)
                    .results_async(timeout_s=2, return_exceptions=True),
                    5,
                )
            except Exception as error:  # one that exits at once cannot answer
                logger.info("telling %s to leave: %r", recycle.replica_id, error)

    # ---- what others call ----

    async def cluster_report(self) -> dict[str, Any]:
        """The JSON of ``GET /v1/graphs``."""
        return {**cluster_report(self.state, time.time()), "decoders": self.decoders}

    async def status_report(self) -> dict[str, Any]:
        """The JSON of ``GET /v1/status``: deployments in Serve's words, traffic of all Ingress replicas that
        answered the last time, and coverage by shape.
        """
        traffic = Traffic()
        for each in self.traffic:
            traffic = traffic.merge(each)
        totals = self.state.totals
        captured = {seen.report.encoder: set[str]() for seen in totals.living()}
        for seen in totals.living():
            captured[seen.report.encoder].update(seen.report.captured_media)
        return {
            "now": time.time(),
            "deployments": self.deployments,
            "traffic": {"ingresses": len(self.traffic), **traffic.summary()},
            "shapes": {
                encoder: shape_rows(totals.shapes(encoder), captured.get(encoder, ()))
                for encoder, _ in self.options.encoders.values()
            },
        }

    async def start_orders(self, deployment: str) -> dict[str, Any]:
        """How a starting replica of ``deployment`` is to begin: ``graphs_enabled``, ``warm_keys``."""
        calls = self.state.totals.calls_by_media_key(deployment)
        orders = start_orders(
            self.state.history,
            deployment,
            time.time(),
            policy=self.options.policy,
            calls_by_media_key=calls or dict.fromkeys(self.options.warm_keys.get(deployment, ()), 1),
            warm_graphs=self.options.warm_graphs.get(deployment, 0),
            held=self._held(deployment),
        )
        logger.info("start orders for %s: %s", deployment, orders)
        return {"graphs_enabled": orders.graphs_enabled, "warm_keys": list(orders.warm_keys)}

    def _held(self, deployment: str) -> set[str]:
        """Media keys that a living replica of this deployment has a graph for."""
        living = (seen.report for seen in self.state.totals.living())
        return {key for report in living if report.deployment == deployment for key in report.captured_media}

    async def replica_failed(self, report: ReplicaReport) -> None:
        """A replica declares itself failed: decide at once instead of at the next period.

        The answer comes before the deed, for a replica takes a late answer for a dead controller.
        """
        logger.error("replica %s says it failed: %s", report.replica_id, report.failure)
        task = asyncio.get_running_loop().create_task(self._act((report,), None), name="replica-failed")
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the controller could not act on a failed replica", exc_info=error)

    async def request_recycle(self, replica_id: str, reason: str) -> dict[str, str]:
        """Ask for one replica to be replaced by hand; the policy decides when."""
        known = {seen.report.replica_id: seen.report for seen in self.state.totals.living()}
        if replica_id not in known:
            return {"replica_id": replica_id, "status": "unknown"}
        if known[replica_id].state == ReplicaState.FAILED.value:
            return {"replica_id": replica_id, "status": "failed already; it is being replaced"}
        self.requests[replica_id] = OperatorRequest(replica_id, reason, time.time())
        await self.step()
        waiting = replica_id in self.requests
        return {"replica_id": replica_id, "status": "waiting" if waiting else "recycling"}
