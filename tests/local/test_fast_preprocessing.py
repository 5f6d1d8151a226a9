"""The faster way to MiniCPM-o's encoder inputs against the checkpoint's own processor (needs vLLM).

Always with the embedded model's processor; with the real one where GRAPHSERVE_MINICPMO_FILES names a
folder with MiniCPM-o 4.5's public files (see tests/cluster/test_real_files.py).
"""

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from deployments.encoders.media_decode import decode_image
from deployments.errors import ClientError
from deployments.families.base import EncoderInputs
from deployments.families.minicpmo import MiniCPMO, float_arrays, grids_key
from deployments.families.minicpmo_preprocess import (
    CheckpointPreprocessor,
    FastPictures,
    make_preprocessor,
    why_not_fast,
)
from deployments.families.registry import load_family
from deployments.upstream.encoder_model import EncoderModelSpec, encoder_config
from policies.limits import MediaLimits
from tests import media
from tests.cluster.test_real_files import VARIABLE, reduced_checkpoint
from toy_model.checkpoint_code import image_processing_minicpmo as pictures
from toy_model.write import ensure

TOLERANCE = 1e-6
MODALITY = {"vision": "image", "audio": "audio"}
CHECKPOINTS = [
    "embedded",
    pytest.param(
        "real",
        marks=pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} names no folder"),
    ),
]


@dataclass(frozen=True)
class Ways:
    fast: Callable[[Any], EncoderInputs]
    own: Callable[[Any], EncoderInputs]


def config_of(folder: str, encoder: str) -> Any:
    return encoder_config(EncoderModelSpec(folder, MODALITY[encoder], "float32", trust_remote_code=True))


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, str], Ways]:
    """Both ways for a checkpoint and an encoder."""

    @cache
    def folder(name: str) -> str:
        if name == "embedded":
            return str(ensure())
        return str(reduced_checkpoint(Path(os.environ[VARIABLE]), tmp_path_factory.mktemp("real")))

    @cache
    def made(name: str, encoder: str) -> Ways:
        family: Any = load_family(folder(name))
        config = config_of(folder(name), encoder)
        fast = make_preprocessor(family, encoder, config)
        assert getattr(fast, "preprocessing", None) == "fast"
        return Ways(fast, CheckpointPreprocessor(family, encoder, config))

    return made


def check_equal(ways: Ways, medium: Any, tolerance: float) -> None:
    """Shape key, tokens, names, types, shapes and values; or both refuse the medium."""
    try:
        theirs = ways.own(medium)
    except Exception:
        with pytest.raises((ClientError, ValueError)):
            ways.fast(medium)
        return
    ours = ways.fast(medium)
    assert (ours.shape_key, ours.tokens) == (theirs.shape_key, theirs.tokens)
    for mine, own in ((float_arrays(ours), theirs.arrays), (ours.metadata, theirs.metadata)):
        assert mine.keys() == own.keys()
        for name, value in own.items():
            many = isinstance(value, list)
            for a, b in zip(mine[name] if many else [mine[name]], value if many else [value], strict=True):
                assert (a.dtype, a.shape) == (b.dtype, b.shape), name
                np.testing.assert_allclose(a, b, rtol=0, atol=tolerance, err_msg=name)


