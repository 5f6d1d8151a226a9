"""Which waiting items of an encoder replica run together, and whether to wait for more.

Items run together only when their shape is exactly the same, for anything else changes answers. A
batch is not always a gain: a graph replayed at batch 1 beats an eager batch (docs/numbers.md), and a
shape that only ever ran in batches no graph may have would never be captured. And where an item fills the
device by itself, company makes everybody wait for the last one and moves nothing more.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchingPolicy:
    """``max_wait_s`` bounds how long the oldest item waits for company, and only in a queue.

    ``prefer_graphs`` takes the largest batch that has a graph, or may still get one, over a larger
    eager one. ``max_batch_s`` bounds how long a batch of several may take by what its items took before.
    """

    max_batch_size: int = 8
    max_wait_s: float = 0.004
    prefer_graphs: bool = True
    max_batch_s: float = 0.03

    def __post_init__(self) -> None:
        if self.max_batch_size < 1 or self.max_wait_s < 0 or self.max_batch_s < 0:
            raise ValueError("need max_batch_size >= 1, max_wait_s >= 0 and max_batch_s >= 0")

    def limit(self, item_s: float) -> int:
        """Most items of a shape of which one takes ``item_s``, 0.0 where nobody knows."""
        if item_s * self.max_batch_size <= self.max_batch_s:
            return self.max_batch_size
        return max(1, int(self.max_batch_s / item_s))

    def item_s_for(self, items: int) -> float:
        """What an item may take where so many may run together; infinite where that is never so."""
        return 0.999 * self.max_batch_s / items if self.max_batch_s else math.inf


@dataclass(frozen=True, slots=True)
class Waiting:
    """One preprocessed item: its exact shape, and since when it waits (any steady clock)."""

    shape_key: str
    since_s: float


@dataclass(frozen=True, slots=True)
class Take:
    """Run these now, by their place in the queue."""

    indices: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class WaitFor:
    """Look again after this long, or when something new comes."""

    seconds: float


NO_SIZES: tuple[int, ...] = ()
NO_TIMES: Mapping[str, float] = {}


def next_batch(
    queue: Sequence[Waiting],
    now_s: float,
    *,
    policy: BatchingPolicy,
    graph_sizes: Mapping[str, Sequence[int]],
    item_s: Mapping[str, float] = NO_TIMES,
) -> Take | WaitFor:
    """The next batch of a non-empty queue, oldest first: the oldest item is always in it.

    Args:
        queue: what waits, in order of arrival.
        graph_sizes: by shape, the batch sizes at which it has a graph or may still get one.
        item_s: by shape, the seconds an item took in the batches of late.
    """
    if not queue:
        raise ValueError("an empty queue has no next batch")
    oldest = queue[0]
    same = [i for i, item in enumerate(queue) if item.shape_key == oldest.shape_key]
    limit = policy.limit(item_s.get(oldest.shape_key, 0.0))
    if policy.prefer_graphs:
        sizes = graph_sizes.get(oldest.shape_key, NO_SIZES)
        fitting = [size for size in sizes if 0 < size <= min(len(same), policy.max_batch_size)]
        if fitting:  # where every one is over the limit, the least of them, or it would never be captured
            return Take(tuple(same[: max((size for size in fitting if size <= limit), default=min(fitting))]))
    same = same[:limit]
    alone = len(queue) == 1  # nothing to gain from company that is not in sight
    wait_s = policy.max_wait_s - (now_s - oldest.since_s)
    if alone or len(same) == limit or wait_s <= 0:
        return Take(tuple(same))
    return WaitFor(wait_s)
