"""vLLM's encoder-graph interface as the installed version has it, and our use of it (needs vLLM).

When a test here fails after an upgrade, ``deployments/upstream/encoder_graphs.py`` is what to change.
"""

import contextlib
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from benchmarks import random_encoders
from deployments.families.llama4_vision import TileFunction
from deployments.upstream.encoder_graphs import (
    BudgetGraphs,
    ExactShapeGraph,
    interface_problems,
    manager_config,
)
from policies import budgets

CHUNK = 4


@pytest.fixture(scope="module")
def llama4() -> Iterator[Any]:
    with random_encoders.vllm_world():
        yield random_encoders.llama4(random_encoders.TOY, torch.float32, "cpu")


def manager_of(model: Any, sizes: list[int], items: int = 0) -> BudgetGraphs:
    """A manager whose every budget counts as captured and whose replays only note themselves."""
    config = manager_config(
        token_budgets=sizes, max_items=items, max_num_batched_tokens=100, max_model_len=100
    )
    function = TileFunction(model)
    return BudgetGraphs(
        model, lambda inputs: function(inputs["pixel_values"]), config, torch.device("cpu"), torch.float32,
        lambda: True,
    )  # fmt: skip


def kwargs(*tiles: int) -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(sum(tiles), 3, 56, 56), "patches_per_image": torch.tensor(tiles)}


@pytest.mark.rule("B5")
def test_the_installed_vllm_has_the_interface_this_was_written_for() -> None:
    """Methods, their parameters, the fields of the data that passes: all as in vLLM 0.32 and 0.33."""
    problems = interface_problems()
    assert not problems, "vLLM's encoder-graph interface differs: " + "; ".join(problems)


@pytest.mark.rule("B5")
def test_a_changed_interface_is_named_plainly() -> None:
    """A method that is gone or takes something else is in the message by name."""

    class Moved:
        def capture(self) -> None: ...

    problems = interface_problems(manager=Moved)
    assert "Moved.capture takes ('self',), written for ('self', 'graph_pool')" in problems
    assert "Moved.execute is gone" in problems


@pytest.mark.rule("B5")
def test_config_and_budget_range(llama4: Any) -> None:
    """Images alone, pixel values as the one buffer; the smallest budget is one chunk."""
    config = llama4.get_encoder_cudagraph_config()
    assert (config.modalities, config.buffer_keys) == (["image"], ["pixel_values"])
    assert config.out_hidden_size == random_encoders.TOY.llama_text
    limits = manager_config(max_num_batched_tokens=64, max_model_len=32)
    assert llama4.get_encoder_cudagraph_budget_range(limits)[0] == CHUNK
    wrapped = manager_of(llama4, [4]).model
    assert wrapped.get_encoder_cudagraph_budget_range(limits) == (CHUNK, 32)


@pytest.mark.rule("B5")
def test_item_specs(llama4: Any) -> None:
    """An item's size is its chunks, its output tokens chunks times patches per chunk."""
    specs = manager_of(llama4, [4]).model.get_encoder_cudagraph_item_specs(kwargs(1, 3))
    assert [(spec.input_size, spec.output_tokens) for spec in specs] == [(1, 4), (3, 12)]


@pytest.mark.rule("B5")
@pytest.mark.parametrize("indices", [[], [0], [1], [2, 0], [0, 1, 2]])
def test_selection_follows_the_cumulative_chunks(llama4: Any, indices: list[int]) -> None:
    """By offsets of chunks, in the order asked for; none is an empty batch of the same kind."""
    given_kwargs = kwargs(2, 1, 3)
    starts = [0, 2, 3, 6]
    chosen = manager_of(llama4, [4]).model.select_encoder_cudagraph_items(given_kwargs, indices)
    expected = [given_kwargs["pixel_values"][starts[i] : starts[i + 1]] for i in indices]
    assert torch.equal(chosen["pixel_values"], torch.cat([given_kwargs["pixel_values"][:0], *expected]))
    assert chosen["patches_per_image"].tolist() == [[2, 1, 3][i] for i in indices]


