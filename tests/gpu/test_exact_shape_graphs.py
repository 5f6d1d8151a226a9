"""Exact-shape graphs on real hardware at the real dimensions, random weights (needs a GPU and vLLM)."""

import gc
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks.encoder_plans import clip, image
from benchmarks.random_encoders import REAL
from deployments.families import minicpmo_gpu
from deployments.graphs.cuda import CudaBackend
from deployments.graphs.exact_shape import ExactShapeGraphs, Inputs
from policies.admission import GraphOptions

pytestmark = pytest.mark.gpu
RNG = np.random.default_rng(0)
NO_FLOOR = GraphOptions(min_free_bytes=0)


def eager_twin(core: Any) -> Any:
    """The same core with graphs off."""
    adapter = ExactShapeGraphs("eager", core.function, GraphOptions(enabled=False), CudaBackend("cuda:0"))
    twin = object.__new__(type(core))
    twin.__dict__.update(core.__dict__, adapter=adapter)
    return twin


def toy_adapter(**options: Any) -> ExactShapeGraphs:
    """A small function with intermediates, so that the pool is used."""
    weight = torch.randn(64, 64, device="cuda")

    def function(inputs: Inputs) -> torch.Tensor:
        x = inputs["x"]
        assert x is not None
        for _ in range(3):
            x = torch.relu(x @ weight) / 8 + 1
        return x

    settings = GraphOptions(**{"min_free_bytes": 0, **options})
    return ExactShapeGraphs("toy", function, settings, CudaBackend("cuda:0", settings.share_pools))


@pytest.mark.rule("C2")
@pytest.mark.rule("A1")
@pytest.mark.parametrize("batch", [1, 4])
def test_vision_graphs_equal_eager_bit_for_bit(minicpmo: Any, batch: int) -> None:
    """Also the two grids of one packed shape, which share a graph, and a small grid."""
    options = GraphOptions(min_free_bytes=0, graph_batch_sizes=(batch,))
    core = minicpmo_gpu.vision_core(minicpmo, options, "cuda:0")
    eager = eager_twin(core)
    for _ in range(3):
        for grid in ((32, 32), (16, 64), (20, 30)):
            items = [image(grid) for _ in range(batch)]
            for graph_out, eager_out in zip(core.encode(items), eager.encode(items), strict=True):
                assert torch.equal(graph_out, eager_out)
    stats = core.adapter.stats()
    assert (stats.num_graphs, stats.graph_hits, stats.warmup_misses) == (2, 7, 2)


@pytest.mark.rule("C2")
@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("frames", [100, 523, 3000])
def test_audio_graphs_equal_eager_bit_for_bit(minicpmo: Any, batch: int, frames: int) -> None:
    """Short, odd and whole chunks."""
    options = GraphOptions(min_free_bytes=0, graph_batch_sizes=(batch,))
    core = minicpmo_gpu.audio_core(minicpmo, options, "cuda:0")
    eager = eager_twin(core)
    for _ in range(3):
        items = [clip(frames) for _ in range(batch)]
        for graph_out, eager_out in zip(core.encode(items), eager.encode(items), strict=True):
            assert torch.equal(graph_out, eager_out)
    assert core.adapter.stats().graph_hits == 2


@pytest.mark.rule("C2")
def test_canary_small_large_small(minicpmo: Any) -> None:
    """The small input's answer is the same bits after larger and other shapes ran, in every order."""
    vision = minicpmo_gpu.vision_core(minicpmo, NO_FLOOR, "cuda:0")
    audio = minicpmo_gpu.audio_core(minicpmo, NO_FLOOR, "cuda:0")
    small, large, other = image((10, 12)), image((32, 32)), image((28, 36), *[(26, 39)] * 6)
    short, long = clip(100), clip(3000)
    first = [vision.encode([small])[0].clone(), audio.encode([short])[0].clone()]
    for order in ((large, small, other), (small, large, large), (other, other, small)):
        for item in order:
            vision.encode([item])
        audio.encode([long])
        assert torch.equal(vision.encode([small])[0], first[0])
        assert torch.equal(audio.encode([short])[0], first[1])
    assert vision.adapter.stats().graph_hits > 3


@pytest.mark.rule("A7")
@pytest.mark.rule("A8")
def test_a_late_capture_changes_nothing_that_a_caller_kept(minicpmo: Any) -> None:
    """Embeddings kept from before captures into the shared pool stay as they are, bit for bit."""
    core = minicpmo_gpu.vision_core(minicpmo, NO_FLOOR, "cuda:0")
    grids = [(32, 32), (20, 20), (24, 40), (12, 60)]
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []
    for grid in grids:
        for _ in range(3):
            out = core.encode([image(grid)])[0]
            kept.append((out, out.clone()))
        again = core.encode([image(grids[0])])[0]
        kept.append((again, again.clone()))
    torch.cuda.synchronize()
    assert core.adapter.stats().num_graphs == 4
    assert all(torch.equal(out, copy) for out, copy in kept)


