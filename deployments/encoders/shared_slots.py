"""Memory that a replica shares with its preprocessing workers: what they make of a medium is written once.

Through the pool's pipe the 6 MB of a large picture went in pieces of 64 KB, copied four times.
"""

import collections
import mmap
import os
import pickle
import weakref
from dataclasses import dataclass
from multiprocessing import reduction
from typing import Any, TypeVar

import numpy as np

SLOT_BYTES = 2**25
"""Of address space. Only what was once written takes memory, so a slot costs what its largest item does."""
ALIGNMENT = 64

Value = TypeVar("Value")


@dataclass(frozen=True)
class Stored:
    """An object whose arrays lie in a slot: its pickle without them, and their places (offset, bytes)."""

    slot: int
    pickled: bytes
    places: tuple[tuple[int, int], ...]


class SharedSlots:
    """``count`` slots in one piece of memory without a name, which ends with the last process that maps it.

    Made by the replica and handed to each worker when that is spawned; a worker only ever ``store``s.
    """

    def __init__(self, count: int, descriptor: Any = None) -> None:
        self.count = count
        if descriptor is None:
            self._fd = os.memfd_create("preprocessed")
            os.ftruncate(self._fd, count * SLOT_BYTES)
        else:
            self._fd = descriptor.detach()
        self._memory = mmap.mmap(self._fd, count * SLOT_BYTES)
        weakref.finalize(self, os.close, self._fd)
        self._free = collections.deque(range(count))

    def __reduce__(self) -> Any:
        return SharedSlots, (self.count, reduction.DupFd(self._fd))

    def take(self) -> int | None:
        """A free slot, or None; to be given back by ``give`` or by ``loaded``."""
        return self._free.pop() if self._free else None

    def give(self, slot: int | None) -> None:
        """Give a slot back."""
        if slot is not None:
            self._free.append(slot)

    def store(self, slot: int | None, value: Value) -> "Value | Stored":
        """Write ``value``'s arrays to a slot. Returns a Stored, or ``value`` where they have no room."""
        if slot is None:
            return value
        buffers: list[pickle.PickleBuffer] = []
        pickled = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
        whole, begin, places = self._slot(slot), 0, []
        for buffer in buffers:
            piece = np.frombuffer(buffer.raw(), np.uint8)
            if begin + len(piece) > SLOT_BYTES:
                return value
            whole[begin : begin + len(piece)] = piece
            places.append((begin, len(piece)))
            begin += -(-len(piece) // ALIGNMENT) * ALIGNMENT
        return Stored(slot, pickled, tuple(places))

    def loaded(self, stored: Stored) -> Any:
        """The value, its arrays where they lie; the slot is given back when the last of them is gone."""
        whole = self._slot(stored.slot)
        pieces = [whole[begin : begin + size] for begin, size in stored.places]
        weakref.finalize(whole, self.give, stored.slot).atexit = False
        return pickle.loads(stored.pickled, buffers=pieces)  # noqa: S301 - of our own worker

    def _slot(self, slot: int) -> np.ndarray:
        """The bytes of a slot; every array made of them keeps this very one."""
        return np.frombuffer(self._memory, np.uint8, SLOT_BYTES, slot * SLOT_BYTES)
