"""CPU workers beside an encoder: bytes to encoder inputs, several at once, off every other thread.

Workers are spawned, never forked (the replica has threads and maybe a CUDA context), and end with
the replica even when that is killed: each watches the pipe that its parent holds.
"""

import asyncio
import logging
import multiprocessing
import os
import threading
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import connection
from typing import Any

from deployments.encoders.shared_slots import SharedSlots, Stored
from deployments.errors import ClientError, TransientError
from deployments.families.base import EncoderInputs, Family, Preprocessor
from deployments.upstream.encoder_model import EncoderModelSpec
from policies.limits import MediaLimits

logger = logging.getLogger("ray.serve")

START_TIMEOUT_S = 180.0
"""Longest start of all workers, imports and processor included."""
SLOTS_WAITING = 24
"""Prepared items whose arrays may lie in shared memory until they are encoded; more come through the pipe."""


@dataclass(frozen=True)
class PoolOptions:
    """How many workers, how long one item may take, what an item may hold."""

    workers: int
    item_timeout_s: float
    limits: MediaLimits


class PreprocessPool:
    """A pool of worker processes that is made again when one of them dies or hangs.

    An item is handed over only when a worker is free, so that its time limit measures the item and not
    the queue, and it is watched to its end even when its caller has gone.
    """

    def __init__(
        self,
        family: Family,
        encoder: str,
        spec: EncoderModelSpec,
        options: PoolOptions,
        make_work: "MakeWork | None" = None,
    ) -> None:
        self._initargs = (make_work or upstream_work, family, encoder, spec, options.limits)
        self._options = options
        self._free = asyncio.Semaphore(options.workers)
        self.spent_s = 0.0  # by all workers on items
        self._slots, self._executor = self._make()
        self._warm: asyncio.Task[None] | None = None
        self.preprocessing = "unknown"  # until warm: "fast" or "checkpoint", as the family decides

    def _make(self) -> tuple[SharedSlots, ProcessPoolExecutor]:
        slots = SharedSlots(self._options.workers + SLOTS_WAITING)
        executor = ProcessPoolExecutor(
            max_workers=self._options.workers,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_start_worker,
            initargs=(slots, *self._initargs),
        )
        return slots, executor

    async def warm(self) -> None:
        """Return when every worker has loaded its processor. Raises when one cannot."""
        if self._warm is None:
            self._warm = asyncio.create_task(self._start_workers(self._executor), name="preprocess-warm")
        await asyncio.shield(self._warm)

    async def _start_workers(self, executor: ProcessPoolExecutor) -> None:
        loop = asyncio.get_running_loop()
        started: dict[int, tuple[str, str]] = {}
        async with asyncio.timeout(START_TIMEOUT_S):
            while len(started) < self._options.workers:
                jobs = [loop.run_in_executor(executor, _ping) for _ in range(self._options.workers)]
                started.update(await asyncio.gather(*jobs))
        self.preprocessing, why = min(started.values())  # "checkpoint" if that is so in any worker
        logger.info("preprocessing: %s%s", self.preprocessing, f", for {why}" if why else "")

    async def run(self, data: bytes) -> EncoderInputs:
        """Prepare one item.

        Raises:
            ClientError: the media is bad, or took longer than the item's time limit.
            TransientError: the worker died; the item may be tried elsewhere.
        """
        await self._free.acquire()
        item = asyncio.create_task(self._prepare(data), name="preprocess-item")
        item.add_done_callback(self._done)
        return await asyncio.shield(item)

    def _done(self, item: "asyncio.Task[EncoderInputs]") -> None:
        self._free.release()
        if not item.cancelled():
            item.exception()  # looked at, for the caller may have gone

    async def _prepare(self, data: bytes) -> EncoderInputs:
        executor = self._executor
        try:
            await self.warm()  # after the workers were replaced, the next item waits for the new ones
            slots, executor = self._slots, self._executor
            slot = slots.take()
            job = asyncio.wrap_future(executor.submit(_prepare, data, slot))
        except (BrokenProcessPool, RuntimeError, TimeoutError):
            self._replace(executor)
            raise TransientError("no preprocessing worker could be started") from None
        begun = time.monotonic()
        try:
            prepared = await asyncio.wait_for(job, self._options.item_timeout_s)
        except TimeoutError:
            self._replace(executor)
            raise ClientError(
                f"preparing this part took longer than {self._options.item_timeout_s:g} s",
                code="media_timeout",
            ) from None
        except BrokenProcessPool:
            self._replace(executor)
            raise TransientError("a preprocessing worker died") from None
        except Exception:
            slots.give(slot)
            raise
        finally:
            self.spent_s += time.monotonic() - begun
        if isinstance(prepared, Stored):
            return slots.loaded(prepared)
        slots.give(slot)
        return prepared

    def _replace(self, executor: ProcessPoolExecutor) -> None:
        """End these workers, whatever they are at, and have new ones started."""
        if executor is not self._executor:
            return  # another item's failure already did
        logger.warning("preprocessing workers are started anew")
        workers = list((executor._processes or {}).values())
        self._slots, self._executor = self._make()
        self._warm = None
        executor.shutdown(wait=False, cancel_futures=False)
        for worker in workers:
            worker.kill()

    def close(self) -> None:
        """End the workers."""
        self._executor.shutdown(wait=False, cancel_futures=True)


Work = Callable[[bytes], EncoderInputs]
MakeWork = Callable[[Family, str, EncoderModelSpec, MediaLimits], Work]

_work: Work | None = None
_slots: SharedSlots | None = None


class MediaWork:
    """What a worker does with an item: decode it within the limits, prepare it as the family does."""

    def __init__(self, decode: Callable[[bytes], Any], preprocess: Preprocessor) -> None:
        self.decode = decode
        self.preprocess = preprocess
        self.preprocessing = str(getattr(preprocess, "preprocessing", "checkpoint"))
        self.why = str(getattr(preprocess, "why", ""))

    def __call__(self, data: bytes) -> EncoderInputs:
        medium = self.decode(data)
        try:
            return self.preprocess(medium)
        except ClientError:
            raise
        except Exception as error:  # readable, and yet the checkpoint's processor cannot take it
            raise ClientError(
                f"this part cannot be prepared for the model: {type(error).__name__}",
                code="media_invalid",
                detail=traceback.format_exc(),
            ) from error


def upstream_work(family: Family, encoder: str, spec: EncoderModelSpec, limits: MediaLimits) -> Work:
    """The work on real media, with everything loaded that it needs."""
    import torch

    from deployments.encoders import media_decode
    from deployments.upstream.encoder_model import encoder_config

    torch.set_num_threads(1)
    preprocess = family.preprocessor(encoder, encoder_config(spec))
    return MediaWork(media_decode.decoder(spec.modality, limits), preprocess)


def _start_worker(slots: SharedSlots, make_work: MakeWork, *args: Any) -> None:
    global _slots, _work
    threading.Thread(target=_end_with_parent, daemon=True, name="end-with-parent").start()
    _slots, _work = slots, make_work(*args)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        connection.wait([parent.sentinel])
    os._exit(0)


def _ping() -> tuple[int, tuple[str, str]]:
    time.sleep(0.02)  # long enough that the others get theirs
    return os.getpid(), (getattr(_work, "preprocessing", "checkpoint"), getattr(_work, "why", ""))


def _prepare(data: bytes, slot: int | None) -> EncoderInputs | Stored:
    assert _work is not None
    assert _slots is not None
    return _slots.store(slot, _work(data))
