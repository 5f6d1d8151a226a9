"""The GPU halves on small random weights on the CPU, held against upstream's own functions (needs vLLM)."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import random_encoders
from deployments.families import llama4_gpu, minicpmo_gpu, minicpmo_upstream
from deployments.families.base import EncoderInputs
from deployments.families.minicpmo import MiniCPMO, float_arrays
from policies.admission import BudgetOptions, GraphOptions

RNG = np.random.default_rng(0)
Grids = list[tuple[int, int]]


@pytest.fixture(scope="module")
def minicpmo() -> Iterator[Any]:
    with random_encoders.vllm_world():
        yield random_encoders.minicpmo(random_encoders.TOY, torch.float32, "cpu")


@pytest.fixture(scope="module")
def minicpmo_half() -> Iterator[Any]:
    with random_encoders.vllm_world():
        yield random_encoders.minicpmo(random_encoders.TOY, torch.bfloat16, "cpu")


@pytest.fixture(scope="module")
def llama4() -> Iterator[Any]:
    with random_encoders.vllm_world():
        yield random_encoders.llama4(random_encoders.TOY, torch.float32, "cpu")


def image(grids: Grids) -> EncoderInputs:
    pixels = [RNG.standard_normal((3, 14, h * w * 14), dtype=np.float32) for h, w in grids]
    arrays: dict[str, Any] = {"pixel_values": pixels, "tgt_sizes": np.array(grids)}
    return EncoderInputs(arrays, str(grids), 64 * len(grids), {})


def clip(frames: list[int]) -> EncoderInputs:
    features = [RNG.standard_normal((80, n), dtype=np.float32) for n in frames]
    arrays: dict[str, Any] = {"audio_features": features, "audio_feature_lens": np.array(frames)}
    return EncoderInputs(arrays, str(frames), 0, {})


def upstream_image(model: Any, item: EncoderInputs) -> torch.Tensor:
    dtype = model.apm.conv1.weight.dtype
    pixels = [torch.from_numpy(p).to(dtype) for p in item.arrays["pixel_values"]]
    sizes = torch.from_numpy(np.asarray(item.arrays["tgt_sizes"]))
    return model.embed_multimodal(pixel_values=[pixels], tgt_sizes=[sizes])[0]


def upstream_clip(model: Any, item: EncoderInputs) -> torch.Tensor:
    dtype = model.apm.conv1.weight.dtype
    features = [torch.from_numpy(f).to(dtype) for f in item.arrays["audio_features"]]
    lens = torch.from_numpy(np.asarray(item.arrays["audio_feature_lens"]))
    return model.embed_multimodal(audio_features=features, audio_feature_lens=[lens])[0]


GRIDS = [
    [(32, 32)],
    [(16, 64)],
    [(3, 5)],
    [(1, 1)],
    [(90, 4)],
    [(8, 9)] + [(5, 7)] * 3,
    [(6, 6)] + [(6, 6)] * 2,
]


@pytest.mark.rule("C2")
@pytest.mark.parametrize("grids", GRIDS, ids=str)
def test_an_image_equals_upstream_s_within_float32_rounding(minicpmo: Any, grids: Grids) -> None:
    """Whatever the grids: one slice, several, extreme ones past the resampler's table, a single patch."""
    item = image(grids)
    core = minicpmo_gpu.vision_core(minicpmo, GraphOptions(), "cpu")
    torch.testing.assert_close(core.encode([item])[0], upstream_image(minicpmo, item), rtol=1e-5, atol=2e-5)


@pytest.mark.rule("C2")
@pytest.mark.parametrize(
    "frames",
    [[3000], [100], [9], [37], [999], [700, 700, 450], [600, 12], [600, 90], [600, 103]],
    ids=str,
)
def test_a_clip_equals_upstream_s_within_float32_rounding(minicpmo: Any, frames: list[int]) -> None:
    """Whole and broken chunks, and a short last chunk, whose padding upstream partly hides from its keys."""
    item = clip(frames)
    core = minicpmo_gpu.audio_core(minicpmo, GraphOptions(), "cpu")
    torch.testing.assert_close(core.encode([item])[0], upstream_clip(minicpmo, item), rtol=1e-5, atol=1e-5)


