"""MiniCPM-o 4.5, media to encoder inputs in a CPU worker: the checkpoint's processor, and a faster way.

The faster way is taken where the checkpoint's code is known by its hash, its options are the usual ones
and both ways agree on a few items at start. Pictures then leave as bytes with a table of what each byte
means, a quarter of the size; the encoder's side looks them up (``minicpmo_gpu``).
"""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import PIL
import torch

from deployments.errors import ClientError
from deployments.families.base import EncoderInputs, Preprocessor
from deployments.families.minicpmo import (
    CHUNK_SAMPLES,
    HOP_SAMPLES,
    MEL_BINS,
    SAMPLE_RATE,
    MiniCPMO,
    chunk_frames,
    float_arrays,
    frames_key,
    grids_key,
)
from deployments.upstream.processing import UpstreamProcessor, to_numpy
from deployments.upstream.source_hash import class_hash

if TYPE_CHECKING:
    from PIL import Image

TOLERANCE = 1e-6
PILLOW_VERSION = "13."  # whose order of passes pillow_bicubic follows
AMBIGUOUS_HEIGHTS = (1, 3)  # transformers takes such a picture's rows for its colours
N_FFT = 400
KNOWN_CODE = {
    "vision": {
        "b6d9ecc449196b895452f7a49e312622",  # the embedded model's
        "2bf6b89c308d65808a816892be7b5535",  # MiniCPM-o 4.5's as published
    },
    "audio": {"e3a41a9d04909b8b45070e9da646a7ea"},  # transformers' WhisperFeatureExtractor
}
"""``class_hash`` of the picture and sound processors whose results the faster way equals."""


def make_preprocessor(family: MiniCPMO, encoder: str, vllm_config: Any) -> Preprocessor:
    """The faster way where it is right for this checkpoint, else the checkpoint's own."""
    checkpoint = CheckpointPreprocessor(family, encoder, vllm_config)
    own = checkpoint.processor.processor.info.get_hf_processor()
    why = why_not_fast(family, encoder, own)
    if why is None:
        rounding = _rounding(vllm_config.model_config.dtype)
        try:
            fast: Preprocessor = (
                FastPictures(family, own.image_processor, checkpoint)
                if encoder == "vision"
                else FastClips(family, own.feature_extractor)
            )
            why = _first_difference(_probes(family, encoder), fast, checkpoint, rounding)
        except Exception as error:  # what is tried here must not keep a replica from starting
            why = f"it failed when tried: {error!r}"
        if why is None:
            return fast
    checkpoint.why = why
    return checkpoint


def why_not_fast(family: MiniCPMO, encoder: str, own: Any) -> str | None:
    """Why code or options of the checkpoint's processor ``own`` forbid the faster way, or None."""
    from transformers import SequenceFeatureExtractor
    from transformers.image_processing_utils import BaseImageProcessor

    part, base, options = (
        (own.image_processor, BaseImageProcessor, _picture_options(family))
        if encoder == "vision"
        else (own.feature_extractor, SequenceFeatureExtractor, _sound_options())
    )
    try:
        found = class_hash(type(part), base)
    except (OSError, TypeError, ValueError) as error:
        return f"the code of {type(part).__name__} cannot be read: {error}"
    if found not in KNOWN_CODE[encoder]:
        return f"the code of {type(part).__name__} is not known (hash {found})"
    if encoder == "vision" and not PIL.__version__.startswith(PILLOW_VERSION):
        return f"Pillow is {PIL.__version__}, known is {PILLOW_VERSION}x"
    for name, wanted in options.items():
        if (value := getattr(part, name, None)) != wanted:
            return f"{type(part).__name__} has {name} {value!r} where {wanted!r} is usual"
    return None


def _picture_options(family: MiniCPMO) -> dict[str, Any]:
    return {
        "slice_mode": True,
        "max_slice_nums": family.max_slice_nums,
        "scale_resolution": family.scale_resolution,
        "patch_size": family.patch_size,
        "image_feature_size": family.queries,
    }


