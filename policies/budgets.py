"""Which token budgets to capture and when a packed batch is better off without them. No torch."""

from collections.abc import Sequence
from dataclasses import dataclass

EXACT_COUNTS = 17
"""Up to here every multiple of the smallest budget has a graph: an image of 16 tiles and an overview."""

STEP = 1.2
"""Ratio of neighbouring budgets beyond those: padding wastes a sixth at most."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How upstream will run one batch: the budget of each replay (None: eager) and its items."""

    batches: tuple[tuple[int | None, tuple[int, ...]], ...]

    @property
    def replayed_budgets(self) -> tuple[int, ...]:
        """Budgets that will be replayed, in order."""
        return tuple(budget for budget, _ in self.batches if budget is not None)


def budget_range(min_tokens: int, max_num_batched_tokens: int, max_model_len: int) -> tuple[int, int]:
    """Smallest and largest useful budget; both limits are the decoder's.

    An item that the decoder cannot take in one step, or at all, needs no graph.
    """
    largest = min(max_num_batched_tokens, max_model_len)
    if largest < min_tokens:
        raise ValueError(f"the decoder takes {largest} tokens, one chunk has {min_tokens}")
    return min_tokens, largest


def default_budgets(min_tokens: int, max_tokens: int) -> list[int]:
    """Multiples of ``min_tokens``: each that one item can have, then ever wider apart, to ``max_tokens``.

    Powers of two put a 17-chunk image in a 32-chunk graph; a missing neighbour makes upstream split a
    batch into single items. Both cost more than a graph saves.
    """
    counts, count = [], 1
    while count * min_tokens <= max_tokens:
        counts.append(count)
        count = count + 1 if count < EXACT_COUNTS else int(count * STEP)
    largest = max_tokens // min_tokens
    if counts[-1] != largest:
        counts.append(largest)
    return [count * min_tokens for count in counts]


def plan(item_tokens: Sequence[int], budgets: Sequence[int], max_items: int) -> Plan:
    """Predict upstream's greedy packing: smallest items first, each batch in the smallest budget.

    A test holds this against upstream's own run.
    """
    ordered = sorted(range(len(item_tokens)), key=lambda i: item_tokens[i])
    largest = max(budgets, default=0)
    batches: list[tuple[int | None, tuple[int, ...]]] = []
    current: list[int] = []
    held = 0
    for index in ordered:
        tokens = item_tokens[index]
        fits = len(current) < max_items and held + tokens <= largest
        if current and (not fits or _defer(held, tokens, budgets)):
            batches.append((_fit(held, budgets), tuple(current)))
            current, held = [], 0
        current.append(index)
        held += tokens
    if current:
        batches.append((_fit(held, budgets), tuple(current)))
    return Plan(tuple(batches))


def graphs_lose(
    replayed: Sequence[int], tokens: int, *, launch_bound_tokens: float = 0, fixed_tokens: float = 0
) -> bool:
    """Whether replaying these budgets costs more than one eager run of ``tokens``.

    Costs in tokens: a replay costs its budget, padding included, and ``fixed_tokens``; an eager run the
    same of its real tokens, but never less than ``launch_bound_tokens``, for the host launches no faster.
    """
    replays = sum(budget + fixed_tokens for budget in replayed)
    return replays > max(tokens + fixed_tokens, launch_bound_tokens)


def _fit(tokens: int, budgets: Sequence[int]) -> int | None:
    return min((budget for budget in budgets if budget >= tokens), default=None)


def _defer(held: int, tokens: int, budgets: Sequence[int]) -> bool:
    """Upstream closes a batch when that strictly reduces the summed budgets and the item is large."""
    current, alone, merged = _fit(held, budgets), _fit(tokens, budgets), _fit(held + tokens, budgets)
    if current is None or alone is None or merged is None:
        return False
    return current + alone < merged and alone >= current