def picture(width: int, height: int, seed: int = 0) -> Image.Image:
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_pictures_of_any_size(ways: Any, checkpoint: str) -> None:
    """Every number of every strip is the same, bit for bit, from one pixel to many slices, however thin."""
    both = ways(checkpoint, "vision")

    @settings(max_examples=40)
    @given(st.integers(1, 900), st.integers(1, 900), st.integers(0, 9))
    @example(1, 1, 0)
    @example(2, 3, 0)
    @example(3, 2, 0)
    @example(1, 900, 0)
    @example(900, 1, 0)
    @example(37, 2000, 0)
    @example(139, 280, 0)
    @example(140, 140, 0)
    @example(1344, 1344, 0)
    @example(1300, 900, 0)
    def check(width: int, height: int, seed: int) -> None:
        check_equal(both, picture(width, height, seed), 0)

    check()


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "L", "LA", "P", "1", "CMYK", "I;16"])
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_pictures_of_any_kind(ways: Any, checkpoint: str, mode: str) -> None:
    """What a file holds (alpha, a palette, grey, 16 bits) comes out the same, and photographs do."""
    image = media.photo("chelsea").resize((500, 330))
    if mode == "I;16":
        image = Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 256)
    else:
        image = image.convert(mode)
    if "A" in mode:
        image.putalpha(Image.linear_gradient("L").resize(image.size))
    data = media.image_bytes(image, "TIFF" if mode == "CMYK" else "PNG")
    limits = MediaLimits(image_formats=("PNG", "TIFF"))
    check_equal(ways(checkpoint, "vision"), decode_image(data, limits), 0)


@settings(max_examples=15)
@given(st.integers(1, 1500), st.integers(1, 1500))
@example(1344, 1344)
@example(1300, 900)
def test_pictures_at_the_real_slice_size(width: int, height: int) -> None:
    """At 448 pixels a slice the strips are those of the embedded processor's code, set to that size."""
    own = pictures.MiniCPMVImageProcessor(scale_resolution=448)
    family = MiniCPMO(hidden_size=8)
    image = picture(width, height)
    ours = FastPictures(family, own, lambda _: None)(image)  # type: ignore[arg-type,return-value]
    theirs = own.preprocess([[image]])
    assert ours.shape_key == grids_key([(int(h), int(w)) for h, w in theirs["tgt_sizes"][0]])
    for a, b in zip(float_arrays(ours)["pixel_values"], theirs["pixel_values"][0], strict=True):
        np.testing.assert_array_equal(a, b.numpy())


def test_each_colour_has_its_own_mean_and_spread() -> None:
    """A checkpoint with three means and three spreads gets three tables."""
    own = pictures.MiniCPMVImageProcessor(norm_mean=(0.48, 0.46, 0.41), norm_std=(0.27, 0.26, 0.28))
    image = picture(200, 100)
    ours = FastPictures(MiniCPMO(8, scale_resolution=140), own, lambda _: None)(image)  # type: ignore[arg-type,return-value]
    for a, b in zip(
        float_arrays(ours)["pixel_values"], own.preprocess([[image]])["pixel_values"][0], strict=True
    ):
        np.testing.assert_array_equal(a, b.numpy())


SOUNDS = {
    "noise": lambda rng, n: rng.uniform(-1, 1, n),
    "quiet": lambda rng, n: rng.normal(0, 1e-5, n),
    "silence": lambda rng, n: np.zeros(n),
    "click at the end": lambda rng, n: np.append(np.zeros(n - 1), 1.0),
    "speech": lambda rng, n: media.speech(n / 16_000, seed=int(rng.integers(9)))[:n],
}


@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_clips_of_any_length(ways: Any, checkpoint: str) -> None:
    """Features are within 1e-6 (bit for bit up to 30 s), from one sample to several chunks, silence too."""
    both = ways(checkpoint, "audio")

    @settings(max_examples=60)
    @given(
        st.one_of(st.integers(1, 3000), st.integers(1, 480_000)),
        st.sampled_from(sorted(SOUNDS)),
        st.integers(0, 9),
    )
    @example(1, "noise", 0)
    @example(1599, "noise", 0)
    @example(80_000, "click at the end", 0)
    @example(80_001, "click at the end", 0)
    @example(479_399, "noise", 0)
    @example(479_401, "noise", 0)
    @example(480_000, "speech", 0)
    @example(480_001, "speech", 0)
    @example(480_161, "click at the end", 0)
    @example(560_000, "speech", 0)
    @example(960_000, "quiet", 0)
    @example(1_000_001, "silence", 0)
    def check(samples: int, kind: str, seed: int) -> None:
        clip = SOUNDS[kind](np.random.default_rng(seed), samples).astype(np.float32)
        check_equal(both, clip, 0 if samples <= 480_000 else TOLERANCE)

    check()


