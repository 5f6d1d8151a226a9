"""The GPU halves of MiniCPM-o 4.5: pack items of one shape, run the captured function, unpack.

Both cores equal upstream's ``embed_multimodal`` on each item alone, up to rounding.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from deployments.families.base import EncoderInputs
from deployments.families.minicpmo_audio import AudioFunction
from deployments.families.minicpmo_vision import VisionFunction
from deployments.graphs.base import GraphAdapter
from deployments.graphs.cuda import CudaBackend
from deployments.graphs.exact_shape import ExactShapeGraphs
from policies.admission import GraphOptions

Grid = tuple[int, int]

GRIDS_KEPT = 16
"""Patch grids whose constants stay on the device: 10 MB each at the real dimensions."""


def vision_core(model: Any, options: GraphOptions, device: torch.device | str) -> "VisionCore":
    """The vision half of a loaded model; its adapter also sits at ``vpm._encoder_graph``."""
    function = VisionFunction(model.vpm, model.resampler)
    adapter = ExactShapeGraphs("vision", function, options, CudaBackend(device, options.share_pools))
    return VisionCore(model, adapter, function)


def audio_core(model: Any, options: GraphOptions, device: torch.device | str) -> "AudioCore":
    """The audio half of a loaded model; its adapter also sits at ``_audio_encoder_graph``."""
    function = AudioFunction.of_model(model)
    adapter = ExactShapeGraphs("audio", function, options, CudaBackend(device, options.share_pools))
    return AudioCore(model, adapter, function)


class VisionCore:
    """Slices of one patch grid make one packed batch without padding and without a mask."""

    def __init__(self, model: Any, adapter: GraphAdapter, function: VisionFunction | None = None) -> None:
        self.adapter = adapter
        self.function = function or VisionFunction(model.vpm, model.resampler)
        self._constants: OrderedDict[Grid, dict[str, torch.Tensor]] = OrderedDict()
        model.vpm._encoder_graph = adapter

    def encode(self, batch: Sequence[EncoderInputs]) -> list[torch.Tensor]:
        """Encode items of one ``shape_key``; returns (tokens, hidden) per item, in the model's dtype."""
        _same_shape(batch)
        grids = [(int(h), int(w)) for h, w in np.asarray(batch[0].arrays["tgt_sizes"]).reshape(-1, 2)]
        slices: list[list[torch.Tensor]] = [[None] * len(grids) for _ in batch]  # type: ignore[list-item]
        for grid in dict.fromkeys(grids):
            places = [(i, s) for i in range(len(batch)) for s, other in enumerate(grids) if other == grid]
            pixels = [np.asarray(batch[i].arrays["pixel_values"][s]) for i, s in places]
            inputs = {
                "pixels": pixels_to_device(
                    pixels, batch[0].arrays.get("levels"), self.function.device, self.function.dtype
                ),
                **self.constants(grid),
            }
            rows = len(places)
            out = self.adapter(inputs, batch_size=rows, tokens=rows * self.function.queries)
            for row, (i, s) in enumerate(places):
                slices[i][s] = out[row]
        return [torch.cat(parts) for parts in slices]

    def constants(self, grid: Grid) -> dict[str, torch.Tensor]:
        """Everything that depends on the patch grid alone, computed once per grid."""
        if grid not in self._constants:
            self._constants[grid] = self.function.grid_constants(grid)
            if len(self._constants) > GRIDS_KEPT:
                self._constants.popitem(last=False)
        self._constants.move_to_end(grid)
        return self._constants[grid]


