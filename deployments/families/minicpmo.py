"""MiniCPM-o 4.5: a SigLIP-type vision encoder with a resampler, a Whisper-type audio encoder.

The slicing rule is the checkpoint's own (its ``processing_minicpmo.py``): a picture larger than
``scale_resolution`` squared is cut into up to ``max_slice_nums`` slices beside an overview. The
chunk rule for audio is the processor's too: 30 s pieces, one mel frame every 10 ms.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from deployments.families.base import UNKNOWN_KEY, EncoderCore, EncoderInputs, EncoderSpec, Preprocessor

SAMPLE_RATE = 16_000
HOP_SAMPLES = 160
CHUNK_SAMPLES = 30 * SAMPLE_RATE
MEL_BINS = 80
Grid = tuple[int, int]  # rows, columns, in patches
Size = tuple[int, int]  # width, height, in pixels


class Cut(NamedTuple):
    """A picture's parts: the overview, and the slices of one size, where there are any."""

    overview: Size
    cell: Size  # of one slice
    slices: tuple[int, int]  # columns, rows; (0, 0) for a picture that is not cut


@dataclass(frozen=True)
class MiniCPMO:
    """The family with the numbers of one checkpoint."""

    hidden_size: int
    max_slice_nums: int = 9
    scale_resolution: int = 448
    patch_size: int = 14
    queries: int = 64
    pool_step: int = 5

    name = "minicpmo"
    architectures = ("MiniCPMO",)
    encoders = (
        EncoderSpec("vision", "image", ("vpm", "resampler"), ("image_url",)),
        EncoderSpec("audio", "audio", ("apm", "audio_projection_layer"), ("input_audio", "audio_url")),
    )
    tool_parser = "hermes"
    placeholders = ("(<image>./</image>)", "(<audio>./</audio>)", "<unk>")

    @classmethod
    def from_checkpoint(cls, config: Mapping[str, Any], processor: Mapping[str, Any]) -> "MiniCPMO":
        """Read the numbers from ``config.json`` and ``preprocessor_config.json``."""
        version = str(config.get("version", "2.6"))
        if not version.startswith("4.5"):
            raise ValueError(f"MiniCPM-o {version} is not supported; 4.5 is")
        return cls(
            hidden_size=int(config["hidden_size"]),
            max_slice_nums=int(processor.get("max_slice_nums", 9)),
            scale_resolution=int(processor.get("scale_resolution", 448)),
            patch_size=int(processor.get("patch_size", 14)),
            queries=int(config.get("query_num", 64)),
            pool_step=int(config.get("audio_pool_step", 5)),
        )

    def media_key(self, encoder: str, data: bytes) -> str:
        """Vision: patch grids of overview and slices; audio: mel frames of each 30 s chunk."""
        from deployments.families import media_headers

        if encoder == "vision":
            size = media_headers.image_size(data)
            return UNKNOWN_KEY if size is None else grids_key(self.grids(*size))
        samples = media_headers.audio_samples_16k(data)
        return UNKNOWN_KEY if samples is None else frames_key(chunk_frames(samples))

    def cut(self, width: int, height: int) -> Cut:
        """Into what a picture of this size is cut."""
        grid = self._slice_grid(width, height)
        overview = self._best_resize(width, height, allow_upscale=grid is None)
        if grid is None:
            return Cut(overview, (0, 0), (0, 0))
        columns, rows = grid
        cell = self._best_resize(
            _divisible(width, columns) / columns, _divisible(height, rows) / rows, allow_upscale=True
        )
        return Cut(overview, cell, grid)

    def grids(self, width: int, height: int) -> list[Grid]:
        """Patch grids (rows, columns) of the overview, then of each slice, row by row."""
        cut = self.cut(width, height)
        sizes = [cut.overview] + [cut.cell] * (cut.slices[0] * cut.slices[1])
        return [(h // self.patch_size, w // self.patch_size) for w, h in sizes]

    def _slice_grid(self, width: int, height: int) -> tuple[int, int] | None:
        """Columns and rows into which a picture is cut, or None for no cut."""
        ratio = width * height / (self.scale_resolution * self.scale_resolution)
        multiple = min(math.ceil(ratio), self.max_slice_nums)
        if multiple <= 1:
            return None
        counts = [n for n in (multiple - 1, multiple, multiple + 1) if n != 1 and n <= self.max_slice_nums]
        candidates = [(m, n // m) for n in counts for m in range(1, n + 1) if n % m == 0]
        wanted = math.log(width / height)
        return min(candidates, key=lambda g: abs(wanted - math.log(g[0] / g[1])), default=(1, 1))

    def _best_resize(self, width: float, height: float, *, allow_upscale: bool) -> tuple[int, int]:
        """Width and height in pixels, both multiples of the patch size, near the scale resolution."""
        if width * height > self.scale_resolution * self.scale_resolution or allow_upscale:
            ratio = width / height
            height = int(self.scale_resolution / math.sqrt(ratio))
            width = int(height * ratio)
        return _divisible(width, self.patch_size), _divisible(height, self.patch_size)

    def chunk_tokens(self, frames: int) -> int:
        """Embedding tokens of one chunk of ``frames`` mel frames."""
        return max(0, ((frames - 1) // 2 + 1 - self.pool_step) // self.pool_step + 1)

    def preprocessor(self, encoder: str, vllm_config: Any) -> Preprocessor:
        """The checkpoint's processor, or a faster way to the same inputs."""
        from deployments.families.minicpmo_preprocess import make_preprocessor

        return make_preprocessor(self, encoder, vllm_config)

    def core(self, encoder: str, model: Any, options: Any, device: Any) -> EncoderCore:
        """The GPU half of one encoder: our functions, or upstream's own where those are preferred."""
        from deployments.families import minicpmo_gpu, minicpmo_upstream

        cores: Any = (
            minicpmo_upstream if minicpmo_upstream.preferred(model, encoder, device) else minicpmo_gpu
        )
        make = cores.vision_core if encoder == "vision" else cores.audio_core
        core: EncoderCore = make(model, options, device)
        return core

    def stand_in(self, encoder: str, shape_key: str) -> EncoderInputs:
        """Random inputs of this shape; never zeros, which hide faults and run faster."""
        rng = np.random.default_rng(0)
        if encoder == "vision":
            grids = parse_grids_key(shape_key)
            pixels = [
                rng.standard_normal((3, self.patch_size, h * w * self.patch_size), dtype=np.float32)
                for h, w in grids
            ]
            arrays: dict[str, Any] = {"pixel_values": pixels, "tgt_sizes": np.asarray(grids, dtype=np.int32)}
            return EncoderInputs(arrays, shape_key, self.queries * len(grids), {})
        frames = parse_frames_key(shape_key)
        features = [rng.standard_normal((MEL_BINS, n), dtype=np.float32) for n in frames]
        arrays = {"audio_features": features, "audio_feature_lens": np.asarray(frames, dtype=np.int64)}
        return EncoderInputs(arrays, shape_key, sum(map(self.chunk_tokens, frames)), {})

    def expected_tokens(self, encoder: str, metadata: Mapping[str, Any]) -> int | None:
        """A picture's size decides its slices; a clip's embedding carries no size."""
        if encoder == "vision":
            width, height = (int(n) for n in metadata["image_sizes"])
            return self.queries * len(self.grids(width, height))
        return None

    def content_part(
        self, encoder: str, embedding: Any, metadata: Mapping[str, Any], uuid: str
    ) -> dict[str, Any]:
        """The chat part by which vLLM takes one item's embedding, (tokens, hidden)."""
        if encoder == "vision":
            payload = {"image_embeds": embedding, "image_sizes": metadata["image_sizes"]}
            return {"type": "image_embeds", "image_embeds": payload, "uuid": uuid}
        return {"type": "audio_embeds", "audio_embeds": {"audio_embeds": embedding}, "uuid": uuid}


FAMILY = MiniCPMO


def float_arrays(inputs: EncoderInputs) -> dict[str, Any]:
    """The arrays as the checkpoint's own processor gives them, bytes looked up in their table."""
    arrays: dict[str, Any] = dict(inputs.arrays)
    levels = arrays.pop("levels", None)
    if levels is not None:
        colours = np.arange(3)[:, None, None]
        arrays["pixel_values"] = [levels[colours, strip] for strip in arrays["pixel_values"]]
    return arrays


def _divisible(length: float, step: int) -> int:
    return max(round(length / step) * step, step)


def chunk_frames(samples: int) -> list[int]:
    """Mel frames of each 30 s chunk of a clip of ``samples`` samples at 16 kHz."""
    starts = range(0, max(samples, 1), CHUNK_SAMPLES)
    return [math.ceil(min(CHUNK_SAMPLES, samples - start) / HOP_SAMPLES) for start in starts]


def grids_key(grids: list[Grid]) -> str:
    """``34x30`` for one grid, ``28x36+6x26x39`` for an overview and six slices of 26 x 39 patches."""
    overview, *slices = grids
    text = f"{overview[0]}x{overview[1]}"
    if slices:
        text += f"+{len(slices)}x{slices[0][0]}x{slices[0][1]}"
    return text


def parse_grids_key(key: str) -> list[Grid]:
    """The inverse of ``grids_key``."""
    overview, _, rest = key.partition("+")
    rows, columns = overview.split("x")
    grids = [(int(rows), int(columns))]
    if rest:
        count, rows, columns = rest.split("x")
        grids += [(int(rows), int(columns))] * int(count)
    return grids


def frames_key(frames: list[int]) -> str:
    """``f500`` for one chunk of 500 mel frames, ``f3000+500`` for two."""
    return "f" + "+".join(map(str, frames))


def parse_frames_key(key: str) -> list[int]:
    """The inverse of ``frames_key``."""
    return [int(n) for n in key.removeprefix("f").split("+")]