@pytest.mark.rule("A3")
def test_a_thousand_random_shapes_leave_four_graphs_and_flat_memory() -> None:
    """Once the slots are taken the device's memory stays where it is."""
    adapter = toy_adapter()
    rows = np.random.default_rng(1).integers(1, 2000, 1000)
    reserved = []
    for index, count in enumerate([*rows, *rows[:200]]):
        x = torch.randn(int(count), 64, device="cuda")
        out = adapter({"x": x}, batch_size=1)
        if index == 0:
            first, answer = x, out
        if adapter.stats().num_graphs == 4:
            reserved.append(torch.cuda.memory_reserved())
    assert adapter.stats().num_graphs == 4
    assert torch.equal(adapter({"x": first}, batch_size=1), answer)
    assert len(reserved) > 200
    assert max(reserved[100:]) - min(reserved[100:]) <= 32 << 20  # the allocator's own blocks for eager calls


@pytest.mark.rule("A6")
def test_shared_pools_hold_four_graphs_in_less_memory(minicpmo: Any) -> None:
    """Same graphs, same answers; the numbers are in docs/numbers.md."""
    grids = [(32, 32), (30, 34), (28, 36), (26, 38)]
    items = [image(grid) for grid in grids]
    used, answers = {}, {}
    for share in (False, True):
        gc.collect()
        torch.cuda.empty_cache()
        core = minicpmo_gpu.vision_core(minicpmo, GraphOptions(min_free_bytes=0, share_pools=share), "cuda:0")
        for item in items:
            core.encode([item])
        torch.cuda.empty_cache()
        before = torch.cuda.mem_get_info()[0]
        for item in items:
            core.encode([item])
        torch.cuda.empty_cache()
        used[share] = before - torch.cuda.mem_get_info()[0]
        answers[share] = [core.encode([item])[0] for item in items]
        assert core.adapter.stats().num_graphs == 4
    print(f"four vision graphs: {used[False] >> 20} MiB in pools of their own, {used[True] >> 20} MiB shared")
    assert used[True] < 0.75 * used[False]
    assert all(torch.equal(a, b) for a, b in zip(answers[True], answers[False], strict=True))


@pytest.mark.rule("A6")
def test_pools_are_apart_by_stream_and_by_encoder() -> None:
    """One pool for each replay stream; another adapter has its own."""
    adapter, other = toy_adapter(), toy_adapter()
    x = torch.randn(5, 64, device="cuda")
    side = torch.cuda.Stream()
    for stream in (torch.cuda.current_stream(), side):
        with torch.cuda.stream(stream):
            for held in (adapter, other):
                for _ in range(2):
                    held({"x": x}, batch_size=1)
    pools = [pool for held in (adapter, other) for pool, _ in held._backend._shared.values()]  # type: ignore[attr-defined]
    assert len(pools) == len(set(pools)) == 4


@pytest.mark.rule("A5")
def test_the_memory_floor_is_the_device_s_free_memory() -> None:
    """A floor above it forbids captures and no replay; a lower one lets the next call capture."""
    adapter = toy_adapter(min_free_bytes=torch.cuda.mem_get_info()[0] + (1 << 40))
    x = torch.randn(3, 64, device="cuda")
    for _ in range(4):
        adapter({"x": x}, batch_size=1)
    stats = adapter.stats()
    assert (stats.warmup_misses, stats.memory_misses, stats.num_graphs) == (1, 3, 0)


@pytest.mark.rule("A9")
def test_ineligible_calls_on_the_device() -> None:
    """Grad, autocast, a capturing stream and tensors on the CPU are seen on the real thing."""
    adapter = toy_adapter()
    x = torch.randn(3, 64, device="cuda")
    for _ in range(2):
        with torch.inference_mode(False), torch.enable_grad():
            adapter({"x": x.clone()}, batch_size=1)
        with torch.autocast("cuda", torch.bfloat16):
            adapter({"x": x}, batch_size=1)
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.cuda.stream(stream), torch.no_grad(), torch.cuda.graph(graph, stream=stream):
        adapter({"x": x}, batch_size=1)
    assert adapter.stats().ineligible_misses == 5
    assert adapter.stats().num_graphs == 0


@pytest.mark.rule("C2")
def test_bf16_error_against_float32_is_what_bf16_explains(minicpmo: Any) -> None:
    """Ours is at most 1.2 times upstream's own; both below 3 per cent."""
    from benchmarks import encoder_graphs as bench
    from benchmarks.encoder_errors import relative_errors

    for case in (
        bench.vision_case(minicpmo, 1, (32, 32)),
        bench.audio_case(minicpmo, 1, 3000, "30 s"),
        bench.audio_case(minicpmo, 1, 523, "5 s"),
    ):
        inputs = case.make(torch.Generator("cuda:0").manual_seed(3))
        upstream, ours = relative_errors(case.upstream, case.ours, inputs)
        print(f"{case.module}: upstream {upstream:.5f}, ours {ours:.5f}")
        assert ours <= 1.2 * upstream
        assert upstream < 0.03


def test_the_real_dimensions_are_the_ones_built(minicpmo: Any) -> None:
    """So that no other test measures a toy."""
    assert minicpmo.vpm.config.hidden_size == REAL.vision_width == 1152
    assert len(minicpmo.apm.layers) == 24
