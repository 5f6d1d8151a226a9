"""The budget adapter's logic over a fake device, and the pure rules of which budgets and when."""

import itertools
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from deployments.errors import TerminalGraphError
from deployments.graphs.budget import BudgetEncoderGraphs
from policies import budgets
from policies.admission import BudgetOptions, CallFacts
from tests.graph_fakes import DeviceError, FakeBackend, FakeManager

CHUNK = 4


def adapter_of(
    backend: FakeBackend,
    sizes: tuple[int, ...] = (4, 8, 16),
    options: BudgetOptions = BudgetOptions(),  # noqa: B008 -- frozen
    launch_bound_tokens: int = 1000,
) -> BudgetEncoderGraphs:
    """Started, unless the options say no; a generous launch bound lets graphs win."""
    adapter = BudgetEncoderGraphs(
        "vision", options, backend, lambda may: FakeManager(list(sizes), 4, may), launch_bound_tokens
    )
    adapter.start()
    return adapter


def items(*counts: int) -> dict[str, object]:
    return {"pixels": torch.arange(float(sum(counts))).view(-1, 1), "counts": list(counts)}


@pytest.mark.rule("B2")
def test_the_range_is_one_chunk_to_the_decoder_s_lesser_limit() -> None:
    """An item that the decoder cannot take needs no graph; a chunk that it cannot take is an error."""
    assert budgets.budget_range(144, 8192, 4096) == (144, 4096)
    assert budgets.budget_range(144, 2048, 4096) == (144, 2048)
    with pytest.raises(ValueError, match="one chunk has 144"):
        budgets.budget_range(144, 100, 4096)


@pytest.mark.rule("B2")
def test_default_budgets_miss_no_count_that_one_image_can_have() -> None:
    """Up to 16 tiles and an overview each count has its own budget: no padding, no split batch."""
    found = budgets.default_budgets(144, 8192)
    assert found[:17] == [144 * n for n in range(1, 18)]
    assert found[-1] == 56 * 144
    assert all(high / low <= 1.2 for low, high in itertools.pairwise(found[16:]))


@pytest.mark.rule("B2")
@given(st.integers(1, 200), st.integers(1, 20000))
def test_default_budgets_fill_their_range(smallest: int, largest: int) -> None:
    """Ascending multiples of the smallest, from one to as many as fit."""
    largest = max(smallest, largest)
    found = budgets.default_budgets(smallest, largest)
    assert found == sorted(set(found))
    assert found[0] == smallest
    assert largest - smallest < found[-1] <= largest
    assert all(budget % smallest == 0 for budget in found)


@pytest.mark.rule("B4")
def test_eight_small_items_do_not_run_as_eight_replays() -> None:
    """Upstream's packing without the budget of two chunks splits; with the default budgets it does not."""
    trap = budgets.plan([144] * 8, [144, 576, 1152], 8)
    assert len(trap.replayed_budgets) == 8
    good = budgets.plan([144] * 8, budgets.default_budgets(144, 8192), 8)
    assert good.replayed_budgets == (1152,)
    lose = [budgets.graphs_lose(p.replayed_budgets, 8 * 144, fixed_tokens=72) for p in (trap, good)]
    assert lose == [True, False]


@pytest.mark.rule("B4")
@pytest.mark.parametrize(
    ("replayed", "tokens", "bound", "lose"),
    [
        ((144,), 144, 432, False),
        ((432,), 300, 432, False),
        ((4608,), 2448, 432, True),
        ((576,), 576, 0, False),
    ],
)
def test_padding_beyond_what_launches_cost_loses(
    replayed: tuple[int, ...], tokens: int, bound: int, lose: bool
) -> None:
    """Small batches may be padded for free, large ones not at all."""
    assert budgets.graphs_lose(replayed, tokens, launch_bound_tokens=bound) is lose


@pytest.mark.rule("B4")
def test_a_batch_whose_plan_is_worse_runs_eagerly() -> None:
    """Counted as ineligible, item by item; the coverage can be seen to fall."""
    adapter = adapter_of(FakeBackend(), sizes=(4, 16), launch_bound_tokens=0)
    out = adapter.encode(items(8, 4))
    assert [len(o) for o in out] == [8, 4]
    assert adapter.stats().ineligible_misses == 2
    assert adapter.manager.eager_runs == 1  # type: ignore[attr-defined]


@pytest.mark.rule("B4")
def test_stats_count_items_tokens_and_padding() -> None:
    """Hits in items, num_graphs the captured budgets, padding the budget's rest."""
    adapter = adapter_of(FakeBackend())
    assert adapter.stats().num_graphs == 3
    adapter.encode(items(4, 3, 5))
    stats = adapter.stats()
    assert (stats.graph_hits, stats.graph_misses, stats.unit) == (3, 0, "items")
    assert (stats.tokens_replayed, stats.tokens_padded) == (12, 4)
    assert adapter.hits_by_graph() == {"budget 4": 0, "budget 8": 0, "budget 16": 1}
    assert adapter.get_cumulative_stats()["hit_rate"] == 1.0


