"""What the family says of a picture from its header equals what upstream's own processor makes of it."""

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil, smart_resize

from deployments.errors import ClientError
from deployments.families.base import UNKNOWN_KEY
from deployments.families.qwen2_5_vl import MAX_RATIO, Qwen25VL, _Preprocessor, grid_key, parse_grid_key
from deployments.families.registry import families
from tests.media import image_bytes
from tiny_models import qwen2_5_vl as checkpoint

TINY = Qwen25VL.from_checkpoint(checkpoint.model_config(), checkpoint.preprocessor_config())
REAL = Qwen25VL(hidden_size=3584, min_pixels=3136, max_pixels=12_845_056)  # the real checkpoints' bounds
FAMILIES = {"tiny": TINY, "real": REAL, "transformers' own bounds": Qwen25VL(hidden_size=8)}


def processor_of(family: Qwen25VL) -> Any:
    return Qwen2VLImageProcessorPil(
        min_pixels=family.min_pixels,
        max_pixels=family.max_pixels,
        patch_size=family.patch_size,
        temporal_patch_size=family.frames,
        merge_size=family.merge_size,
    )


def not_too_thin(width: int, height: int) -> bool:
    return max(width, height) / min(width, height) <= MAX_RATIO


@settings(max_examples=60)
@given(st.integers(1, 900), st.integers(1, 900))
@example(56, 56)
@example(1, 200)
@example(4, 800)
@example(316, 317)
def test_the_grid_is_that_of_upstreams_image_processor(width: int, height: int) -> None:
    """The media key of a picture is the shape that preprocessing it gives, and so is its token count."""
    assume(not_too_thin(width, height))
    out = processor_of(TINY)(Image.new("RGB", (width, height)), return_tensors="np")
    thw = out["image_grid_thw"][0]
    grid = TINY.grid(width, height)
    assert [1, *grid] == [int(n) for n in thw]
    assert TINY.expected_tokens("vision", {"image_grid_thw": thw}) == TINY.grid_tokens(grid)
    stand_in = TINY.stand_in("vision", grid_key(grid))
    assert stand_in.arrays["pixel_values"].shape == out["pixel_values"].shape  # type: ignore[union-attr]
    assert stand_in.tokens == TINY.grid_tokens(grid) == len(out["pixel_values"]) // 4
    assert np.abs(stand_in.arrays["pixel_values"]).max() > 0


@given(st.sampled_from(sorted(FAMILIES)), st.integers(1, 30_000), st.integers(1, 30_000))
@example("real", 28, 28 * 200)
@example("real", 30_000, 150)
@example("tiny", 30_000, 30_000)
def test_the_grid_of_any_size(name: str, width: int, height: int) -> None:
    """The size rule holds for every size, also at the real checkpoints' bounds, and its key reads back."""
    assume(not_too_thin(width, height))
    family = FAMILIES[name]
    step = family.patch_size * family.merge_size
    sides = smart_resize(height, width, step, family.min_pixels, family.max_pixels)
    grid = family.grid(width, height)
    assert grid == tuple(side // family.patch_size for side in sides)
    assert parse_grid_key(grid_key(grid)) == grid


def test_a_picture_that_upstream_refuses_has_no_key() -> None:
    """Sides too far apart give the key ``unknown``: there is no such shape to batch or to warm."""
    assert TINY.media_key("vision", image_bytes(Image.new("RGB", (2, 402)))) == UNKNOWN_KEY


def test_a_picture_that_is_too_thin_is_the_clients_fault() -> None:
    """Upstream's processor would raise a bare ValueError; the client gets a sentence."""
    preprocess = _Preprocessor.__new__(_Preprocessor)
    with pytest.raises(ClientError, match="more than 200 times"):
        preprocess(Image.new("RGB", (402, 2)))


@pytest.mark.parametrize(
    "written",
    [
        {"min_pixels": 6272, "max_pixels": 627200},
        {"size": {"shortest_edge": 6272, "longest_edge": 627200}},
        {"size": {"shortest_edge": 1, "longest_edge": 2}, "min_pixels": 6272, "max_pixels": 627200},
        {"patch_size": 16, "merge_size": 3, "temporal_patch_size": 1},
    ],
)
def test_the_checkpoints_numbers_are_read_as_upstream_reads_them(written: dict[str, Any]) -> None:
    """Both spellings of the bounds, which of them wins, and what stands where nothing is written."""
    family = Qwen25VL.from_checkpoint(checkpoint.model_config(), written)
    upstream = Qwen2VLImageProcessorPil(**written)
    assert (family.min_pixels, family.max_pixels) == (
        upstream.size["shortest_edge"],
        upstream.size["longest_edge"],
    )
    assert (family.patch_size, family.merge_size, family.frames) == (
        upstream.patch_size,
        upstream.merge_size,
        upstream.temporal_patch_size,
    )
    assert family.hidden_size == checkpoint.HIDDEN


def test_an_embedding_becomes_the_part_that_upstream_takes() -> None:
    """The patch grid goes with the embedding, for the decoder places its rows by it."""
    part = TINY.content_part("vision", "tensor", {"image_grid_thw": "grid"}, "u")
    assert part == {
        "type": "image_embeds",
        "image_embeds": {"image_embeds": "tensor", "image_grid_thw": "grid"},
        "uuid": "u",
    }


def test_the_registry_finds_it() -> None:
    """By the architecture name of the checkpoint's config.json."""
    (architecture,) = checkpoint.model_config()["architectures"]
    assert families()[architecture] is Qwen25VL
