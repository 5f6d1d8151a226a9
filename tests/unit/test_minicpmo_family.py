"""What the family says from a header alone equals what the checkpoint's own processors make of the media."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from deployments.families.base import UNKNOWN_KEY
from deployments.families.minicpmo import (
    CHUNK_SAMPLES,
    MiniCPMO,
    chunk_frames,
    frames_key,
    grids_key,
    parse_frames_key,
    parse_grids_key,
)
from tests.media import sound_bytes, tone
from toy_model import configs
from toy_model.checkpoint_code import image_processing_minicpmo as pictures

TOY = MiniCPMO.from_checkpoint(configs.model_config(), configs.preprocessor_config())
FULL = MiniCPMO(hidden_size=4096)  # the real checkpoint's numbers: 448 px, 9 slices
FAMILIES = {"toy": TOY, "448": FULL}


def processor_of(family: MiniCPMO) -> Any:
    return pictures.MiniCPMVImageProcessor(
        max_slice_nums=family.max_slice_nums,
        scale_resolution=family.scale_resolution,
        patch_size=family.patch_size,
    )


def real_grids(family: MiniCPMO, width: int, height: int) -> list[tuple[int, int]]:
    """Patch grids as the checkpoint's rules cut a picture, without its pixels."""
    side, patch = family.scale_resolution, family.patch_size
    grid = pictures.choose_grid((width, height), family.max_slice_nums, side)
    sizes = [pictures.fit_size((width, height), side, patch, upscale=grid is None)]
    if grid is not None:
        columns, rows = grid
        cell = (
            pictures.to_multiple(width, columns) / columns,
            pictures.to_multiple(height, rows) / rows,
        )
        sizes += [pictures.fit_size(cell, side, patch, upscale=True)] * (columns * rows)
    return [(h // patch, w // patch) for w, h in sizes]


@settings(max_examples=40)
@given(st.integers(1, 700), st.integers(1, 700))
@example(140, 140)
@example(141, 140)
@example(1, 700)
def test_grids_are_those_of_the_checkpoints_image_processor(width: int, height: int) -> None:
    """The media key of a picture is the shape that preprocessing it gives, and so is its token count."""
    out = processor_of(TOY).preprocess([[Image.new("RGB", (width, height))]])
    grids = [(int(h), int(w)) for h, w in out["tgt_sizes"][0]]
    assert grids_key(TOY.grids(width, height)) == grids_key(grids)
    assert TOY.expected_tokens("vision", {"image_sizes": (width, height)}) == TOY.queries * len(grids)
    strips = [tuple(strip.shape) for strip in out["pixel_values"][0]]
    stand_in = TOY.stand_in("vision", grids_key(grids))
    assert [array.shape for array in stand_in.arrays["pixel_values"]] == strips
    assert stand_in.tokens == TOY.queries * len(grids)


@given(st.sampled_from(sorted(FAMILIES)), st.integers(1, 20_000), st.integers(1, 20_000))
@example("448", 448, 448)
@example("448", 449, 448)
@example("448", 1, 20_000)
@example("448", 20_000, 1)
def test_grids_of_any_size(name: str, width: int, height: int) -> None:
    """The slicing rule holds for every size, also at the real checkpoint's 448 pixels."""
    family = FAMILIES[name]
    grids = family.grids(width, height)
    assert grids == real_grids(family, width, height)
    assert len(grids) <= family.max_slice_nums + 1
    assert len(set(grids[1:])) <= 1, "the key says one shape for all slices"
    assert parse_grids_key(grids_key(grids)) == grids


@settings(max_examples=15)
@given(st.integers(1, 1000), st.integers(1, 1000))
def test_full_size_pixels(width: int, height: int) -> None:
    """At 448 pixels too the processor's own output has the predicted grids."""
    out = processor_of(FULL).preprocess([[Image.new("RGB", (width, height))]])
    assert [(int(h), int(w)) for h, w in out["tgt_sizes"][0]] == FULL.grids(width, height)


# ---- sounds ----

EDGES = (1, 159, 160, 161, 8000, CHUNK_SAMPLES - 1, CHUNK_SAMPLES, CHUNK_SAMPLES + 1, 2 * CHUNK_SAMPLES)


@pytest.mark.parametrize("samples", [*EDGES, 24_000, 560_000, 1_123_457])
def test_frames_are_those_of_the_checkpoints_feature_extractor(samples: int) -> None:
    """The media key of a clip is the mel lengths that the processor's own rule gives, chunk by chunk."""
    from transformers import WhisperFeatureExtractor

    from toy_model.checkpoint_code.processing_minicpmo import MiniCPMOProcessor

    extractor = WhisperFeatureExtractor(feature_size=80, hop_length=160, n_fft=400, chunk_length=30)
    rule = MiniCPMOProcessor.__new__(MiniCPMOProcessor)
    rule.feature_extractor, rule.pool_step = extractor, TOY.pool_step
    out = rule.audio_feature_extract([[np.ones(samples, dtype=np.float32)]])
    frames = [int(n) for n in out["audio_feature_lens"][0]]
    assert chunk_frames(samples) == frames
    assert sum(map(TOY.chunk_tokens, frames)) == rule.audio_token_count(samples)


@given(st.integers(0, 10_000_000))
def test_frames_keys_read_back(samples: int) -> None:
    """A key names exactly one list of chunks, none longer than 30 s."""
    frames = chunk_frames(samples)
    assert parse_frames_key(frames_key(frames)) == frames
    assert sum(frames) == math.ceil(samples / 160)
    assert max(frames) <= 3000


@pytest.mark.parametrize(
    ("seconds", "rate", "channels"), [(1.5, 16_000, 1), (2.0, 44_100, 2), (31.0, 8_000, 1)]
)
@pytest.mark.parametrize("sound_format", ["WAV", "FLAC"])
def test_the_key_of_a_clip_is_that_of_its_samples_at_the_models_rate(
    seconds: float, rate: int, channels: int, sound_format: str
) -> None:
    """Rate and channels do not show in the key, length does."""
    data = sound_bytes(tone(seconds, rate, channels), rate, sound_format)
    assert TOY.media_key("audio", data) == frames_key(chunk_frames(round(seconds * 16_000)))


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=4))
def test_a_stand_in_has_the_shape_it_stands_for(frames: list[int]) -> None:
    """Warm-up runs on the shape that was ordered, with content that is not zero."""
    item = TOY.stand_in("audio", frames_key(frames))
    assert [array.shape[1] for array in item.arrays["audio_features"]] == frames
    assert list(item.arrays["audio_feature_lens"]) == frames
    assert all(np.abs(array).max() > 0 for array in item.arrays["audio_features"])


