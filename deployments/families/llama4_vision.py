"""Llama 4's vision model and projector as one function that a CUDA graph can hold.

The weights are upstream's modules; what differs from upstream's forward is written at each step.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F

from deployments.graphs import kernels


class TileFunction:
    """Tiles to projected patch features. ``model`` is upstream's ``Llama4ForConditionalGeneration``."""

    def __init__(self, model: Any) -> None:
        self.vision = model.vision_model
        self.projector = model.multi_modal_projector
        attention = self.vision.model.layers[0].self_attn
        self.heads = attention.num_local_heads
        self.scale = attention.scaling
        table = attention.rotary_emb.cos_sin_cache  # complex64, (patches + 1, 1, dim / 2)
        table = torch.view_as_real(table.flatten(0, -2)).to(self.device)
        self.cos, self.sin = (part.contiguous() for part in table.unbind(-1))
        layers = self.vision.model.layers
        self._biases = kernels.bias_sums(
            [linear for layer in layers for linear in (layer.self_attn.o_proj, layer.mlp.fc2)],
            [norm for layer in layers for norm in (layer.input_layernorm, layer.post_attention_layernorm)]
            + [self.vision.layernorm_post],
        )

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return self.vision.positional_embedding_vlm.device

    @property
    def dtype(self) -> torch.dtype:
        """The model's dtype."""
        return self.vision.layernorm_pre.weight.dtype

    def __call__(self, pixels: torch.Tensor) -> torch.Tensor:
        """pixels (tiles, 3, size, size) to (tiles * patches, text hidden)."""
        states = self._transform(self._embed(pixels))[:, :-1]
        adapted = self._shuffle(states)
        mlp = self.vision.vision_adapter.mlp
        for linear in (mlp.fc1, mlp.fc2):
            adapted = F.gelu(kernels.apply(linear, adapted))
        return kernels.apply(self.projector, adapted).flatten(0, 1)

    def _embed(self, pixels: torch.Tensor) -> torch.Tensor:
        """Patches as plain strided copies where upstream unfolds; the class token goes last."""
        vision, size = self.vision, self.vision.patch_size
        side = pixels.shape[-1] // size
        patches = pixels.view(pixels.shape[0], -1, side, size, side, size)
        patches = patches.permute(0, 2, 4, 1, 3, 5).flatten(1, 2).flatten(2)
        x = kernels.apply(vision.patch_embedding.linear, patches)
        x = torch.cat([x, vision.class_embedding.expand(x.shape[0], 1, -1)], dim=1)
        return vision.layernorm_pre(x + vision.positional_embedding_vlm.to(x.dtype))

    def _transform(self, hidden: torch.Tensor) -> torch.Tensor:
        """The layers over a residual stream that each adds to in place."""
        starts = kernels.row_starts(hidden.shape[0], hidden.shape[1], hidden.device)
        stream = kernels.ResidualStream(hidden, self._biases)
        for layer in self.vision.model.layers:
            attention = layer.self_attn
            qkv = kernels.apply(attention.qkv_proj, stream.norm(layer.input_layernorm))
            qkv = kernels.rotate_query_key(qkv, self.cos, self.sin, self.heads)
            stream.add(attention.o_proj, kernels.full_attention(qkv, starts, self.heads, self.scale))
            inner = kernels.linear_gelu(layer.mlp.fc1, stream.norm(layer.post_attention_layernorm), F.gelu)
            stream.add(layer.mlp.fc2, inner)
        return stream.norm(self.vision.layernorm_post)

    def _shuffle(self, states: torch.Tensor) -> torch.Tensor:
        """Upstream's pixel shuffle as one permutation: each 2 x 2 block of patches becomes one."""
        side = math.isqrt(states.shape[1])
        step = round(1 / self.vision.vision_adapter.pixel_shuffle_ratio)
        blocks = states.reshape(states.shape[0], side // step, step, side // step, step, -1)
        return blocks.permute(0, 1, 3, 2, 4, 5).flatten(3).flatten(1, 2)