@pytest.mark.rule("C2")
@pytest.mark.parametrize("colours", ["alike", "each its own"])
def test_bytes_are_encoded_as_the_numbers_they_stand_for(
    minicpmo: Any, minicpmo_half: Any, colours: str
) -> None:
    """Strips of bytes with a table give, bit for bit, what the looked-up floats give, in both dtypes."""
    grids = [(8, 9), (5, 7), (5, 7)]
    strips = [RNG.integers(0, 256, (3, 14, h * w * 14), dtype=np.uint8) for h, w in grids]
    levels = RNG.standard_normal((3, 256), dtype=np.float32)
    if colours == "alike":
        levels[1:] = levels[0]
    sizes = {"tgt_sizes": np.array(grids)}
    as_bytes = EncoderInputs({"pixel_values": strips, "levels": levels, **sizes}, "key", 192, {})
    floats = EncoderInputs(float_arrays(as_bytes), "key", 192, {})
    assert [strip.dtype for strip in floats.arrays["pixel_values"]] == [np.float32] * 3
    for model in (minicpmo, minicpmo_half):
        core = MiniCPMO(random_encoders.TOY.hidden).core("vision", model, GraphOptions(), "cpu")
        assert torch.equal(core.encode([as_bytes])[0], core.encode([floats])[0])


@pytest.mark.rule("A1")
def test_two_grids_of_one_packed_shape_differ_by_their_positions_alone(minicpmo: Any) -> None:
    """32 x 32 and 16 x 64 patches have equal tensors; each gets its own grid's answer."""
    core = minicpmo_gpu.vision_core(minicpmo, GraphOptions(), "cpu")
    square = image([(32, 32)])
    wide = EncoderInputs({**square.arrays, "tgt_sizes": np.array([(16, 64)])}, "wide", 64, {})
    shapes = [{k: v.shape for k, v in core.constants(grid).items()} for grid in ((32, 32), (16, 64))]
    assert shapes[0] == shapes[1]
    outputs = [core.encode([item])[0] for item in (square, wide)]
    for item, out in zip((square, wide), outputs, strict=True):
        torch.testing.assert_close(out, upstream_image(minicpmo, item), rtol=1e-5, atol=2e-5)
    assert not torch.allclose(outputs[0], outputs[1], atol=1e-3)


def test_items_of_one_shape_are_the_same_batched_and_alone(minicpmo: Any) -> None:
    """A batch holds one exact shape; each item's rows go back to it in order."""
    vision = minicpmo_gpu.vision_core(minicpmo, GraphOptions(), "cpu")
    images = [image([(8, 9), (5, 7), (5, 7)]) for _ in range(3)]
    for item, out in zip(images, vision.encode(images), strict=True):
        torch.testing.assert_close(out, vision.encode([item])[0])
    audio = minicpmo_gpu.audio_core(minicpmo, GraphOptions(), "cpu")
    clips = [clip([120, 33]) for _ in range(3)]
    for item, out in zip(clips, audio.encode(clips), strict=True):
        torch.testing.assert_close(out, audio.encode([item])[0])


def test_a_mixed_batch_is_refused(minicpmo: Any) -> None:
    """Padding items of different shape to one another would change answers."""
    core = minicpmo_gpu.audio_core(minicpmo, GraphOptions(), "cpu")
    with pytest.raises(ValueError, match="one batch holds one shape"):
        core.encode([clip([100]), clip([200])])


@pytest.mark.rule("A12")
@pytest.mark.rule("A9")
def test_the_adapters_sit_where_upstream_users_look(minicpmo: Any) -> None:
    """``vpm._encoder_graph`` and ``_audio_encoder_graph``; on the CPU every call is an ineligible miss."""
    vision = minicpmo_gpu.vision_core(minicpmo, GraphOptions(), "cpu")
    audio = minicpmo_gpu.audio_core(minicpmo, GraphOptions(), "cpu")
    assert minicpmo.vpm._encoder_graph is vision.adapter
    assert minicpmo._audio_encoder_graph is audio.adapter
    for _ in range(3):
        vision.encode([image([(3, 5)])])
    found = minicpmo.vpm._encoder_graph.get_cumulative_stats()
    assert (found["ineligible_misses"], found["graph_misses"], found["num_graphs"]) == (3, 3, 0)


def test_grid_constants_are_computed_once_and_bounded(minicpmo: Any) -> None:
    """The same tensors come back, and old grids make room."""
    core = minicpmo_gpu.vision_core(minicpmo, GraphOptions(), "cpu")
    first = core.constants((3, 4))["key_positions"]
    assert core.constants((3, 4))["key_positions"] is first
    for columns in range(1, 40):
        core.constants((2, columns))
    assert len(core._constants) == minicpmo_gpu.GRIDS_KEPT


def test_fusing_the_audio_projections_leaves_upstream_s_modules_working(minicpmo: Any) -> None:
    """Its weights become views of the fused ones: same values, no second copy."""
    function = minicpmo_gpu.audio_core(minicpmo, GraphOptions(), "cpu").function
    attention = minicpmo.apm.layers[0].self_attn
    weight = function._qkv[0][0]
    assert attention.k_proj.weight.data_ptr() == weight[attention.embed_dim :].data_ptr()