def _sound_options() -> dict[str, Any]:
    return {
        "sampling_rate": SAMPLE_RATE,
        "hop_length": HOP_SAMPLES,
        "n_samples": CHUNK_SAMPLES,
        "n_fft": N_FFT,
        "feature_size": MEL_BINS,
        "dither": 0.0,
        "padding_value": 0.0,
        "padding_side": "right",
    }


class CheckpointPreprocessor:
    """Upstream's processor as it is."""

    preprocessing = "checkpoint"
    why = ""

    def __init__(self, family: MiniCPMO, encoder: str, vllm_config: Any) -> None:
        spec = next(s for s in family.encoders if s.encoder == encoder)
        self.encoder = encoder
        self.processor = UpstreamProcessor(vllm_config, spec.modality)

    def __call__(self, medium: Any) -> EncoderInputs:
        """Prepare one RGB picture or clip. Raises ClientError."""
        arrays, tokens = self.processor(medium)
        arrays = {name: to_numpy(value) for name, value in arrays.items()}
        _refuse_silence(tokens)
        if self.encoder == "vision":
            grids = [(int(h), int(w)) for h, w in arrays["tgt_sizes"]]
            sizes = np.asarray(arrays.pop("image_sizes")).reshape(-1)
            return EncoderInputs(arrays, grids_key(grids), tokens, {"image_sizes": sizes})
        frames = [int(n) for n in np.atleast_1d(arrays["audio_feature_lens"])]
        if isinstance(arrays["audio_features"], np.ndarray):
            arrays["audio_features"] = [arrays["audio_features"]]
        return EncoderInputs(arrays, frames_key(frames), tokens, {})


class FastPictures:
    """A picture cut and resized as the checkpoint does it, in patches of bytes."""

    preprocessing = "fast"

    def __init__(self, family: MiniCPMO, image_processor: Any, checkpoint: Preprocessor) -> None:
        from deployments.upstream.pillow_bicubic import resize

        self.resize = resize
        self.family = family
        self.checkpoint = checkpoint
        mean, std = (np.asarray(v, np.float32)[:, None] for v in (image_processor.mean, image_processor.std))
        self.levels = (np.arange(256, dtype=np.float32) / 255 - mean) / std

    def __call__(self, medium: "Image.Image") -> EncoderInputs:
        """Prepare one RGB picture. Raises ClientError."""
        width, height = medium.size
        if height in AMBIGUOUS_HEIGHTS:
            self.checkpoint(medium)  # which may refuse it
        cut, patch = self.family.cut(width, height), self.family.patch_size
        columns, rows = cut.slices
        sizes = [cut.overview]
        if columns:
            sizes.append((cut.cell[0] * columns, cut.cell[1] * rows))
        overview, *whole = self.resize(np.asarray(medium), sizes)
        strips = list(_strips(overview, 1, 1, patch))
        for planes in whole:
            strips.extend(_strips(planes, columns, rows, patch))
        grids = self.family.grids(width, height)
        arrays: dict[str, Any] = {
            "pixel_values": strips,
            "levels": self.levels,
            "tgt_sizes": np.asarray(grids, dtype=np.int64),
        }
        metadata = {"image_sizes": np.asarray([width, height], dtype=np.int64)}
        return EncoderInputs(arrays, grids_key(grids), self.family.queries * len(grids), metadata)


