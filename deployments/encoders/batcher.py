"""The queue before an encoder's GPU thread: one batch at a time, each of one exact shape."""

import asyncio
import collections
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

from deployments.errors import TerminalError, TransientError
from deployments.families.base import EncoderInputs
from policies.batching import BatchingPolicy, Take, Waiting, next_batch
from policies.stats import miss_reason

logger = logging.getLogger("ray.serve")

COUNTED_KEYS = 256
"""Media keys whose use is counted; the least used of more is forgotten."""
ONE_MORE_AFTER = 16
"""After so many batches of one size in a row the next larger one may run, whatever those took: most of that
may be what any batch takes once, and only a larger one shows it."""


@dataclass(frozen=True)
class Done:
    """One encoded item: its embedding (tokens, hidden) on the CPU, and what became of it on the way."""

    tensor: Any
    hit: bool
    batch_size: int
    queue_s: float
    encode_s: float
    miss_reason: str  # why calls of its batch ran eagerly, "" when all ran in graphs


@dataclass
class _Job:
    inputs: EncoderInputs
    done: "asyncio.Future[Done]"
    request_id: str
    queued_at_s: float = field(default_factory=time.monotonic)


class Batcher:
    """Feeds the GPU thread. ``failed`` is awaited once the engine is terminal, after the batch was told."""

    def __init__(
        self,
        worker: Executor,
        engine: Any,
        replica_id: str,
        policy: BatchingPolicy,
        failed: Callable[[BaseException], Awaitable[None]],
        graph_sizes: Sequence[int] = (),
        max_graphs: int = 0,
    ) -> None:
        self.worker = worker
        self.engine = engine
        self.replica_id = replica_id
        self.policy = policy
        self.failed = failed
        self.graph_sizes = tuple(graph_sizes)
        self.max_graphs = max_graphs
        self.queue: collections.deque[_Job] = collections.deque()
        self.running_since_s: float | None = None
        self.media_keys: collections.Counter[str] = collections.Counter()
        self.media_hits: collections.Counter[str] = collections.Counter()
        self.captured_media: dict[str, None] = dict.fromkeys(engine.warmed)
        self.hit_sizes: dict[str, set[int]] = {}  # by shape, how many ran together in graphs
        self.ineligible: dict[str, int] = {}  # by shape, from how many together they get no graph
        self.item_s: dict[str, float] = {}  # by shape, what an item took of late
        self.same_size: dict[str, tuple[int, int]] = {}  # by shape, the last batch's, and how often in a row
        self._wake = asyncio.Event()

    def submit(self, inputs: EncoderInputs, request_id: str = "") -> "asyncio.Future[Done]":
        """Queue one item; its future ends with the embedding, a TransientError or a TerminalError."""
        job = _Job(inputs, asyncio.get_running_loop().create_future(), request_id)
        self.queue.append(job)
        self._wake.set()
        return job.done

    def refuse_all(self, reason: str) -> None:
        """End everything that waits."""
        while self.queue:
            self._refuse(self.queue.popleft(), reason)

    @property
    def free_slots(self) -> int:
        """Graphs that may still be captured."""
        return max(0, self.max_graphs - len(self.engine.captured_keys()))

    async def run(self) -> None:
        """Run batches for ever. Cancel it to stop; its end by itself is a fault."""
        while True:
            self._wake.clear()
            self._drop_cancelled()
            if not self.queue:
                await self._wake.wait()
                continue
            waiting = [Waiting(job.inputs.shape_key, job.queued_at_s) for job in self.queue]
            step = next_batch(
                waiting,
                time.monotonic(),
                policy=self.policy,
                graph_sizes=self._sizes(waiting[0].shape_key),
                item_s=self.item_s,
            )
            if isinstance(step, Take):
                await self._run_and_settle(self._take(step.indices))
            else:
                await _wait(self._wake, step.seconds)

    def _sizes(self, key: str) -> Mapping[str, Sequence[int]]:
        """Sizes to prefer: a shape without a graph runs at a size that may get one, as long as it may.

        Once captured it runs in whatever batch has formed where graphs are for one size alone: by itself it
        is replayed, and in a queue a batch moves more than replays one by one (docs/numbers.md). Where they
        are for several sizes it keeps to these: three together run eagerly beside graphs of two and four.
        """
        captured, several = key in self.captured_media, len(self.graph_sizes) > 1
        if self.free_slots and (several or not captured):
            below = min(self.ineligible.get(key, math.inf), self.policy.max_batch_size + 1)
            sizes = [size for size in self.graph_sizes if size < below]
        else:
            limit = self.policy.limit(self.item_s.get(key, 0.0))
            sizes = sorted(size for size in self.hit_sizes.get(key, ()) if several and size <= limit)
        return {key: sizes} if not captured or max(sizes, default=1) > 1 else {}

    def _drop_cancelled(self) -> None:
        if any(job.done.cancelled() for job in self.queue):
            self.queue = collections.deque(job for job in self.queue if not job.done.cancelled())

    def _take(self, indices: Sequence[int]) -> list[_Job]:
        jobs, chosen = list(self.queue), set(indices)
        self.queue = collections.deque(job for i, job in enumerate(jobs) if i not in chosen)
        return [jobs[i] for i in indices]

    async def _run_and_settle(self, batch: list[_Job]) -> None:
        try:
            await self._run(batch)
        finally:  # whatever went wrong, nobody of the batch waits for ever
            for job in batch:
                self._refuse(job, "the batch loop ended")

    async def _run(self, batch: list[_Job]) -> None:
        self.running_since_s = begun = time.monotonic()
        before = self.engine.stats()
        try:
            tensors, hit = await asyncio.get_running_loop().run_in_executor(
                self.worker, self.engine.encode, [job.inputs for job in batch]
            )
            if len(tensors) != len(batch):
                raise RuntimeError(f"{len(tensors)} embeddings of {len(batch)} items")
        except Exception as error:
            await self._batch_failed(batch, error)
            return
        finally:
            self.running_since_s = None
        encode_s = time.monotonic() - begun
        self.count(batch[0].inputs.shape_key, len(batch), hit)
        after = self.engine.stats()
        if after.num_graphs == before.num_graphs:  # what a capture takes, no later batch will
            self._learn(batch[0].inputs.shape_key, encode_s, len(batch))
        why = miss_reason(before, after)
        # An item is several slices or chunks, or there is no memory for a graph of so many.
        if why in ("ineligible", "memory") and len(batch) in self.graph_sizes:
            key = batch[0].inputs.shape_key
            self.ineligible[key] = min(len(batch), self.ineligible.get(key, len(batch)))
            _forget_oldest(self.ineligible)
        for job, tensor in zip(batch, tensors, strict=True):
            if not job.done.done():
                job.done.set_result(Done(tensor, hit, len(batch), begun - job.queued_at_s, encode_s, why))

    async def _batch_failed(self, batch: list[_Job], error: Exception) -> None:
        terminal = self.engine.failure is not None
        kind = TerminalError if terminal else TransientError
        for job in batch:
            if not job.done.done():
                job.done.set_exception(kind(f"{type(error).__name__}: {error}", self.replica_id))
        ids = [job.request_id for job in batch]  # the loop belongs to no request: its records name them
        logger.error(
            "a batch of %d items of shape %s failed, of requests %s",
            len(batch),
            batch[0].inputs.shape_key,
            ", ".join(ids),
            exc_info=error,
            extra={"request_ids": ids},
        )
        if terminal:
            await self.failed(error)

    def count(self, key: str, items: int, hit: bool) -> None:
        """Note the use of a media key, and that it runs in graphs."""
        self.media_keys[key] += items
        if len(self.media_keys) > 2 * COUNTED_KEYS:
            self.media_keys = collections.Counter(dict(self.media_keys.most_common(COUNTED_KEYS)))
            self.media_hits = collections.Counter({k: self.media_hits[k] for k in self.media_keys})
        if hit:
            self.media_hits[key] += items
            self.captured_media[key] = None
            self.hit_sizes.setdefault(key, set()).add(items)
            _forget_oldest(self.hit_sizes)

    def _learn(self, key: str, batch_s: float, items: int) -> None:
        """Half of what is known is the last batch: a first one that was slow is soon forgotten."""
        last, often = self.same_size.pop(key, (items, 0))
        often = often + 1 if last == items else 1
        item_s = (self.item_s.pop(key, batch_s / items) + batch_s / items) / 2
        if often == ONE_MORE_AFTER:
            sizes = self._sizes(key).get(key, ())
            larger = min((size for size in sizes if size > items), default=items + 1)
            item_s, often = min(item_s, self.policy.item_s_for(larger)), 0
        self.item_s[key], self.same_size[key] = item_s, (items, often)
        _forget_oldest(self.item_s)
        _forget_oldest(self.same_size)

    def _refuse(self, job: _Job, reason: str) -> None:
        if not job.done.done():
            job.done.set_exception(TerminalError(reason, self.replica_id))


def _forget_oldest(by_key: dict[str, Any]) -> None:
    while len(by_key) > COUNTED_KEYS:
        by_key.pop(next(iter(by_key)))


async def _wait(event: asyncio.Event, seconds: float) -> None:
    """Until the event, but no longer than this."""
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except TimeoutError:
        return