@pytest.mark.rule("B4")
def test_an_item_larger_than_every_budget_is_a_capacity_miss() -> None:
    """Alone or among others that hit."""
    adapter = adapter_of(FakeBackend())
    adapter.encode(items(17))
    adapter.encode(items(4, 20))
    stats = adapter.stats()
    assert (stats.graph_hits, stats.graph_misses, stats.capacity_misses) == (1, 2, 2)


@pytest.mark.rule("B3")
def test_a_budget_that_memory_forbids_is_left_out_and_its_items_counted() -> None:
    """Serving goes on: what is left out is named, its items run eagerly as memory misses."""
    backend = FakeBackend(free=0)
    adapter = adapter_of(backend)
    assert adapter.left_out_budgets == (4, 8, 16)
    assert adapter.failure is None
    out = adapter.encode(items(4, 8))
    assert torch.equal(torch.cat(out), 2 * torch.arange(12.0).view(-1, 1))
    assert adapter.stats().memory_misses == 2


@pytest.mark.rule("B3")
def test_items_of_a_left_out_budget_run_in_a_larger_one() -> None:
    """Or, when they fit none that was captured, eagerly as memory misses."""
    backend = FakeBackend()
    questions = iter([False, True, False])  # 16, 8, 4
    adapter = BudgetEncoderGraphs(
        "vision", BudgetOptions(), backend,
        lambda may: FakeManager([4, 8, 16], 4, lambda: next(questions)), 1000,
    )  # fmt: skip
    adapter.start()
    assert adapter.left_out_budgets == (4, 16)
    adapter.encode(items(4))
    adapter.encode(items(16))
    stats = adapter.stats()
    assert (stats.graph_hits, stats.memory_misses, stats.tokens_padded) == (1, 1, 4)


@pytest.mark.rule("B3")
@pytest.mark.rule("A11")
def test_a_broken_capture_is_terminal() -> None:
    """The original exception at start, the terminal error from then on."""
    backend = FakeBackend(capture_error=ValueError("boom"), lost_bytes=9)
    adapter = BudgetEncoderGraphs("vision", BudgetOptions(), backend, lambda may: FakeManager([4], 1, may))
    with pytest.raises(ValueError, match="boom"):
        adapter.start()
    with pytest.raises(TerminalGraphError):
        adapter.encode(items(4))
    assert adapter.stats().capture_failures == 1
    assert adapter.leaked_bytes == 9


@pytest.mark.rule("B3")
@pytest.mark.rule("A11")
def test_a_device_error_in_a_replay_is_terminal() -> None:
    """Counted apart; the items of the call are neither hits nor misses."""
    backend = FakeBackend()
    adapter = adapter_of(backend)
    backend.replay_error = DeviceError("assert")
    with pytest.raises(DeviceError):
        adapter.encode(items(4))
    with pytest.raises(TerminalGraphError):
        adapter.encode(items(4))
    assert adapter.stats().replay_failures == 1
    assert adapter.stats().graph_hits + adapter.stats().graph_misses == 0


@pytest.mark.rule("B3")
@pytest.mark.rule("A9")
@pytest.mark.parametrize("facts", [CallFacts(devices=frozenset({"cpu"})), CallFacts(autocast=True)])
def test_ineligible_batches_run_eagerly(facts: CallFacts) -> None:
    """Counted in items."""
    backend = FakeBackend()
    adapter = adapter_of(backend)
    backend.calls = facts
    adapter.encode(items(4, 8))
    assert adapter.stats().ineligible_misses == 2


@pytest.mark.rule("B1")
def test_graphs_that_are_off_capture_nothing() -> None:
    """Every item is an ineligible miss."""
    backend = FakeBackend()
    adapter = adapter_of(backend, options=BudgetOptions(enabled=False))
    adapter.encode(items(4))
    assert backend.captures == 0
    assert adapter.stats().ineligible_misses == 1


@pytest.mark.rule("B1")
def test_without_a_gpu_nothing_is_captured() -> None:
    """The same config starts anywhere; every item is an ineligible miss."""
    backend = FakeBackend(has_graphs=False, calls=CallFacts(devices=frozenset({"cpu"})))
    adapter = adapter_of(backend)
    adapter.encode(items(4, 4))
    assert backend.captures == 0
    assert adapter.stats().ineligible_misses == 2


@pytest.mark.rule("B1")
def test_start_captures_once() -> None:
    """A second start changes nothing."""
    backend = FakeBackend()
    adapter = adapter_of(backend)
    adapter.start()
    assert backend.captures == 1


@pytest.mark.rule("B5")
def test_no_items_are_no_call() -> None:
    """An empty batch comes back empty and uncounted."""
    adapter = adapter_of(FakeBackend())
    assert adapter.encode(items()) == []
    assert adapter.stats().graph_hits + adapter.stats().graph_misses == 0


@pytest.mark.rule("C1")
def test_another_thread_is_refused() -> None:
    """Graphs that share a pool never replay at the same time."""
    adapter = adapter_of(FakeBackend())
    caught: list[Exception] = []

    def other() -> None:
        try:
            adapter.encode(items(4))
        except RuntimeError as error:
            caught.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert "not captured on this thread" in str(caught[0])