@pytest.mark.rule("A9")
def test_upstream_s_own_paths_stay_as_they_are(minicpmo: Any) -> None:
    """Nothing of the model is patched: its own functions give what they gave and count nothing."""
    item = clip([250])
    before = upstream_clip(minicpmo, item)
    core = minicpmo_gpu.audio_core(minicpmo, GraphOptions(), "cpu")
    assert torch.equal(upstream_clip(minicpmo, item), before)
    assert core.adapter.stats().graph_misses == 0


def test_in_16_bit_on_the_cpu_items_equal_upstream_s_bit_for_bit(minicpmo_half: Any) -> None:
    """Alone and in company, pictures of slices and clips of chunks; every call is an ineligible miss."""
    family = MiniCPMO(hidden_size=random_encoders.TOY.hidden)
    vision = family.core("vision", minicpmo_half, GraphOptions(), "cpu")
    images = [image([(8, 9), (5, 7), (5, 7)]) for _ in range(3)]
    for item, out in zip(images, vision.encode(images), strict=True):
        assert torch.equal(out, upstream_image(minicpmo_half, item))
    audio = family.core("audio", minicpmo_half, GraphOptions(), "cpu")
    clips = [clip([120, 33]) for _ in range(3)]
    for item, out in zip(clips, audio.encode(clips), strict=True):
        assert torch.equal(out, upstream_clip(minicpmo_half, item))
    assert minicpmo_half.vpm._encoder_graph is vision.adapter
    assert minicpmo_half._audio_encoder_graph is audio.adapter
    assert [core.adapter.stats().ineligible_misses for core in (vision, audio)] == [3, 3]


def test_upstream_s_functions_are_for_16_bit_on_the_cpu_alone(minicpmo: Any, minicpmo_half: Any) -> None:
    """In float32 ours agree within rounding and batch better; on a GPU ours are what is captured."""
    for encoder in ("vision", "audio"):
        assert minicpmo_upstream.preferred(minicpmo_half, encoder, "cpu")
        assert not minicpmo_upstream.preferred(minicpmo_half, encoder, "cuda:0")
        assert not minicpmo_upstream.preferred(minicpmo, encoder, "cpu")


# ---- Llama 4 ----


def tiles(count: int) -> EncoderInputs:
    pixels = RNG.standard_normal((count, 3, 56, 56), dtype=np.float32)
    return EncoderInputs({"pixel_values": pixels}, f"{count} tiles", 4 * count, {})


@pytest.mark.rule("C2")
@pytest.mark.rule("B5")
def test_llama4_images_equal_upstream_s_within_float32_rounding(llama4: Any) -> None:
    """Images of different tile counts in one batch: no tile sees another."""
    core = llama4_gpu.vision_core(llama4, BudgetOptions(decoder_tokens=100), "cpu")
    batch = [tiles(n) for n in (3, 1, 5)]
    for item, out in zip(batch, core.encode(batch), strict=True):
        pixels = torch.from_numpy(np.asarray(item.arrays["pixel_values"]))
        # upstream's eager forward on the CPU takes no single tile (a stride that its kernel refuses)
        both = llama4.encode_image_chunks(torch.cat([pixels, pixels]), use_data_parallel=False)
        torch.testing.assert_close(out, both[: len(pixels)].flatten(0, 1), rtol=1e-5, atol=1e-5)
    assert core.adapter.stats().ineligible_misses == 3


@pytest.mark.rule("B2")
def test_llama4_budgets_run_from_one_chunk_to_the_decoder_s_limit(llama4: Any) -> None:
    """The items' limit comes from the range too; the user's own budgets win."""
    manager = llama4_gpu.vision_core(llama4, BudgetOptions(decoder_tokens=21), "cpu").adapter.manager
    assert manager.token_budgets == [4, 8, 12, 16, 20]
    assert manager.max_batch_size == 4  # no more items than the smallest budget has tokens
    options = BudgetOptions(token_budgets=(8, 16), max_items_per_batch=2, decoder_tokens=64)
    manager = llama4_gpu.vision_core(llama4, options, "cpu").adapter.manager
    assert (manager.token_budgets, manager.max_batch_size) == ([8, 16], 2)


@pytest.mark.rule("B2")
def test_llama4_needs_a_decoder_that_takes_one_chunk(llama4: Any) -> None:
    """A plain error at start, not a graph that no request can reach."""
    with pytest.raises((ValueError, IndexError)):
        llama4_gpu.vision_core(llama4, BudgetOptions(decoder_tokens=3), "cpu")
