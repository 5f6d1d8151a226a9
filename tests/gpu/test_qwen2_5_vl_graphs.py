"""Budget graphs of Qwen2.5-VL's vision encoder on real hardware, real dimensions (needs a GPU and vLLM)."""

import time
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import random_encoders
from deployments.families.base import EncoderInputs
from deployments.families.qwen2_5_vl import Qwen25VL, VisionCore, grid_key
from policies.admission import BudgetOptions

pytestmark = pytest.mark.gpu

FAMILY = Qwen25VL(hidden_size=3584, max_pixels=12_845_056)
DECODER_TOKENS = 8192


@pytest.fixture(scope="module")
def qwen(world: None) -> Any:
    return random_encoders.qwen2_5_vl(torch.bfloat16, "cuda:0")


@pytest.fixture(scope="module")
def exact(world: None) -> Any:
    """The same weights in float32, with torch's attention: upstream's kernel for float32 works in tf32."""
    from vllm.platforms import current_platform
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    def torch_alone(cls: Any) -> list[Any]:
        return [AttentionBackendEnum.TORCH_SDPA]

    with pytest.MonkeyPatch.context() as patch:
        platform = type(current_platform)
        patch.setattr(platform, "get_supported_vit_attn_backends", classmethod(torch_alone))
        model = random_encoders.qwen2_5_vl(torch.float32, "cuda:0")
    assert model.visual.attn_backend is AttentionBackendEnum.TORCH_SDPA
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.bfloat16).float()
    return model


def error(out: torch.Tensor, reference: torch.Tensor) -> float:
    """Norm of the difference over the norm of the reference."""
    return float((out.float() - reference).norm() / reference.norm())


def picture(rows: int, columns: int) -> EncoderInputs:
    return FAMILY.stand_in("vision", grid_key((rows, columns)))


def core_of(model: Any, *budgets: int, enabled: bool = True) -> VisionCore:
    options = BudgetOptions(enabled, budgets, decoder_tokens=DECODER_TOKENS, min_free_bytes=0)
    core = VisionCore(model, options, "cuda:0")
    core.adapter.start()
    return core


def eagerly(model: Any, item: EncoderInputs) -> torch.Tensor:
    pixels = torch.from_numpy(np.asarray(item.arrays["pixel_values"])).to("cuda", torch.bfloat16)
    pixels = pixels.to(model.visual.dtype)  # rounded alike for every model
    out: torch.Tensor = model.visual(pixels, [[int(n) for n in item.arrays["image_grid_thw"]]])
    return out


@pytest.mark.rule("C2")
@pytest.mark.rule("B4")
def test_replays_of_full_budgets_equal_eager(qwen: Any) -> None:
    """Bit for bit where a picture fills its budget, also several pictures in one call, each in its own."""
    core = core_of(qwen, 64, 256, 1024)
    for grid, count in (((16, 16), 1), ((32, 32), 1), ((64, 64), 1), ((16, 16), 3)):
        item = picture(*grid)
        eager = eagerly(qwen, item)
        assert all(torch.equal(out, eager) for out in core.encode([item] * count)), grid
    stats = core.adapter.stats()
    assert (stats.graph_misses, stats.graph_hits, stats.num_graphs, stats.tokens_padded) == (0, 6, 3, 0)


@pytest.mark.rule("C2")
@pytest.mark.rule("B4")
def test_padding_adds_no_error(qwen: Any, exact: Any) -> None:
    """Against float32 a padded replay is at most 1.2 times as far off as an eager run of the picture alone.

    The two round apart, for their products have other shapes: by as much as bfloat16 is off.
    """
    core = core_of(qwen, 64, 256, 1024)
    for grid in ((20, 14), (46, 62), (2, 140)):
        item = picture(*grid)
        eager, (out,), reference = eagerly(qwen, item), core.encode([item]), eagerly(exact, item)
        by_eager, by_graph = error(eager, reference), error(out, reference)
        print(f"{grid}: eager {by_eager:.5f}, padded {by_graph:.5f}, apart {error(out, eager.float()):.5f}")
        assert by_graph <= 1.2 * by_eager
        assert by_eager < 0.05
    stats = core.adapter.stats()
    assert (stats.graph_misses, stats.graph_hits) == (0, 3)
    assert stats.tokens_padded == 2 * (256 - 70) + (1024 - 713)


@pytest.mark.rule("C2")
def test_canary_small_large_small(qwen: Any) -> None:
    """The small picture's answer is the same bits after larger ones ran in the shared pool."""
    core = core_of(qwen, 64, 256, 1024)
    small, large = picture(12, 20), picture(60, 60)
    first = core.encode([small])[0]
    kept = first.clone()
    for _ in range(3):
        core.encode([large])
    assert torch.equal(core.encode([small])[0], kept)
    assert torch.equal(first, kept)


def test_what_a_replay_costs(qwen: Any) -> None:
    """Prints medians of an eager run and a replay, by tokens; a replay of a small picture is the faster."""
    core, without = core_of(qwen, 64, 256, 1024, 4096), core_of(qwen, 64, enabled=False)
    wins = {}
    for side in (16, 32, 64, 128):
        item = picture(side, side)
        graph = _median_ms(lambda item=item: core.encode([item]))
        eager = _median_ms(lambda item=item: without.encode([item]))
        wins[item.tokens] = eager / graph
        print(f"{item.tokens} tokens: eager {eager:.2f} ms, graph {graph:.2f} ms")
    assert wins[64] > 1


def _median_ms(run: Any, times: int = 15) -> float:
    taken = []
    for _ in range(times):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        run()
        torch.cuda.synchronize()
        taken.append((time.perf_counter() - begun) * 1e3)
    return float(np.median(taken))
