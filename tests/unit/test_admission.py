"""Admission, eligibility, the order of reasons and the options, as pure policy without torch."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.admission import (
    Admission,
    BudgetOptions,
    CallFacts,
    Decision,
    GraphOptions,
    OptionError,
    budget_options,
    count,
    graph_options,
    ineligible_reason,
    memory_allows,
)
from policies.stats import GraphStats


def run(admission: Admission, key: str) -> Decision:
    """One call whose capture succeeds."""
    decision = admission.decide(key)
    if decision is Decision.CAPTURE:
        admission.captured(key)
    return decision


@pytest.mark.rule("A2")
@pytest.mark.parametrize("calls", [2, 3, 5])
def test_the_call_of_the_configured_number_captures(calls: int) -> None:
    """Earlier calls of a key only count; later ones replay."""
    admission = Admission(4, calls)
    decisions = [run(admission, "a") for _ in range(calls + 2)]
    assert decisions == [Decision.WARMUP] * (calls - 1) + [Decision.CAPTURE] + [Decision.REPLAY] * 2


@pytest.mark.rule("A3")
def test_a_full_cache_stays_as_it_is() -> None:
    """The first shapes keep their graphs for good; every other shape is a capacity miss."""
    admission = Admission(2, 2)
    for key in ("a", "a", "b", "b"):
        run(admission, key)
    assert [run(admission, "c") for _ in range(9)] == [Decision.CAPACITY] * 9
    assert [run(admission, key) for key in ("a", "b")] == [Decision.REPLAY] * 2


@pytest.mark.rule("A3")
def test_no_slots_make_every_call_a_capacity_miss() -> None:
    """With max_graphs 0 nothing is counted towards a capture that cannot come."""
    admission = Admission(0, 2)
    assert [run(admission, "a") for _ in range(5)] == [Decision.CAPACITY] * 5
    assert admission.remembered == ()


@pytest.mark.rule("A3")
@given(st.lists(st.integers(0, 999), max_size=3000), st.integers(0, 8), st.integers(2, 4))
def test_any_order_of_shapes_leaves_at_most_max_graphs(shapes: list[int], slots: int, calls: int) -> None:
    """Random shapes never take more slots than there are, nor more history than allowed."""
    admission = Admission(slots, calls)
    captured = sum(run(admission, str(shape)) is Decision.CAPTURE for shape in shapes)
    assert captured <= slots
    assert len(admission.remembered) <= 4 * slots


@pytest.mark.rule("A4")
def test_a_key_that_fell_out_of_the_history_gathers_its_calls_again() -> None:
    """Four keys are remembered per slot; the one not called for longest goes first."""
    admission = Admission(1, 2)
    for key in "abcd":
        run(admission, key)
    assert admission.remembered == ("a", "b", "c", "d")
    run(admission, "e")
    assert run(admission, "a") is Decision.WARMUP
    assert run(admission, "a") is Decision.CAPTURE


@pytest.mark.rule("A5")
@pytest.mark.parametrize(
    ("free", "floor", "allowed"), [(10, 10, True), (9, 10, False), (0, 0, True), (11, 10, True)]
)
def test_the_floor_is_compared_with_free_memory(free: int, floor: int, allowed: bool) -> None:
    """Below the floor no capture; at it, or with no floor, there is one."""
    assert memory_allows(free, floor) is allowed


@pytest.mark.rule("A5")
def test_a_memory_miss_does_not_lose_the_calls_gathered() -> None:
    """A candidate that memory forbade is a candidate again at its next call."""
    admission = Admission(1, 2)
    admission.decide("a")
    assert [admission.decide("a") for _ in range(3)] == [Decision.CAPTURE] * 3


ELIGIBLE = CallFacts()


@pytest.mark.rule("A9")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"devices": frozenset()}, "no tensor"),
        ({"devices": frozenset({"cpu"})}, "not on a CUDA"),
        ({"devices": frozenset({"cuda:0", "cuda:1"})}, "several devices"),
        ({"devices": frozenset({"cuda:0", "cpu"})}, "several devices"),
        ({"grad_enabled": True}, "grad"),
        ({"autocast": True}, "autocast"),
        ({"capturing": True}, "capturing"),
        ({"enabled": False}, "disabled"),
    ],
)
def test_what_makes_a_call_ineligible(change: dict[str, object], reason: str) -> None:
    """Each fact alone is enough, and the reason says which."""
    facts = dataclasses.replace(ELIGIBLE, **change)  # type: ignore[arg-type]
    assert reason in (ineligible_reason(facts, (1,)) or "")


@pytest.mark.rule("C5")
def test_a_batch_size_that_is_not_listed_is_ineligible() -> None:
    """Batches do not eat the slots that shapes need, unless the config says so."""
    facts = dataclasses.replace(ELIGIBLE, batch_size=3)
    assert ineligible_reason(ELIGIBLE, (1,)) is None
    assert "batch size 3" in (ineligible_reason(facts, (1,)) or "")
    assert ineligible_reason(facts, (1, 3)) is None


@pytest.mark.rule("A10")
@given(st.lists(st.sampled_from(list(Decision)), max_size=50))
def test_the_reasons_add_up_to_the_misses(decisions: list[Decision]) -> None:
    """Each decision is one hit or one miss; a capture is a hit and one more graph."""
    stats = GraphStats()
    for decision in decisions:
        stats = count(stats, decision, tokens=5)
    reasons = stats.ineligible_misses + stats.capacity_misses + stats.warmup_misses + stats.memory_misses
    assert stats.graph_misses == reasons
    assert stats.graph_hits + stats.graph_misses == len(decisions)
    assert stats.num_graphs == decisions.count(Decision.CAPTURE)
    assert stats.tokens_replayed == 5 * stats.graph_hits


@pytest.mark.rule("A10")
def test_the_hit_rate_of_nothing_is_zero() -> None:
    """No division by zero before the first call."""
    assert GraphStats().hit_rate == 0.0


# ---- options ----


@pytest.mark.rule("A1")
def test_the_defaults_are_the_contract_s() -> None:
    """Nothing said means graphs on, four of them, from the second call, above 1 GiB free."""
    assert graph_options() == GraphOptions(True, 4, 2, 1073741824, True, (1,))


@pytest.mark.rule("A1")
def test_the_upstream_keys_are_read_and_the_block_wins() -> None:
    """The same option may stand in both places; others in hf_overrides are none of our business."""
    overrides = {
        "encoder_cuda_graph_max_graphs": 2,
        "encoder_cuda_graph_min_capture_calls": 3,
        "rope": {},
    }
    options = graph_options({"max_graphs": 8}, overrides)
    assert (options.max_graphs, options.min_capture_calls) == (8, 3)


@pytest.mark.rule("A1")
def test_an_encoder_s_own_overrides_win_over_the_shared_ones() -> None:
    """vision_config and audio_config speak for their encoder alone."""
    overrides = {"encoder_cuda_graph_max_graphs": 2, "audio_config": {"encoder_cuda_graph_max_graphs": 5}}
    assert graph_options(None, overrides, encoder="audio").max_graphs == 5
    assert graph_options(None, overrides, encoder="vision").max_graphs == 2


@pytest.mark.rule("A9")
def test_enforce_eager_turns_graphs_off_whatever_else_is_said() -> None:
    """The model config's switch wins over both places."""
    assert not graph_options({"enabled": True}, enforce_eager=True).enabled
    assert not budget_options({"enabled": True}, enforce_eager=True).enabled


