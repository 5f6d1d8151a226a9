"""Llama 4: a vision encoder over square tiles, no audio.

The tiling rule is upstream's (``image_processing_llama4.py``): a picture is fitted onto the canvas of up to
``max_tiles`` tiles that scales it least; several tiles are followed by a global tile of the whole picture.
Tiles do not see each other, so how many there are is all that a shape says.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from deployments.families.base import UNKNOWN_KEY, EncoderCore, EncoderInputs, EncoderSpec, Preprocessor

CHANNELS = 3


@dataclass(frozen=True)
class Llama4:
    """The family with the numbers of one checkpoint."""

    hidden_size: int
    tile_side: int = 336
    patch_size: int = 14
    pixel_shuffle_ratio: float = 0.5
    max_tiles: int = 16
    fill_canvas: bool = False  # upstream's resize_to_max_canvas

    name = "llama4"
    architectures = ("Llama4ForConditionalGeneration",)
    encoders = (
        EncoderSpec(
            "vision", "image", ("vision_model", "multi_modal_projector"), ("image_url",), graph_kind="budget"
        ),
    )
    tool_parser = "llama4_pythonic"
    placeholders = ("<|image|>", "<|patch|>")

    @classmethod
    def from_checkpoint(cls, config: Mapping[str, Any], processor: Mapping[str, Any]) -> "Llama4":
        """Read the numbers from ``config.json`` and ``preprocessor_config.json``."""
        vision = config["vision_config"]
        side = int(vision.get("image_size", 448))
        size = processor.get("size", {"height": 336, "width": 336})
        if (size.get("height"), size.get("width")) != (side, side):
            raise ValueError(f"vision_config.image_size is {side}, the processor's size {dict(size)}")
        return cls(
            hidden_size=int(config["text_config"].get("hidden_size", 5120)),
            tile_side=side,
            patch_size=int(vision.get("patch_size", 14)),
            pixel_shuffle_ratio=float(vision.get("pixel_shuffle_ratio", 0.5)),
            max_tiles=int(processor.get("max_patches", 16)),
            fill_canvas=bool(processor.get("resize_to_max_canvas", False)),
        )

    @property
    def tile_tokens(self) -> int:
        """Embedding rows of one tile."""
        return (self.tile_side // self.patch_size) ** 2 // round(1 / self.pixel_shuffle_ratio**2)

    def media_key(self, encoder: str, data: bytes) -> str:
        """How many tiles the picture becomes, the global one included."""
        from deployments.families import media_headers

        size = media_headers.image_size(data)
        return UNKNOWN_KEY if size is None else tiles_key(tile_count(*self.grid(*size)))

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """Rows and columns of tiles of a picture, without the global tile.

        Canvases are compared in float32, as upstream compares them, for ties decide.
        """
        canvases = [
            (rows, columns)
            for rows in range(1, self.max_tiles + 1)
            for columns in range(1, self.max_tiles // rows + 1)
        ]
        sides = np.asarray(canvases, dtype=np.float32) * np.float32(self.tile_side)
        scales = (sides / np.asarray([height, width], dtype=np.float32)).min(axis=1)
        enlarging = scales[scales >= 1]
        best = scales.max() if self.fill_canvas or not len(enlarging) else enlarging.min()
        fitting = [canvas for canvas, scale in zip(canvases, scales, strict=True) if scale == best]
        return min(fitting, key=lambda canvas: canvas[0] * canvas[1])

    def preprocessor(self, encoder: str, vllm_config: Any) -> Preprocessor:
        """Upstream's processor."""
        return _Preprocessor(vllm_config)

    def core(self, encoder: str, model: Any, options: Any, device: Any) -> EncoderCore:
        """The GPU half."""
        from deployments.families import llama4_gpu

        core: EncoderCore = llama4_gpu.vision_core(model, options, device)
        return core

    def stand_in(self, encoder: str, shape_key: str) -> EncoderInputs:
        """Random tiles; never zeros, which hide faults and run faster."""
        tiles = parse_tiles_key(shape_key)
        shape = (tiles, CHANNELS, self.tile_side, self.tile_side)
        pixels = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
        return EncoderInputs({"pixel_values": pixels}, shape_key, tiles * self.tile_tokens, {})

    def expected_tokens(self, encoder: str, metadata: Mapping[str, Any]) -> int | None:
        """The tile grid decides the number of rows."""
        rows, columns = (int(n) for n in metadata["aspect_ratios"])
        return tile_count(rows, columns) * self.tile_tokens

    def content_part(
        self, encoder: str, embedding: Any, metadata: Mapping[str, Any], uuid: str
    ) -> dict[str, Any]:
        """The chat part by which vLLM takes one picture's embedding; the tile grid places its rows."""
        return {"type": "image_embeds", "image_embeds": {"image_embeds": embedding, **metadata}, "uuid": uuid}


FAMILY = Llama4


class _Preprocessor:
    def __init__(self, vllm_config: Any) -> None:
        from deployments.upstream.processing import UpstreamProcessor

        self.processor = UpstreamProcessor(vllm_config, "image")

    def __call__(self, medium: Any) -> EncoderInputs:
        """Prepare one picture."""
        from deployments.upstream.processing import to_numpy

        arrays, tokens = self.processor(medium)
        pixels = to_numpy(arrays["pixel_values"])
        metadata = {
            "aspect_ratios": to_numpy(arrays["aspect_ratios"]).reshape(2),
            "patches_per_image": to_numpy(arrays["patches_per_image"]).reshape(()),
        }
        return EncoderInputs({"pixel_values": pixels}, tiles_key(len(pixels)), tokens, metadata)


def tile_count(rows: int, columns: int) -> int:
    """Tiles of a grid, with the global tile that more than one tile has."""
    return 1 if rows * columns == 1 else rows * columns + 1


def tiles_key(tiles: int) -> str:
    """``t1`` for a picture of one tile, ``t7`` for one of six and the global tile."""
    return f"t{tiles}"


def parse_tiles_key(key: str) -> int:
    """The inverse of ``tiles_key``."""
    return int(key.removeprefix("t"))