@pytest.mark.parametrize("encoder", ["vision", "audio"])
def test_a_16_bit_model_is_prepared_the_fast_way_too(encoder: str) -> None:
    """vLLM rounds in the worker, the encoder's side on its device: the rounded numbers are the same."""
    family: Any = load_family(str(ensure()))
    spec = EncoderModelSpec(str(ensure()), MODALITY[encoder], "bfloat16", trust_remote_code=True)
    fast: Any = make_preprocessor(family, encoder, encoder_config(spec))
    assert (fast.preprocessing, getattr(fast, "why", "")) == ("fast", "")
    medium = picture(420, 300) if encoder == "vision" else media.speech(5)
    ours = float_arrays(fast(medium))
    theirs = CheckpointPreprocessor(family, encoder, encoder_config(spec))(medium).arrays
    name = {"vision": "pixel_values", "audio": "audio_features"}[encoder]
    for a, b in zip(ours[name], theirs[name], strict=True):
        rounded = torch.from_numpy(a).bfloat16().float()
        assert torch.equal(rounded, torch.from_numpy(b))
        assert not np.array_equal(a, b)


# ---- when it is not taken ----


CHANGES = {
    "other code": ("image_processing_minicpmo.py", "/ 255", "/ 256", "is not known (hash"),
    "no slices": (
        "preprocessor_config.json",
        '"slice_mode": true',
        '"slice_mode": false',
        "slice_mode False",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_checkpoint_with_other_rules_keeps_its_own_processor(change: str, tmp_path: Path) -> None:
    """Code that is not known, or an option that the faster way does not follow: it says which."""
    name, old, new, why = CHANGES[change]
    folder = shutil.copytree(ensure(), tmp_path / f"changed-{len(old)}")
    source = (folder / name).read_text()
    assert old in source
    (folder / name).write_text(source.replace(old, new))
    family: Any = load_family(str(folder))
    made: Any = make_preprocessor(family, "vision", config_of(str(folder), "vision"))
    assert made.preprocessing == "checkpoint"
    assert why in made.why
    assert made(picture(112, 84)).arrays["pixel_values"][0].dtype == np.float32


def test_another_pillow_keeps_the_checkpoints_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """The order of Pillow's passes is known for one major version."""
    own = SimpleNamespace(image_processor=pictures.MiniCPMVImageProcessor(scale_resolution=448))
    family = MiniCPMO(hidden_size=8)
    assert why_not_fast(family, "vision", own) is None
    monkeypatch.setattr("PIL.__version__", "14.0.0")
    assert why_not_fast(family, "vision", own) == "Pillow is 14.0.0, known is 13.x"


def test_a_difference_at_start_keeps_the_checkpoints_processor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever the hash says, two ways that disagree on the first items are not exchanged."""
    plain = FastPictures.__init__

    def a_little_off(self: FastPictures, *args: Any) -> None:
        plain(self, *args)
        self.levels = self.levels + np.float32(2e-6)

    monkeypatch.setattr(FastPictures, "__init__", a_little_off)
    family: Any = load_family(str(ensure()))
    made: Any = make_preprocessor(family, "vision", config_of(str(ensure()), "vision"))
    assert made.preprocessing == "checkpoint"
    assert made.why.startswith("the two ways differ for ")
    assert made.why.endswith(" in array pixel_values")


@pytest.mark.parametrize("method", ["__init__", "__call__"])
def test_a_failing_probe_keeps_the_checkpoints_processor(
    monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """A replica starts, and says why, also where the fast way cannot be compiled, kept or run."""

    def broken(*_: Any) -> None:
        raise RuntimeError("no such instruction")

    monkeypatch.setattr(FastPictures, method, broken)
    family: Any = load_family(str(ensure()))
    made: Any = make_preprocessor(family, "vision", config_of(str(ensure()), "vision"))
    assert (made.preprocessing, made.why) == (
        "checkpoint",
        "it failed when tried: RuntimeError('no such instruction')",
    )