@pytest.mark.rule("A1")
@pytest.mark.parametrize(
    ("block", "path"),
    [
        ({"max_graphs": True}, "graphs.vision.max_graphs"),
        ({"max_graphs": -1}, "graphs.vision.max_graphs"),
        ({"max_graphs": 1.0}, "graphs.vision.max_graphs"),
        ({"max_graphs": "4"}, "graphs.vision.max_graphs"),
        ({"max_graphs": None}, "graphs.vision.max_graphs"),
        ({"min_capture_calls": 1}, "graphs.vision.min_capture_calls"),
        ({"min_capture_calls": True}, "graphs.vision.min_capture_calls"),
        ({"min_free_bytes": -1}, "graphs.vision.min_free_bytes"),
        ({"min_free_bytes": False}, "graphs.vision.min_free_bytes"),
        ({"enabled": 1}, "graphs.vision.enabled"),
        ({"share_pools": "yes"}, "graphs.vision.share_pools"),
        ({"graph_batch_sizes": 1}, "graphs.vision.graph_batch_sizes"),
        ({"graph_batch_sizes": [1, True]}, "graphs.vision.graph_batch_sizes[1]"),
        ({"graph_batch_sizes": [1, 1]}, "graphs.vision.graph_batch_sizes"),
        ({"graph_batch_sizes": [0]}, "graphs.vision.graph_batch_sizes[0]"),
        ({"max_graph": 4}, "graphs.vision.max_graph"),
    ],
)
def test_a_bad_block_names_the_path_of_the_key(block: dict[str, object], path: str) -> None:
    """Wrong types, `true` for an integer, values out of range and unknown keys are errors."""
    with pytest.raises(OptionError) as caught:
        graph_options(block, path="graphs.vision")
    assert caught.value.path == path
    assert str(caught.value).startswith(f"{path}: ")