# ---- the checkpoint and the decoder ----


def test_another_version_is_refused() -> None:
    """A checkpoint with other rules is refused by its number instead of answered wrongly."""
    with pytest.raises(ValueError, match=r"2\.6 is not supported"):
        MiniCPMO.from_checkpoint({"version": 2.6, "hidden_size": 8}, {})


def test_embeddings_become_the_parts_that_upstream_takes() -> None:
    """Each encoder's embedding is labelled with its own modality and the given uuid."""
    vision = TOY.content_part("vision", "tensor", {"image_sizes": "size"}, "u")
    assert vision == {
        "type": "image_embeds",
        "image_embeds": {"image_embeds": "tensor", "image_sizes": "size"},
        "uuid": "u",
    }
    audio = TOY.content_part("audio", "tensor", {}, "u")
    assert audio == {"type": "audio_embeds", "audio_embeds": {"audio_embeds": "tensor"}, "uuid": "u"}


@pytest.mark.parametrize(
    ("rate_hz", "samples"), [(0, 1000), (1, 2**36 - 1), (16_000, 2**36 - 1), (0, 2**36 - 1)]
)
def test_a_header_that_lies_about_a_clip_costs_nothing(rate_hz: int, samples: int) -> None:
    """42 bytes that promise centuries, or no rate at all, have no key; limits refuse them later."""
    packed = (rate_hz << 44 | 15 << 36 | samples).to_bytes(8, "big")
    header = b"fLaC" + b"\0\0\0\x22" + bytes(10) + packed + bytes(16)
    assert TOY.media_key("audio", header) == UNKNOWN_KEY
