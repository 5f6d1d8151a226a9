"""Budget graphs of Llama 4's vision encoder on real hardware, real dimensions (needs a GPU and vLLM)."""

import gc
from typing import Any

import numpy as np
import pytest
import torch

from deployments.families import llama4_gpu
from deployments.families.base import EncoderInputs
from policies.admission import BudgetOptions

pytestmark = pytest.mark.gpu
RNG = np.random.default_rng(0)
CHUNK = 144


def tiles(count: int) -> EncoderInputs:
    pixels = RNG.standard_normal((count, 3, 336, 336), dtype=np.float32)
    return EncoderInputs({"pixel_values": pixels}, f"{count} tiles", CHUNK * count, {})


def core_of(model: Any, *counts: int, **options: Any) -> llama4_gpu.VisionCore:
    budgets = tuple(CHUNK * n for n in counts)
    settings = BudgetOptions(token_budgets=budgets, decoder_tokens=8192, **{"min_free_bytes": 0, **options})
    core = llama4_gpu.vision_core(model, settings, "cuda:0")
    core.adapter.start()
    return core


@pytest.mark.rule("C2")
@pytest.mark.rule("B4")
def test_replays_equal_eager_within_the_stated_tolerance(llama4: Any) -> None:
    """Bit for bit where the budget is the batch; padded, rows of another product shape may round apart."""
    core = core_of(llama4, 1, 2, 4, 8)
    for counts, exact in (((1,), True), ((2,), True), ((1, 3), True), ((3,), False), ((2, 1), False)):
        batch = [tiles(n) for n in counts]
        for item, out in zip(batch, core.encode(batch), strict=True):
            pixels = torch.from_numpy(np.asarray(item.arrays["pixel_values"])).to("cuda", torch.bfloat16)
            if exact and len(counts) == 1:
                assert torch.equal(out, core.function(pixels))
            else:
                eager = core.function(pixels)
                error = (out.float() - eager.float()).norm() / eager.float().norm()
                print(f"{counts}: padded or joined, against eager alone: {error:.5f}")
                assert error < 0.01
    stats = core.adapter.stats()
    assert (stats.graph_misses, stats.graph_hits, stats.num_graphs) == (0, 7, 4)
    assert stats.tokens_padded == CHUNK  # three tiles in a budget of four


@pytest.mark.rule("C2")
def test_canary_small_large_small(llama4: Any) -> None:
    """The small image's answer is the same bits after larger budgets ran in the shared pool."""
    core = core_of(llama4, 1, 4, 8)
    small, large = tiles(1), tiles(8)
    first = core.encode([small])[0]
    kept = first.clone()
    for _ in range(3):
        core.encode([large])
        core.encode([tiles(4)])
        assert torch.equal(core.encode([small])[0], kept)
    assert torch.equal(first, kept)


@pytest.mark.rule("B3")
def test_the_floor_leaves_budgets_out_and_serving_goes_on(llama4: Any) -> None:
    """All left out here, since free memory does not depend on the budget; counted, named, eager."""
    core = core_of(llama4, 1, 4, min_free_bytes=1 << 50)
    out = core.encode([tiles(1), tiles(4)])
    assert [len(o) for o in out] == [CHUNK, 4 * CHUNK]
    assert core.adapter.left_out_budgets == (CHUNK, 4 * CHUNK)
    assert core.adapter.stats().memory_misses == 2


def test_graphs_that_are_garbage_break_no_capture(llama4: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Destroying a graph while another is captured breaks that: so a collection in between leaves them."""
    enter = torch.cuda.graph.__enter__

    def enter_and_collect(graph: torch.cuda.graph) -> None:
        enter(graph)
        gc.collect()

    garbage: list[Any] = [core_of(llama4, 1, 4)]
    garbage.append(garbage)
    del garbage
    monkeypatch.setattr(torch.cuda.graph, "__enter__", enter_and_collect)
    assert core_of(llama4, 1, 2, 4).adapter.stats().num_graphs == 3


@pytest.mark.rule("B2")
def test_every_default_budget_captures(llama4: Any) -> None:
    """From one chunk to the decoder's limit; what they take is printed for docs/numbers.md."""
    torch.cuda.empty_cache()
    before = torch.cuda.mem_get_info()[0]
    core = core_of(llama4)
    torch.cuda.empty_cache()
    taken = before - torch.cuda.mem_get_info()[0]
    print(f"{core.adapter.stats().num_graphs} budgets up to 8192 tokens: {taken >> 20} MiB")
    assert core.adapter.stats().num_graphs == len(core.adapter.manager.token_budgets) == 25
    core.encode([tiles(17)])
    assert core.adapter.stats().tokens_padded == 0


def test_bf16_error_against_float32_is_what_bf16_explains(llama4: Any) -> None:
    """Ours is at most 1.2 times upstream's own."""
    from benchmarks import encoder_graphs as bench
    from benchmarks.encoder_errors import relative_errors

    case = bench.tile_case(llama4, 1)
    inputs = case.make(torch.Generator("cuda:0").manual_seed(3))
    upstream, ours = relative_errors(case.upstream, case.ours, inputs)
    print(f"Llama 4 tile: upstream {upstream:.5f}, ours {ours:.5f}")
    assert ours <= 1.2 * upstream
    assert upstream < 0.03
