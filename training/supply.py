"""Chunks of rows from worker processes, fetched by a thread: training takes what is there and never waits."""

import queue
import threading
from types import TracebackType
from typing import Self

import torch

from training.batches import Batch
from training.streams import Chunks

Chunk = dict[str, Batch]


class Supply:
    """A context in which chunks are made; ``take`` raises what a worker raised."""

    def __init__(self, chunks: Chunks, workers: int) -> None:
        self._loader = torch.utils.data.DataLoader(
            chunks, batch_size=None, shuffle=False, num_workers=workers,
            prefetch_factor=2 if workers else None, pin_memory=torch.cuda.is_available(),
        )  # fmt: skip
        self._made: queue.Queue[Chunk | Exception] = queue.Queue(maxsize=2)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._fetch, name="chunks", daemon=True)

    def __enter__(self) -> Self:
        # The workers are forked here, while no other thread holds a lock.
        self._chunks = iter(self._loader)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        self._thread.join()

    def take(self, *, wait: bool) -> Chunk | None:
        """The next chunk; None where none is ready and ``wait`` is false."""
        try:
            made = self._made.get(block=wait)
        except queue.Empty:
            return None
        if isinstance(made, Exception):
            raise made
        return made

    def _fetch(self) -> None:
        try:
            for chunk in self._chunks:
                if not self._hand_over(chunk):
                    return
        except Exception as error:
            # Raised again where it is taken.
            self._hand_over(error)

    def _hand_over(self, made: Chunk | Exception) -> bool:
        while not self._ended.is_set():
            try:
                self._made.put(made, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False