class AudioCore:
    """Chunks of all items in one packed batch; an item's shorter chunks are padded as upstream does."""

    def __init__(self, model: Any, adapter: GraphAdapter, function: AudioFunction | None = None) -> None:
        self.adapter = adapter
        self.function = function or AudioFunction.of_model(model)
        model._audio_encoder_graph = adapter

    def encode(self, batch: Sequence[EncoderInputs]) -> list[torch.Tensor]:
        """Encode items of one ``shape_key``; returns (tokens, hidden) per item, in the model's dtype."""
        _same_shape(batch)
        lens = [int(n) for n in np.asarray(batch[0].arrays["audio_feature_lens"]).reshape(-1)]
        packed = pack_features([list(item.arrays["audio_features"]) for item in batch], lens)
        tokens = [self.function.tokens(n) for n in lens]
        inputs = {
            "features": to_device(packed, self.function.device, self.function.dtype),
            "key_lens": to_device(np.asarray(lens * len(batch), dtype=np.int32), self.function.device, None),
        }
        out = self.adapter(inputs, batch_size=len(packed), tokens=sum(tokens) * len(batch))
        parts = out.unflatten(0, (len(batch), len(lens)))
        return [torch.cat([parts[i, chunk, :n] for chunk, n in enumerate(tokens)]) for i in range(len(batch))]


def pack_features(items: list[list[np.ndarray]], lens: list[int]) -> np.ndarray:
    """Mel chunks (80, frames) of every item, zero-padded to the longest of one item.

    Returns (items * chunks, 80, frames) float32.
    """
    bins, longest = items[0][0].shape[-2], max(lens)
    packed = np.zeros((len(items), len(lens), bins, longest), dtype=np.float32)
    for i, chunks in enumerate(items):
        for j, (chunk, frames) in enumerate(zip(chunks, lens, strict=True)):
            packed[i, j, :, :frames] = np.asarray(chunk).reshape(bins, -1)[:, :frames]
    return packed.reshape(-1, bins, longest)


def pixels_to_device(
    strips: Sequence[np.ndarray], levels: Any, device: torch.device, dtype: torch.dtype
) -> torch.Tensor:
    """Strips (3, patch, length) stacked: as they are, or as bytes looked up in ``levels`` (3, 256).

    A table gives every byte the very number that the checkpoint's processor gives it, on every device.
    """
    if levels is None:
        return stack_to_device(strips, device, dtype)
    host = torch.empty((len(strips), *strips[0].shape), dtype=torch.uint8, pin_memory=device.type == "cuda")
    np.stack(strips, out=host.numpy())
    rows = host.to(device, non_blocking=True).to(torch.int32)
    if (levels == levels[0]).all():  # one table of all colours, and so in every checkpoint known
        levels = levels[:1]
    else:
        rows += 256 * torch.arange(3, dtype=torch.int32, device=device).view(3, 1, 1)
    table = to_device(levels, device, dtype).flatten()
    return table.index_select(0, rows.flatten()).view(rows.shape)


def to_device(array: np.ndarray, device: torch.device, dtype: torch.dtype | None) -> torch.Tensor:
    """Through pinned memory, without waiting; converted to ``dtype`` on the device."""
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    if device.type == "cuda":
        tensor = tensor.pin_memory().to(device, non_blocking=True)
    return tensor if dtype is None else tensor.to(dtype)


def stack_to_device(
    arrays: Sequence[np.ndarray], device: torch.device, dtype: torch.dtype, *, join: bool = False
) -> torch.Tensor:
    """float32 arrays stacked, or joined along their first axis, in pinned memory: one copy on the host."""
    lead = (sum(len(a) for a in arrays), *arrays[0].shape[1:]) if join else (len(arrays), *arrays[0].shape)
    host = torch.empty(lead, dtype=torch.float32, pin_memory=device.type == "cuda")
    (np.concatenate if join else np.stack)(arrays, out=host.numpy(), casting="same_kind")
    return host.to(device, non_blocking=True).to(dtype)


def _same_shape(batch: Sequence[EncoderInputs]) -> None:
    keys = {item.shape_key for item in batch}
    if len(keys) != 1:
        raise ValueError(f"one batch holds one shape, not {sorted(keys)}")
