"""Which waiting items of an encoder replica run together, and whether to wait for more.

Items run together only when their shape is exactly the same, for anything else changes answers. A
batch is not always a gain: a graph replayed at batch 1 beats an eager batch (docs/numbers.md), and a
shape that only ever ran in batches no graph may have would never be captured.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchingPolicy:
    """``max_wait_s`` bounds how long the oldest item waits for company, and only in a queue.

    ``prefer_graphs`` takes the largest batch that has a graph, or may still get one, over a larger
    eager one.
    """

    max_batch_size: int = 8
    max_wait_s: float = 0.004
    prefer_graphs: bool = True

    def __post_init__(self) -> None:
        if self.max_batch_size < 1 or self.max_wait_s < 0:
            raise ValueError("need max_batch_size >= 1 and max_wait_s >= 0")


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


def next_batch(
    queue: Sequence[Waiting],
    now_s: float,
    *,
    policy: BatchingPolicy,
    graph_sizes: Mapping[str, Sequence[int]],
) -> Take | WaitFor:
    """The next batch of a non-empty queue, oldest first: the oldest item is always in it.

    Args:
        queue: what waits, in order of arrival.
        graph_sizes: by shape, the batch sizes at which it has a graph or may still get one.
    """
    if not queue:
        raise ValueError("an empty queue has no next batch")
    oldest = queue[0]
    same = [i for i, item in enumerate(queue) if item.shape_key == oldest.shape_key]
    same = same[: policy.max_batch_size]
    if policy.prefer_graphs:
        fitting = [size for size in graph_sizes.get(oldest.shape_key, NO_SIZES) if 0 < size <= len(same)]
        if fitting:
            return Take(tuple(same[: max(fitting)]))
    alone = len(queue) == 1  # nothing to gain from company that is not in sight
    wait_s = policy.max_wait_s - (now_s - oldest.since_s)
    if alone or len(same) == policy.max_batch_size or wait_s <= 0:
        return Take(tuple(same))
    return WaitFor(wait_s)