@pytest.mark.rule("A1")
@pytest.mark.parametrize(
    ("overrides", "path"),
    [
        ({"encoder_cuda_graph": 1}, "hf_overrides.encoder_cuda_graph"),
        ({"encoder_cuda_graph_max_graphs": True}, "hf_overrides.encoder_cuda_graph_max_graphs"),
        ({"encoder_cuda_graph_max": 4}, "hf_overrides.encoder_cuda_graph_max"),
        (
            {"audio_config": {"encoder_cuda_graph_pool": 1}},
            "hf_overrides.audio_config.encoder_cuda_graph_pool",
        ),
    ],
)
def test_a_bad_override_names_the_path_of_the_key(overrides: dict[str, object], path: str) -> None:
    """Also when the block says the same option rightly, and also of the other encoder."""
    with pytest.raises(OptionError) as caught:
        graph_options({"max_graphs": 4}, overrides, encoder="vision")
    assert caught.value.path == path


@pytest.mark.rule("B1")
def test_budget_options_read_upstream_s_names() -> None:
    """Sorted budgets, the number of items and frames, and the switch."""
    upstream = {
        "cudagraph_mm_encoder": False,
        "encoder_cudagraph_token_budgets": [288, 144],
        "encoder_cudagraph_max_vision_items_per_batch": 8,
        "encoder_cudagraph_max_frames_per_batch": 0,
        "level": 3,
    }
    assert budget_options(None, upstream) == BudgetOptions(False, (144, 288), 8, 0)
    assert budget_options({"enabled": True}, upstream).enabled


@pytest.mark.rule("B1")
@pytest.mark.parametrize(
    ("block", "path"),
    [
        ({"token_budgets": [0]}, "graphs.token_budgets[0]"),
        ({"token_budgets": [True]}, "graphs.token_budgets[0]"),
        ({"token_budgets": "144"}, "graphs.token_budgets"),
        ({"max_items_per_batch": -1}, "graphs.max_items_per_batch"),
        ({"max_frames_per_batch": True}, "graphs.max_frames_per_batch"),
        ({"max_graphs": 4}, "graphs.max_graphs"),
        ({"token_budgets": [4], "max_items_per_batch": 5}, "graphs.max_items_per_batch"),
    ],
)
def test_a_bad_budget_block_names_the_path_of_the_key(block: dict[str, object], path: str) -> None:
    """The same care as for exact shapes, and upstream's bound of items by the smallest budget."""
    with pytest.raises(OptionError) as caught:
        budget_options(block)
    assert caught.value.path == path
