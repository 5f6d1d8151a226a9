"""What an encoder replica has in hand and how fast it has been: the signal its deployment is scaled by."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from policies.autoscaling import Pace


@dataclass
class ItemInHand:
    """One item; ``tokens`` is None until its preparation has shown how many it has."""

    tokens: int | None = None


class Workload:
    """Counts items from their arrival to their answer. ``idle`` is set while there is none."""

    def __init__(self, workers: int) -> None:
        self.idle = asyncio.Event()
        self.idle.set()
        self.pace = Pace(workers)
        self._items: list[ItemInHand] = []
        self._prepare_s = 0.0

    @property
    def pending(self) -> int:
        """Items in hand."""
        return len(self._items)

    @contextmanager
    def item(self) -> Iterator[ItemInHand]:
        """Hold one item in hand."""
        item = ItemInHand()
        self._items.append(item)
        self.idle.clear()
        try:
            yield item
        finally:
            self._items = [other for other in self._items if other is not item]
            if not self._items:
                self.idle.set()

    def finished(self, item: ItemInHand, prepare_s: float, encode_s: float) -> None:
        """Learn from an encoded item.

        ``prepare_s`` is all time the workers have spent since the start, ``encode_s`` the item's share of the
        batch it ran in.
        """
        spent_s, self._prepare_s = prepare_s - self._prepare_s, prepare_s
        if item.tokens:
            self.pace = self.pace.after(item.tokens, spent_s, encode_s)

    def stats(self) -> dict[str, float]:
        """What ``record_autoscaling_stats`` says: the work in hand in items, tokens and seconds."""
        usual = self.pace.tokens_per_item
        tokens = sum(usual if item.tokens is None else item.tokens for item in self._items)
        return {
            "pending_items": float(self.pending),
            "queued_tokens": float(tokens),
            "seconds_per_token": self.pace.seconds_per_token,
            "queued_s": tokens * self.pace.seconds_per_token,
        }
