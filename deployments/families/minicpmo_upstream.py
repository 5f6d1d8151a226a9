"""MiniCPM-o 4.5: upstream's own encoder functions, for 16 bit on the CPU.

There is no graph to gain there, and every rounding counts: another order of operations can turn a token, and
an undivided vLLM runs these very functions.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from deployments.families.base import EncoderInputs
from deployments.families.minicpmo import float_arrays
from deployments.graphs.cuda import CudaBackend
from deployments.graphs.exact_shape import ExactShapeGraphs, Inputs
from policies.admission import GraphOptions


def preferred(model: Any, encoder: str, device: torch.device | str) -> bool:
    """Whether this encoder had better run upstream's function than ours: on the CPU, not in float32."""
    return torch.device(device).type == "cpu" and _dtype(model, encoder) != torch.float32


def vision_core(model: Any, options: GraphOptions, device: torch.device | str) -> "UpstreamCore":
    """The vision half of a loaded model; its adapter also sits at ``vpm._encoder_graph``."""
    core = UpstreamCore("vision", model, options, device)
    model.vpm._encoder_graph = core.adapter
    return core


def audio_core(model: Any, options: GraphOptions, device: torch.device | str) -> "UpstreamCore":
    """The audio half of a loaded model; its adapter also sits at ``_audio_encoder_graph``."""
    core = UpstreamCore("audio", model, options, device)
    model._audio_encoder_graph = core.adapter
    return core


class UpstreamCore:
    """One call of ``embed_multimodal`` per item, so that no item's bits depend on its company."""

    def __init__(self, encoder: str, model: Any, options: GraphOptions, device: torch.device | str) -> None:
        self.model = model
        self.dtype = _dtype(model, encoder)
        vision = encoder == "vision"
        self.parts, self.sizes = (
            ("pixel_values", "tgt_sizes") if vision else ("audio_features", "audio_feature_lens")
        )
        self.nested = vision  # upstream wants slices in a list per picture, chunks in one list of all clips
        self.adapter = ExactShapeGraphs(encoder, self._embed, options, CudaBackend(device))

    def encode(self, batch: Sequence[EncoderInputs]) -> list[torch.Tensor]:
        """Encode items one after the other; returns (tokens, hidden) per item, in the model's dtype."""
        return [self.adapter(self._inputs(item), batch_size=1, tokens=item.tokens) for item in batch]

    def _inputs(self, item: EncoderInputs) -> Inputs:
        """Slices or chunks under their numbers, in order, and their sizes."""
        arrays = float_arrays(item)
        parts = [torch.from_numpy(np.asarray(part)).to(self.dtype) for part in arrays[self.parts]]
        sizes = torch.from_numpy(np.asarray(arrays[self.sizes]))
        return {**{str(number): part for number, part in enumerate(parts)}, self.sizes: sizes}

    def _embed(self, inputs: Inputs) -> torch.Tensor:
        """``_inputs`` of one item to (tokens, hidden)."""
        parts = [value for name, value in inputs.items() if name != self.sizes]
        given = {self.parts: [parts] if self.nested else parts, self.sizes: [inputs[self.sizes]]}
        embedding: torch.Tensor = self.model.embed_multimodal(**given)[0]
        return embedding


def _dtype(model: Any, encoder: str) -> torch.dtype:
    weights = model.vpm.embeddings.position_embedding if encoder == "vision" else model.apm.conv1
    dtype: torch.dtype = weights.weight.dtype
    return dtype
