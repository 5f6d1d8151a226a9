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


def picture(rows: int, columns: int) -> EncoderInputs:
    return FAMILY.stand_in("vision", grid_key((rows, columns)))


def core_of(model: Any, *budgets: int, enabled: bool = True) -> VisionCore:
    options = BudgetOptions(enabled, budgets, decoder_tokens=DECODER_TOKENS, min_free_bytes=0)
    core = VisionCore(model, options, "cuda:0")
    core.adapter.start()
    return core


def eagerly(model: Any, item: EncoderInputs) -> torch.Tensor:
    pixels = torch.from_numpy(np.asarray(item.arrays["pixel_values"])).to("cuda", torch.bfloat16)
    out: torch.Tensor = model.visual(pixels, [[int(n) for n in item.arrays["image_grid_thw"]]])
    return out


@pytest.mark.rule("C2")
@pytest.mark.rule("B4")
def test_replays_equal_eager_within_the_stated_tolerance(qwen: Any) -> None:
    """Budgets filled to the last row and padded ones; several pictures in one call."""
    core = core_of(qwen, 64, 256, 1024)
    for grid, count in (((16, 16), 1), ((20, 14), 1), ((64, 64), 1), ((46, 62), 1), ((16, 16), 3)):
        item = picture(*grid)
        eager = eagerly(qwen, item).float()
        for out in core.encode([item] * count):
            error = ((out.float() - eager).norm() / eager.norm()).item()
            print(f"{count} of {grid}: against eager alone: {error:.5f}, equal {error == 0.0}")
            assert error < 0.01
    stats = core.adapter.stats()
    assert (stats.graph_misses, stats.graph_hits, stats.num_graphs) == (0, 7, 3)
    assert stats.tokens_padded == (256 - 70) + (1024 - 713)  # three of 64 take a replay each


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
