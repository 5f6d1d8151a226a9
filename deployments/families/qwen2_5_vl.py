"""Qwen2.5-VL: a vision encoder over patches of a picture in its own proportions, no audio, no video.

The size rule is the checkpoint's processor's: both sides become multiples of ``patch_size * merge_size`` and
the area stays between two bounds. The patch grid (``image_grid_thw``) is the shape of a picture, and it goes
on to the decoder, where upstream makes the rotary positions (time, height, width) of its rows from it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from deployments.families.base import UNKNOWN_KEY, EncoderCore, EncoderInputs, EncoderSpec, Preprocessor

if TYPE_CHECKING:
    import torch

CHANNELS = 3
MAX_RATIO = 200  # of the sides: upstream's processor refuses thinner pictures
Grid = tuple[int, int]  # rows, columns, in patches

LAUNCH_BOUND_TOKENS = 1200
"""Up to this many tokens an eager run takes as long as one, for the host is the slower (H200)."""

FIXED_TOKENS = 150
"""What a replay costs beside its tokens, in tokens: small ones do not fill the card (H200)."""


@dataclass(frozen=True)
class Qwen25VL:
    """The family with the numbers of one checkpoint."""

    hidden_size: int
    patch_size: int = 14
    merge_size: int = 2
    frames: int = 2  # of a video in one patch; a picture counts as that many equal ones
    min_pixels: int = 56 * 56
    max_pixels: int = 28 * 28 * 1280

    name = "qwen2_5_vl"
    architectures = ("Qwen2_5_VLForConditionalGeneration",)
    encoders = (EncoderSpec("vision", "image", ("visual",), ("image_url",), graph_kind="budget"),)
    tool_parser = "hermes"
    placeholders = ("<|image_pad|>",)

    @classmethod
    def from_checkpoint(cls, config: Mapping[str, Any], processor: Mapping[str, Any]) -> "Qwen25VL":
        """Read the numbers from ``config.json`` and ``preprocessor_config.json``.

        The bounds have two spellings; where both are there, upstream takes ``min_pixels`` and ``max_pixels``.
        """
        size = processor.get("size") or {}
        smallest = processor.get("min_pixels") or size.get("shortest_edge") or cls.min_pixels
        largest = processor.get("max_pixels") or size.get("longest_edge") or cls.max_pixels
        vision = config["vision_config"]
        return cls(
            hidden_size=int(vision["out_hidden_size"]),
            patch_size=int(processor.get("patch_size", 14)),
            merge_size=int(processor.get("merge_size", 2)),
            frames=int(processor.get("temporal_patch_size", 2)),
            min_pixels=int(smallest),
            max_pixels=int(largest),
        )

    def media_key(self, encoder: str, data: bytes) -> str:
        """The patch grid of the picture."""
        from deployments.families import media_headers

        size = media_headers.image_size(data)
        return UNKNOWN_KEY if size is None or too_thin(*size) else grid_key(self.grid(*size))

    def grid(self, width: int, height: int) -> Grid:
        """Rows and columns of patches of a picture (``smart_resize`` of upstream's processor)."""
        step = self.patch_size * self.merge_size
        rows, columns = round(height / step) * step, round(width / step) * step
        if rows * columns > self.max_pixels:
            shrink = math.sqrt(height * width / self.max_pixels)
            rows = max(step, math.floor(height / shrink / step) * step)
            columns = max(step, math.floor(width / shrink / step) * step)
        elif rows * columns < self.min_pixels:
            grow = math.sqrt(self.min_pixels / (height * width))
            rows = math.ceil(height * grow / step) * step
            columns = math.ceil(width * grow / step) * step
        return rows // self.patch_size, columns // self.patch_size

    def grid_tokens(self, grid: Grid) -> int:
        """Embedding rows of a picture of this grid."""
        return grid[0] * grid[1] // self.merge_size**2

    def preprocessor(self, encoder: str, vllm_config: Any) -> Preprocessor:
        """Upstream's processor behind the check of the sides."""
        return _Preprocessor(vllm_config)

    def core(self, encoder: str, model: Any, options: Any, device: Any) -> EncoderCore:
        """The GPU half: upstream's own encoder in upstream's budget graphs."""
        return VisionCore(model, options, device)

    def stand_in(self, encoder: str, shape_key: str) -> EncoderInputs:
        """Random patches; never zeros, which hide faults and run faster."""
        grid = parse_grid_key(shape_key)
        shape = (grid[0] * grid[1], CHANNELS * self.frames * self.patch_size**2)
        pixels = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
        return _inputs(pixels, grid, self.grid_tokens(grid))

    def expected_tokens(self, encoder: str, metadata: Mapping[str, Any]) -> int | None:
        """The patch grid decides the number of rows."""
        _, rows, columns = (int(n) for n in metadata["image_grid_thw"])
        return self.grid_tokens((rows, columns))

    def content_part(
        self, encoder: str, embedding: Any, metadata: Mapping[str, Any], uuid: str
    ) -> dict[str, Any]:
        """The chat part by which vLLM takes one picture's embedding; the grid places its rows."""
        payload = {"image_embeds": embedding, "image_grid_thw": metadata["image_grid_thw"]}
        return {"type": "image_embeds", "image_embeds": payload, "uuid": uuid}


FAMILY = Qwen25VL


class _Preprocessor:
    def __init__(self, vllm_config: Any) -> None:
        from deployments.upstream.processing import UpstreamProcessor

        self.processor = UpstreamProcessor(vllm_config, "image")

    def __call__(self, medium: Any) -> EncoderInputs:
        """Prepare one picture."""
        from deployments.errors import ClientError
        from deployments.upstream.processing import to_numpy

        if too_thin(*medium.size):
            raise ClientError(f"one side of the picture is more than {MAX_RATIO} times the other")
        arrays, tokens = self.processor(medium)
        _, rows, columns = (int(n) for n in to_numpy(arrays["image_grid_thw"]).reshape(-1))
        return _inputs(to_numpy(arrays["pixel_values"]), (rows, columns), tokens)


class VisionCore:
    """Patches of all pictures in one batch; windows and attention end where a picture ends."""

    def __init__(self, model: Any, options: Any, device: Any) -> None:
        import torch

        from deployments.graphs.budget import BudgetEncoderGraphs
        from deployments.graphs.cuda import CudaBackend
        from deployments.upstream.encoder_graphs import BudgetGraphs, manager_config
        from policies.budgets import default_budgets

        self.model = model
        self.device = torch.device(device)
        self.dtype = model.visual.dtype
        smallest, own_limit = model.get_encoder_cudagraph_budget_range(model.vllm_config)
        largest = max(smallest, options.decoder_tokens or own_limit)
        config = manager_config(
            token_budgets=list(options.token_budgets) or default_budgets(smallest, largest),
            max_items=options.max_items_per_batch,
            max_frames=options.max_frames_per_batch,
            max_num_batched_tokens=largest,
            max_model_len=largest,
        )
        self.adapter = BudgetEncoderGraphs(
            "vision",
            options,
            CudaBackend(self.device),
            lambda may_capture: BudgetGraphs(
                model, self._forward, config, self.device, self.dtype, may_capture
            ),
            launch_bound_tokens=LAUNCH_BOUND_TOKENS,
            fixed_tokens=FIXED_TOKENS,
        )
        model._encoder_graph = model.visual._encoder_graph = self.adapter

    def encode(self, batch: Sequence[EncoderInputs]) -> "list[torch.Tensor]":
        """Encode pictures; returns (tokens, hidden) per picture, in the model's dtype."""
        from deployments.families.minicpmo_gpu import stack_to_device

        self.adapter.start()
        patches = [np.asarray(item.arrays["pixel_values"]) for item in batch]
        grids = [[int(n) for n in np.asarray(item.arrays["image_grid_thw"])] for item in batch]
        pixels = stack_to_device(patches, self.device, self.dtype, join=True)
        return self.adapter.encode({"pixel_values": pixels, "image_grid_thw": grids})

    def _forward(self, inputs: "dict[str, Any]") -> "torch.Tensor":
        """Upstream's own: eagerly from the grids, or in a graph from the buffers that stand for them."""
        eager = "image_grid_thw" in inputs
        run = self.model.encoder_eager_forward if eager else self.model.encoder_cudagraph_forward
        out: torch.Tensor = run(dict(inputs))  # upstream's takes items out of what it is given
        return out


def _inputs(pixels: np.ndarray, grid: Grid, tokens: int) -> EncoderInputs:
    thw = np.asarray((1, *grid), dtype=np.int64)
    arrays = {"pixel_values": pixels, "image_grid_thw": thw}
    return EncoderInputs(arrays, grid_key(grid), tokens, {"image_grid_thw": thw})


def too_thin(width: int, height: int) -> bool:
    """Whether upstream's processor refuses a picture of these sides."""
    return max(width, height) / min(width, height) > MAX_RATIO


def grid_key(grid: Grid) -> str:
    """``18x26`` for 18 rows and 26 columns of patches."""
    return f"{grid[0]}x{grid[1]}"


def parse_grid_key(key: str) -> Grid:
    """The inverse of ``grid_key``."""
    rows, columns = key.split("x")
    return int(rows), int(columns)