@pytest.mark.rule("B5")
def test_capture_inputs_replay_buffers_and_both_forwards(llama4: Any) -> None:
    """Buffers of the budget's chunks; the graph's forward and the eager one are one function."""
    model = manager_of(llama4, [8]).model
    captured = model.prepare_encoder_cudagraph_capture_inputs(8, 2, 0, torch.device("cpu"), torch.float32)
    assert captured.values["pixel_values"].shape == (2, 3, 56, 56)
    batch = kwargs(2)
    replay = model.prepare_encoder_cudagraph_replay_buffers(batch, 2, 0)
    assert replay.values["pixel_values"] is batch["pixel_values"]
    graph, eager = model.encoder_cudagraph_forward(batch), model.encoder_eager_forward(batch)
    assert torch.equal(graph, eager)
    reference = llama4.encoder_cudagraph_forward(batch)
    torch.testing.assert_close(graph, reference, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(llama4.encoder_eager_forward(batch), reference)


@pytest.mark.rule("A8")
@pytest.mark.rule("B5")
def test_eager_items_are_clones_by_upstream_s_postprocessing(llama4: Any) -> None:
    """Split by item, in order, sharing no memory."""
    manager = manager_of(llama4, [4])
    batch = kwargs(2, 1)
    first, second = manager.run_eagerly(batch)
    whole = manager.model.encoder_eager_forward(batch)
    assert torch.equal(torch.cat([first, second]), whole)
    assert first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr()


@pytest.mark.rule("B4")
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    tiles=st.lists(st.integers(1, 9), min_size=1, max_size=10),
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=6, unique=True),
    max_items=st.integers(1, 4),
)
def test_our_prediction_of_the_packing_is_upstream_s(
    llama4: Any, monkeypatch: pytest.MonkeyPatch, tiles: list[int], sizes: list[int], max_items: int
) -> None:
    """Same batches, same budgets, same order, for any items and budgets."""
    chosen = sorted(4 * size for size in sizes)
    manager = manager_of(llama4, chosen, max_items)
    seen: list[tuple[int | None, int]] = []

    def note(self: Any, batch: dict[str, Any], token_budget: int, **_: Any) -> torch.Tensor:
        seen.append((token_budget, int(batch["patches_per_image"].sum())))
        return torch.zeros(token_budget, 1)

    def eager(batch: dict[str, Any], path: str = "default") -> torch.Tensor:
        seen.append((None, int(batch["patches_per_image"].sum())))
        return torch.zeros(4 * seen[-1][1], 1)

    monkeypatch.setattr(BudgetGraphs, "_run_budget_graph", note)
    monkeypatch.setattr(manager.model, "encoder_eager_forward", eager)
    batch = {"pixel_values": torch.zeros(sum(tiles), 1), "patches_per_image": torch.tensor(tiles)}
    manager.execute(batch)
    plan = budgets.plan([4 * n for n in tiles], chosen, manager.max_batch_size)
    assert seen == [(budget, sum(tiles[i] for i in items)) for budget, items in plan.batches]


class RerunGraph:
    """Stands for a CUDA graph: a replay runs the function again on the static buffers."""

    def __init__(self, shape: ExactShapeGraph) -> None:
        self.shape = shape

    def replay(self) -> None:
        held = next(iter(self.shape._manager._get_graph_set().values()))
        held.output_buffer.copy_(self.shape._model.encoder_cudagraph_forward(held.input_buffers))


@pytest.fixture
def no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Upstream's capture without a device: the recording context records nothing."""
    module = "vllm.v1.worker.encoder_cudagraph"
    monkeypatch.setattr(f"{module}.torch.cuda.CUDAGraph", lambda: None)
    monkeypatch.setattr(f"{module}.torch.cuda.graph", lambda *_, **__: contextlib.nullcontext())
    monkeypatch.setattr(f"{module}.current_stream", lambda: None)


@pytest.mark.rule("A7")
@pytest.mark.rule("A8")
def test_one_shape_through_upstream_s_manager(no_cuda: None) -> None:
    """Buffers of our own before the capture, exact copies in, a clone out, absent inputs stay absent."""

    def function(inputs: Any) -> torch.Tensor:
        assert inputs["mask"] is None
        return inputs["x"] * inputs["scale"]

    first = {"x": torch.ones(2, 3, 4), "scale": torch.tensor(2.0), "mask": None}
    shape = ExactShapeGraph(function, first, torch.device("cpu"))
    shape.capture("pool")
    held = next(iter(shape._manager._get_graph_set().values()))
    held.graph = RerunGraph(shape)
    buffers = {name: buffer.data_ptr() for name, buffer in held.input_buffers.items()}
    assert buffers["x"] != first["x"].data_ptr()  # type: ignore[union-attr]
    kept = shape.replay({"x": torch.full((2, 3, 4), 5.0), "scale": torch.tensor(3.0), "mask": None})
    assert torch.equal(kept, torch.full((2, 3, 4), 15.0))
    again = shape.replay({"x": torch.zeros(2, 3, 4), "scale": torch.tensor(1.0), "mask": None})
    assert torch.equal(again, torch.zeros(2, 3, 4))
    assert torch.equal(kept, torch.full((2, 3, 4), 15.0))
    assert kept.untyped_storage().data_ptr() != held.output_buffer.untyped_storage().data_ptr()
    assert {name: buffer.data_ptr() for name, buffer in held.input_buffers.items()} == buffers


@pytest.mark.rule("A7")
def test_a_capture_leaves_no_reference_to_the_first_call_s_inputs(no_cuda: None) -> None:
    """The graph keeps its own buffers and nothing of the caller's."""
    x = torch.ones(1, 2)
    shape = ExactShapeGraph(lambda inputs: inputs["x"] + 1, {"x": x}, torch.device("cpu"))  # type: ignore[operator]
    shape.capture("pool")
    alive = weakref.ref(x)
    del x
    assert alive() is None
