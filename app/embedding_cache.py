"""Content hash to embedding reference: bounded in bytes, least recently used goes first.

Equal requests at the same time share one encode, and an encode that failed leaves nothing behind.
Holds references, never tensors. One per Ingress replica.
"""

import asyncio
import contextvars
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from deployments.errors import TransientError
from deployments.messages import EncodeReceipt


@dataclass(frozen=True)
class Encoded:
    """An embedding as the Ingress knows it: its receipt and the reference to it."""

    receipt: EncodeReceipt
    ref: Any


@dataclass
class CacheCounts:
    """Cumulative counts, and the bytes held now."""

    hits: int = 0
    misses: int = 0
    shared: int = 0
    evictions: int = 0
    bytes: int = 0


@dataclass
class _Shared:
    """One encode that is under way, and how many wait for it."""

    task: "asyncio.Task[Encoded]"
    waiters: int = 0


class EmbeddingCache:
    """Remembers finished encodes up to ``max_bytes``; 0 turns remembering off, sharing stays.

    ``context`` makes the context in which an encode runs: it is nobody's own.
    """

    def __init__(
        self, max_bytes: int, context: Callable[[], contextvars.Context] = contextvars.Context
    ) -> None:
        self.max_bytes = max_bytes
        self.context = context
        self.counts = CacheCounts()
        self._entries: OrderedDict[str, Encoded] = OrderedDict()
        self._running: dict[str, _Shared] = {}

    async def get(self, uuid: str, encode: Callable[[], Awaitable[Encoded]]) -> Encoded:
        """The embedding of this content: held, being made for somebody else, or made now.

        The shared encode is cancelled when the last one who waits for it is. When somebody else cancels it,
        that is no cancellation of those who wait: they get a TransientError.
        """
        if (entry := self._entries.get(uuid)) is not None:
            self._entries.move_to_end(uuid)
            self.counts.hits += 1
            return entry
        shared = self._running.get(uuid)
        if shared is None:
            self.counts.misses += 1
            task = asyncio.create_task(self._make(uuid, encode), context=self.context())
            shared = self._running[uuid] = _Shared(task)
        else:
            self.counts.shared += 1
        shared.waiters += 1
        try:
            return await asyncio.shield(shared.task)
        except asyncio.CancelledError:
            me = asyncio.current_task()
            if shared.task.cancelled() and not (me and me.cancelling()):
                raise TransientError("the encode was called off") from None
            raise
        finally:
            shared.waiters -= 1
            if not shared.waiters and not shared.task.done():
                self._ended(uuid, shared.task)  # who comes now starts anew instead of being cancelled too
                shared.task.cancel()

    async def _make(self, uuid: str, encode: Callable[[], Awaitable[Encoded]]) -> Encoded:
        try:
            encoded = await encode()
        finally:
            self._ended(uuid, asyncio.current_task())
        self._keep(uuid, encoded)
        return encoded

    def _ended(self, uuid: str, task: "asyncio.Task[Any] | None") -> None:
        shared = self._running.get(uuid)
        if shared is not None and shared.task is task:
            del self._running[uuid]

    def _keep(self, uuid: str, encoded: Encoded) -> None:
        size = encoded.receipt.bytes
        if size > self.max_bytes:
            return
        self.forget(uuid)
        self._entries[uuid] = encoded
        self.counts.bytes += size
        while self.counts.bytes > self.max_bytes:
            _, old = self._entries.popitem(last=False)
            self.counts.bytes -= old.receipt.bytes
            self.counts.evictions += 1

    def forget(self, uuid: str, held: Encoded | None = None) -> None:
        """Drop an entry, for example one whose object was lost; with ``held``, if it still is that one."""
        old = self._entries.get(uuid)
        if old is not None and (held is None or old is held):
            del self._entries[uuid]
            self.counts.bytes -= old.receipt.bytes
