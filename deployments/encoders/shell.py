"""What every encoder deployment shares: a replica's life, its queue, its one GPU thread, its reports.

One thread loads the model, captures and replays graphs and runs everything else that touches the
device (contract C1). Preprocessing runs in CPU workers beside it, the event loop does neither.
"""

import asyncio
import contextlib
import logging
import os
import time
import uuid
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from deployments.encoders import receipts
from deployments.encoders.batcher import COUNTED_KEYS, Batcher
from deployments.encoders.options import EncoderOptions
from deployments.encoders.preprocess_pool import PreprocessPool
from deployments.encoders.workload import Workload
from deployments.errors import ClientError, TerminalError, TransientError
from deployments.families.base import EncoderSpec, Family
from deployments.messages import MediaItem, embedding_to_message
from deployments.serve_view import ReplicaPlace
from policies.batching import BatchingPolicy
from policies.lifecycle import Lifecycle, ReplicaState
from policies.stats import GraphStats, ReplicaReport

logger = logging.getLogger("ray.serve")


def _gpu_thread(*args: Any, **kwargs: Any) -> Any:
    """Imports torch and vLLM, so not before it is needed."""
    from deployments.encoders.gpu_thread import GpuThread

    return GpuThread(*args, **kwargs)


class EncoderShell:
    """Base of ``VisionEncoder`` and ``AudioEncoder``."""

    encoder: str  # "vision" or "audio", set by the subclass

    def __init__(
        self,
        options: EncoderOptions,
        family: Family,
        controller: Any = None,
        *,
        place: ReplicaPlace | None = None,
        pool: PreprocessPool | None = None,
        make_engine: Callable[..., Any] | None = None,
    ) -> None:
        place = place or ReplicaPlace.current()
        self.replica_id = place.replica_id
        self.deployment = place.deployment
        self.node_id = place.node_id
        self.start_id = uuid.uuid4().hex
        self.options = options
        self.family = family
        self.controller = controller
        self.spec: EncoderSpec = next(s for s in family.encoders if s.encoder == self.encoder)
        self.life = Lifecycle()
        self.graphs_enabled = bool(options.graphs.enabled)
        self.failure: str | None = None
        self.modules: tuple[str, ...] = ()
        self.pool = pool or PreprocessPool(family, self.encoder, options.spec, options.pool)
        self.make_engine = make_engine or _gpu_thread
        self.worker = ThreadPoolExecutor(1, thread_name_prefix=f"{self.encoder}-gpu")
        self.engine: Any = None
        self.batches: Batcher | None = None
        self.work = Workload(options.pool.workers)
        self._started: asyncio.Future[None] | None = None
        self._pump: asyncio.Task[None] | None = None
        self._leaving: asyncio.Task[None] | None = None
        self._failing: asyncio.Future[None] | None = None

    # ---- life ----

    def _move(self, target: ReplicaState, why: str) -> None:
        self.life = self.life.move(target, at_s=time.time(), why=why)
        logger.info("encoder replica %s is %s: %s", self.replica_id, target.value, why)

    async def _start(self) -> None:
        orders = await self._start_orders()
        self.graphs_enabled = self.graphs_enabled and orders["graphs_enabled"]
        loop = asyncio.get_running_loop()
        self._move(ReplicaState.WARMING, f"graphs {'on' if self.graphs_enabled else 'off'}")
        self.engine = self.make_engine(
            self.family, self.spec, self.options, graphs_enabled=self.graphs_enabled
        )
        workers = asyncio.ensure_future(self.pool.warm())
        try:
            self.modules = await loop.run_in_executor(self.worker, self.engine.load)
            await loop.run_in_executor(self.worker, self.engine.warm, tuple(orders["warm_keys"]))
            await workers
        except Exception as error:
            workers.cancel()
            await self._fail(error)
            raise
        self.batches = self._batcher()
        self._pump = asyncio.create_task(self.batches.run(), name=f"{self.encoder}-batches")
        self._pump.add_done_callback(self._pump_ended)
        self._move(ReplicaState.READY, "warmed")

    def _batcher(self) -> Batcher:
        graphs = self.options.graphs
        may_capture = self.graphs_enabled and self.engine.device != "cpu"
        return Batcher(
            self.worker,
            self.engine,
            self.replica_id,
            BatchingPolicy(
                self.options.max_batch_size,
                self.options.batch_wait_s,
                max_batch_s=self.options.max_batch_s,
            ),
            self._fail,
            graph_sizes=getattr(graphs, "graph_batch_sizes", ()),
            max_graphs=getattr(graphs, "max_graphs", 0) if may_capture else 0,
        )

    async def _start_orders(self) -> dict[str, Any]:
        default = {"graphs_enabled": True, "warm_keys": ()}
        if self.controller is None:
            return default
        try:
            orders: dict[str, Any] = await asyncio.wait_for(
                self.controller.start_orders.remote(self.deployment), self.options.controller_timeout_s
            )
        except Exception as error:  # a silent controller must not keep an encoder from starting
            logger.warning("no start orders from the controller (%s): starting with the defaults", error)
            return default
        return orders

    async def _fail(self, error: BaseException) -> None:
        """Enter the terminal state, refuse the queue, tell the controller; leave if it is silent."""
        self.failure = f"{type(error).__name__}: {error}"
        if self.life.state in (ReplicaState.WARMING, ReplicaState.READY):
            self._move(ReplicaState.FAILED, self.failure)
        if self.batches is not None:
            self.batches.refuse_all(self.failure)
        if self.controller is None:
            return
        try:
            await asyncio.wait_for(
                self.controller.replica_failed.remote(self.graph_report()), self.options.controller_timeout_s
            )
        except Exception as silence:
            logger.error("the controller is silent (%r): leaving by myself", silence)
            self.leave("failed, and the controller is silent")

    def _pump_ended(self, task: "asyncio.Task[None]") -> None:
        """Nobody would take what waits in the queue: the end of the loop is the end of the replica."""
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the batch loop ended", exc_info=error)
            self._failing = asyncio.ensure_future(self._fail(error))

    async def leave_if_you_are(self, replica_id: str, reason: str) -> bool:
        """Broadcast by the controller: the named replica takes no new work, finishes and exits.

        A failed or stuck replica exits at once, for it can finish nothing. Returns whether it was named.
        """
        if replica_id != self.replica_id or self._leaving is not None:
            return replica_id == self.replica_id
        self._leaving = asyncio.create_task(self._drain_and_leave(reason), name="leave")
        return True

    async def _drain_and_leave(self, reason: str) -> None:
        if self.life.state is ReplicaState.READY and not self.stuck:
            self._move(ReplicaState.DRAINING, reason)
            await asyncio.sleep(1.0)  # routers hear of it within their period; what they send is refused
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.work.idle.wait(), self.options.drain_s)
        self.leave(reason)

    def leave(self, reason: str) -> None:
        """Exit the process, so that Serve replaces the replica at its next check."""
        logger.error("encoder replica %s leaves: %s", self.replica_id, reason)
        os._exit(1)

    async def check_health(self) -> None:
        """Serve awaits this before the replica counts as running, so it starts and warms here.

        Health is real progress: a batch that runs longer than ``stuck_after_s`` is a stuck replica, which
        the controller recycles; when that is silent for as long again, Serve is told.
        """
        if self._started is None:
            self._started = asyncio.ensure_future(self._start())
        await asyncio.shield(self._started)
        if self.failure is not None:
            raise TerminalError(self.failure)
        if self.stalled_s > 2 * self.options.stuck_after_s:
            raise TerminalError(f"one batch has been running for {self.stalled_s:.0f} s")

    @property
    def stalled_s(self) -> float:
        """How long the GPU thread has been at its batch; 0.0 when idle."""
        since = self.batches.running_since_s if self.batches else None
        return 0.0 if since is None else time.monotonic() - since

    @property
    def stuck(self) -> bool:
        """Whether the GPU thread has been at one batch for too long."""
        return self.stalled_s > self.options.stuck_after_s

    # ---- work ----

    async def encode(
        self, item: MediaItem, shape_key: str = "unknown", avoid: tuple[str, ...] = ()
    ) -> AsyncIterator[Any]:
        """Encode one medium. Yields an EncodeReceipt, then the EncodedMedia; or a ClientError alone.

        All are owned by the caller. ``shape_key``, the item's media key once more, and ``avoid``, ids of
        replicas where it failed, are for the request router. Bad media is an answer, not a failure of
        this replica, so it is returned: Serve writes a stack trace for everything that is raised.

        Raises TransientError or TerminalError when this replica cannot and another may.
        """
        self._refuse_unless_ready()
        with self.work.item() as mine:
            try:
                begun = time.monotonic()
                inputs = await self.pool.run(item.data)
                mine.tokens = inputs.tokens
                preprocess_s = time.monotonic() - begun
                if self.failure is not None:
                    raise TerminalError(self.failure, self.replica_id)
                assert self.batches is not None
                submitted = time.monotonic()
                done = await self.batches.submit(inputs, item.request_id)
            except ClientError as error:
                # The encode may be shared, and then its context is no request's: who asked first is named.
                names = {"request_id": item.request_id}
                logger.info("%s refused: %s %s", item.media_key, error, error.detail, extra=names)
                yield error
                return
            self.work.finished(mine, self.pool.spent_s, done.encode_s / done.batch_size)
            message = embedding_to_message(
                done.tensor, uuid=item.uuid, encoder=self.encoder, metadata=inputs.metadata
            )
            times = receipts.Times(begun, preprocess_s, submitted)
            receipt = receipts.make(
                item, self.encoder, self.replica_id, inputs.shape_key, message, done, times
            )
            receipts.tell(item, receipt, done.miss_reason, times)
            yield receipt
            yield message

    def _refuse_unless_ready(self) -> None:
        if self.failure is not None:
            raise TerminalError(self.failure, self.replica_id)
        if not self.life.state.takes_work:
            raise TransientError(f"this replica is {self.life.state.value}", self.replica_id)

    # ---- reports ----

    def graph_report(self) -> ReplicaReport:
        """This replica's frozen report: state, modules, graphs and counts."""
        engine, batches = self.engine, self.batches
        return ReplicaReport(
            replica_id=self.replica_id,
            start_id=self.start_id,
            deployment=self.deployment,
            encoder=self.encoder,
            device=engine.device if engine else "none",
            node_id=self.node_id,
            state=self.life.state.value,
            graphs_enabled=self.graphs_enabled,
            taken_at_s=time.time(),
            captured=tuple(engine.captured_keys()) if engine else (),
            captured_media=tuple(batches.captured_media) if batches else (),
            modules_loaded=self.modules,
            preprocessing=self.pool.preprocessing,
            hits_by_graph=tuple(engine.hits_by_graph().items()) if engine else (),
            calls_by_media_key=tuple(batches.media_keys.most_common(COUNTED_KEYS)) if batches else (),
            hits_by_media_key=tuple(batches.media_hits.items()) if batches else (),
            leaked_bytes=engine.leaked_bytes if engine else 0,
            failure=self.failure,
            stats=engine.stats() if engine else GraphStats(),
            stalled_s=self.stalled_s,
            queued_s=self.work.stats()["queued_s"],
            seconds_per_token=self.work.pace.seconds_per_token,
            warmup_failed=self.failure is not None and self._pump is None,
        )

    def record_routing_stats(self) -> dict[str, Any]:
        """What the request router ranks by: state, media keys with a graph, free slots, queue."""
        batches = self.batches
        return {
            "state": self.life.state.value,
            "graphs_enabled": self.graphs_enabled,
            "captured": list(batches.captured_media) if batches else [],
            "free_slots": batches.free_slots if batches else 0,
            "queued": self.work.pending,
        }

    def record_autoscaling_stats(self) -> dict[str, float]:
        """The work in hand, and the pace of this replica, which turns it into seconds."""
        return self.work.stats()
