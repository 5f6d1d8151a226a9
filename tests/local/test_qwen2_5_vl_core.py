"""Qwen2.5-VL's GPU half on the tiny checkpoint on the CPU, held against upstream's functions (needs vLLM).

Graphs are imitated by running what would be captured again on the same buffers: upstream's capture inputs,
replay buffers, padding, packing and splitting are all its own.
"""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import random_encoders
from deployments.families.base import EncoderInputs
from deployments.families.qwen2_5_vl import Qwen25VL, VisionCore, grid_key
from deployments.families.registry import load_family
from deployments.upstream import encoder_model
from deployments.upstream.encoder_graphs import BudgetGraphs, manager_config
from policies.admission import BudgetOptions
from policies.budgets import graphs_lose
from tests.media import drawn
from tiny_models import folders

SPEC = encoder_model.EncoderModelSpec(str(folders.ensure("qwen2_5_vl")), "image", "float32")
SIZES = [(120, 90), (420, 300), (300, 500), (28, 28), (30, 700), (700, 30)]


def without_padding(buffers: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The CPU's attention, other than the GPU's, takes no rows beyond the end of the last sequence."""
    patches = int(buffers["cu_seqlens"][-1])
    per_patch = ("pixel_values", "rotary_pos_emb_cos", "rotary_pos_emb_sin")
    per_token = ("window_index", "reverse_indices")
    cut = {**dict.fromkeys(per_patch, patches), **dict.fromkeys(per_token, patches // 4)}
    return {name: buffer[: cut[name]] if name in cut else buffer for name, buffer in buffers.items()}


class ImitatedGraphs(BudgetGraphs):
    """Upstream's manager whose graphs run the forward again instead of replaying it."""

    def _capture_budget_graph(self, token_budget: int, path: str = "default", axis_keys: Any = ()) -> None:
        from vllm.v1.worker.encoder_cudagraph import BudgetGraphMetadata

        limits = (self.max_batch_size, self.max_frames_per_batch)
        inputs = self.model.prepare_encoder_cudagraph_capture_inputs(
            token_budget, *limits, self.device, self.dtype, path, axis_keys
        )
        out = torch.empty_like(self.model.encoder_cudagraph_forward({**inputs.values}))

        def replay() -> None:
            rows = self.model.encoder_cudagraph_forward(without_padding(inputs.values))
            out[: len(rows)].copy_(rows)

        graph: Any = SimpleNamespace(replay=replay)
        held = BudgetGraphMetadata(token_budget, *limits, graph, inputs.values, out, axis_keys)
        self._get_graph_set(path)[token_budget] = held


@pytest.fixture(scope="module")
def config() -> Any:
    return encoder_model.encoder_config(SPEC)


@pytest.fixture(scope="module")
def model(config: Any) -> Iterator[Any]:
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader import get_model

    with random_encoders.vllm_world(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.accelerator, "empty_cache", lambda: None)
        with set_current_vllm_config(config):
            loaded = get_model(vllm_config=config).eval()
        with encoder_model.running(config):
            yield loaded


@pytest.fixture(scope="module")
def family() -> Qwen25VL:
    loaded = load_family(SPEC.model)
    assert isinstance(loaded, Qwen25VL)
    return loaded


@pytest.fixture(scope="module")
def pictures(config: Any, family: Qwen25VL) -> list[EncoderInputs]:
    prepare = family.preprocessor("vision", config)
    return [prepare(drawn(*size, seed=number)) for number, size in enumerate(SIZES)]


def upstream(model: Any, item: EncoderInputs) -> torch.Tensor:
    out: torch.Tensor = model.embed_multimodal(
        pixel_values=torch.from_numpy(item.arrays["pixel_values"]),
        image_grid_thw=torch.from_numpy(item.arrays["image_grid_thw"]).reshape(1, 3),
    )[0]
    return out


def graphs_of(model: Any, core: VisionCore, budgets: list[int], items: int) -> ImitatedGraphs:
    limits = {"max_num_batched_tokens": 1024, "max_model_len": 1024}
    settings = manager_config(token_budgets=budgets, max_items=items, **limits)
    graphs = ImitatedGraphs(model, core._forward, settings, core.device, core.dtype, lambda: True)
    graphs.capture(object())
    return graphs


def batch_of(items: list[EncoderInputs]) -> dict[str, Any]:
    pixels = np.concatenate([np.asarray(item.arrays["pixel_values"]) for item in items])
    grids = [[int(n) for n in item.arrays["image_grid_thw"]] for item in items]
    return {"pixel_values": torch.from_numpy(pixels), "image_grid_thw": grids}


def test_the_header_predicts_what_upstreams_processor_gives(
    family: Qwen25VL, pictures: list[EncoderInputs]
) -> None:
    """Through all of upstream's processor, in this environment's image processor: key, tokens, grid."""
    for size, item in zip(SIZES, pictures, strict=True):
        assert item.shape_key == grid_key(family.grid(*size))
        assert item.tokens == family.expected_tokens("vision", item.metadata)
        stand_in = family.stand_in("vision", item.shape_key)
        assert {name: array.shape for name, array in stand_in.arrays.items()} == {
            name: array.shape for name, array in item.arrays.items()
        }


@pytest.mark.rule("C2")
def test_each_picture_equals_upstream_bit_for_bit(model: Any, pictures: list[EncoderInputs]) -> None:
    """Alone, and beside others of its own shape, as the encoder's batches are."""
    core = VisionCore(model, BudgetOptions(decoder_tokens=1024), "cpu")
    for item in pictures:
        alone = core.encode([item])[0]
        assert torch.equal(alone, upstream(model, item))
        assert all(torch.equal(row, alone) for row in core.encode([item] * 3))
    counts = core.adapter.stats()
    assert (counts.unit, counts.graph_hits, counts.ineligible_misses) == ("items", 0, 4 * len(pictures))


def test_the_adapter_sits_where_it_is_looked_for(model: Any) -> None:
    """On the model and on its encoder."""
    core = VisionCore(model, BudgetOptions(), "cpu")
    assert model._encoder_graph is model.visual._encoder_graph is core.adapter


@pytest.mark.rule("B2")
def test_budgets_go_from_upstreams_smallest_to_what_the_decoder_takes(model: Any) -> None:
    """The decoder's limit, and this process's own where the decoder's is not known."""
    smallest, own = model.get_encoder_cudagraph_budget_range(model.vllm_config)
    budgets = VisionCore(model, BudgetOptions(decoder_tokens=1000), "cpu").adapter.manager.token_budgets
    assert (budgets[0], budgets[-1]) == (smallest, 960)
    budgets = VisionCore(model, BudgetOptions(), "cpu").adapter.manager.token_budgets
    assert own - smallest < budgets[-1] <= own


@pytest.mark.rule("B4")
def test_a_small_picture_is_worth_a_large_graph(model: Any) -> None:
    """Measured on an H200: 33 ms for any eager run of up to 1024 tokens; 28 for a replay of as many."""
    costs = VisionCore(model, BudgetOptions(), "cpu").adapter._costs
    assert not graphs_lose([1024], 70, **costs)
    assert graphs_lose([2048], 70, **costs)
    assert not graphs_lose([2048], 2048, **costs)
    assert graphs_lose([64] * 8, 8 * 64, **costs), "eight replays where one eager run does it"


@pytest.mark.rule("B5")
@pytest.mark.parametrize("items", [1, 4])
def test_replays_of_any_packing_equal_upstream(model: Any, pictures: list[EncoderInputs], items: int) -> None:
    """Each picture in its budget, padded, alone or with others, in any order; then a small one again."""
    core = VisionCore(model, BudgetOptions(), "cpu")
    graphs = graphs_of(model, core, [16, 64, 128, 256], items)
    assert graphs.captured_budgets == [16, 64, 128, 256]
    order = [*pictures, pictures[3], *reversed(pictures)]
    for item, row in zip(order, graphs.execute(batch_of(order)), strict=True):
        torch.testing.assert_close(row, upstream(model, item), rtol=1e-5, atol=2e-5)
    assert sum(real for _, real in graphs.replays) == sum(item.tokens for item in order)
    assert max(budget for budget, _ in graphs.replays) == (128 if items == 1 else 256)


@pytest.mark.rule("B5")
def test_an_item_larger_than_every_budget_runs_eagerly(model: Any, pictures: list[EncoderInputs]) -> None:
    """And its smaller neighbour is replayed all the same."""
    core = VisionCore(model, BudgetOptions(), "cpu")
    graphs = graphs_of(model, core, [16], 1)
    rows = graphs.execute(batch_of(pictures[:2]))
    for item, row in zip(pictures[:2], rows, strict=True):
        torch.testing.assert_close(row, upstream(model, item), rtol=1e-5, atol=2e-5)
    assert graphs.replays == [(16, pictures[0].tokens)]


@pytest.mark.rule("B5")
def test_items_and_their_selection(model: Any, pictures: list[EncoderInputs]) -> None:
    """Sizes are patches in and merged patches out; a selection holds its own rows, an empty one none."""
    batch = batch_of(pictures)
    specs = model.get_encoder_cudagraph_item_specs(batch)
    assert [spec.output_tokens for spec in specs] == [item.tokens for item in pictures]
    assert [spec.input_size for spec in specs] == [len(item.arrays["pixel_values"]) for item in pictures]
    chosen = model.select_encoder_cudagraph_items(batch, [2, 0])
    expected = batch_of([pictures[2], pictures[0]])
    assert chosen["image_grid_thw"] == expected["image_grid_thw"]
    assert torch.equal(chosen["pixel_values"], expected["pixel_values"])
    empty = model.select_encoder_cudagraph_items(batch, [])
    assert (len(empty["pixel_values"]), empty["image_grid_thw"]) == (0, [])