def _strips(planes: np.ndarray, columns: int, rows: int, patch: int) -> np.ndarray:
    """(3, height, width) to (slices, 3, patch, patches * patch): an image row is a run in a strip."""
    height, width = planes.shape[1] // rows, planes.shape[2] // columns
    runs = planes.reshape(3, rows, height // patch, patch, columns, width).transpose(1, 4, 0, 3, 2, 5)
    return np.ascontiguousarray(runs).reshape(rows * columns, 3, patch, -1)


class FastClips:
    """Whisper's log-mel features of each 30 s chunk, without working on the silence that fills it up."""

    preprocessing = "fast"

    def __init__(self, family: MiniCPMO, feature_extractor: Any) -> None:
        self.family = family
        self.window = torch.hann_window(N_FFT)
        self.filters = torch.from_numpy(feature_extractor.mel_filters).to(torch.float32)

    def __call__(self, medium: np.ndarray) -> EncoderInputs:
        """Prepare one mono float32 clip at 16 kHz. Raises ClientError."""
        tokens = self.family.chunk_tokens(math.ceil(len(medium) / HOP_SAMPLES))
        _refuse_silence(tokens)
        frames = chunk_frames(len(medium))
        starts = range(0, len(medium), CHUNK_SAMPLES)
        features = [
            self._features(medium[start : start + CHUNK_SAMPLES], count)
            for start, count in zip(starts, frames, strict=True)
        ]
        arrays: dict[str, Any] = {
            "audio_features": features,
            "audio_feature_lens": np.asarray(frames, dtype=np.int64),
        }
        return EncoderInputs(arrays, frames_key(frames), tokens, {})

    def _features(self, samples: np.ndarray, frames: int) -> np.ndarray:
        """(80, frames): the same operations as Whisper's, on all frames that hear any of the clip.

        Frames after the clip's last hear it too and count for the peak; later ones hear nothing.
        """
        length = min(CHUNK_SAMPLES, (frames + 4) * HOP_SAMPLES)
        wave = torch.zeros(1, length)
        wave[0, : len(samples)] = torch.from_numpy(samples)
        spectrum = torch.stft(wave, N_FFT, HOP_SAMPLES, window=self.window, return_complex=True)
        power = (spectrum[..., :-1].abs() ** 2).contiguous()
        mel = torch.clamp(self.filters.T @ power, min=1e-10).log10()
        mel = torch.maximum(mel, mel.max() - 8.0)
        mel = (mel + 4.0) / 4.0
        return mel[0, :, :frames].contiguous().numpy()


def _refuse_silence(tokens: int) -> None:
    if tokens < 1:
        raise ClientError("the clip is too short to be heard: it gives no audio token")


def _first_difference(
    media: list[Any], fast: Preprocessor, checkpoint: Preprocessor, rounding: float
) -> str | None:
    """What the two ways disagree on, or None. The checkpoint's numbers are relatively off by ``rounding``."""
    for medium in media:
        ours, own = fast(medium), checkpoint(medium)
        where = f"the two ways differ for {own.shape_key}"
        if (ours.shape_key, ours.tokens) != (own.shape_key, own.tokens):
            return f"{where}: {ours.shape_key}, {ours.tokens} tokens against {own.tokens}"
        arrays, metadata = float_arrays(ours), dict(ours.metadata)
        for name, theirs in own.arrays.items():
            if not _close(arrays[name], theirs, rounding):
                return f"{where} in array {name}"
        for name, theirs in own.metadata.items():
            if not _close(metadata[name], theirs, 0.0):
                return f"{where} in metadata {name}"
    return None


def _close(mine: Any, theirs: Any, rounding: float) -> bool:
    if isinstance(theirs, list):
        pairs = zip(mine, theirs, strict=False)
        return len(mine) == len(theirs) and all(_close(a, b, rounding) for a, b in pairs)
    return mine.shape == theirs.shape and bool(
        np.all(np.abs(mine - theirs) <= TOLERANCE + rounding * np.abs(theirs))
    )


def _rounding(dtype: torch.dtype) -> float:
    """vLLM rounds the checkpoint's numbers to a 16-bit model's dtype; ours are rounded on the device."""
    return torch.finfo(dtype).eps / 2 if dtype.itemsize < 4 else 0.0


def _probes(family: MiniCPMO, encoder: str) -> list[Any]:
    rng = np.random.default_rng(0)
    if encoder == "audio":
        return [rng.uniform(-1, 1, round(s * SAMPLE_RATE)).astype(np.float32) for s in (0.11, 1.2345, 30.3)]
    from PIL import Image

    side = family.scale_resolution
    sizes = [(side // 2, side // 3), (side + 9, side * 5 // 2), (side * 3, side * 2 + 7)]
    return [Image.fromarray(rng.integers(0, 256, (h, w, 3), dtype=np.uint8)) for w, h in sizes]
