"""MiniCPM-o 4.5's stateless audio encoder, projection and pooling as one capturable function.

The weights are upstream's modules; what differs from upstream's forward is written at each step.
"""

from typing import Any

import torch
import torch.nn.functional as F

from deployments.graphs import kernels

FRAMES_PER_SECOND = 50
"""Encoder positions per second of audio; the attention's chunks are whole seconds."""


class AudioFunction:
    """Mel chunks to pooled embeddings. No dense mask: chunk length and key lengths decide it.

    ``apm`` is upstream's ``MiniCPMWhisperEncoder``, ``projection`` its ``MultiModalProjector``.
    """

    def __init__(self, apm: Any, projection: Any, *, chunk_s: float, pool_step: int) -> None:
        self.apm = apm
        self.projection = projection
        self.chunk = int(chunk_s * FRAMES_PER_SECOND)
        self.pool_step = pool_step
        self.heads = apm.layers[0].self_attn.num_heads
        self.scale = apm.layers[0].self_attn.scaling
        self.expand = kernels.expansion(str(apm.config.activation_function))
        self._qkv = [fuse_qkv(layer.self_attn) for layer in apm.layers]
        # (out, in, 3) to (out, 3 * in), so that a window is a run of memory
        self._second_weight = apm.conv2.weight.data.permute(0, 2, 1).flatten(1)
        layers = apm.layers
        self._biases = kernels.bias_sums(
            [linear for layer in layers for linear in (layer.self_attn.out_proj, layer.fc2)],
            [norm for layer in layers for norm in (layer.self_attn_layer_norm, layer.final_layer_norm)]
            + [apm.layer_norm],
        )

    @classmethod
    def of_model(cls, model: Any) -> "AudioFunction":
        """From a loaded upstream model."""
        config = model.config
        if model.audio_encoder_layer != -1:
            raise ValueError("only the last audio encoder layer's states are supported")
        return cls(
            model.apm,
            model.audio_projection_layer,
            chunk_s=config.audio_chunk_length,
            pool_step=config.audio_pool_step,
        )

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return self.apm.conv1.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The model's dtype."""
        return self.apm.conv1.weight.dtype

    def tokens(self, frames: int) -> int:
        """Pooled embeddings of a chunk of ``frames`` mel frames."""
        return max(0, ((frames - 1) // 2 + 1 - self.pool_step) // self.pool_step + 1)

    def __call__(self, inputs: kernels.Inputs) -> torch.Tensor:
        """features (chunks, 80, frames), key_lens (chunks,) int32 to (chunks, pooled, hidden)."""
        hidden = self._transform(self._embed(inputs["features"]), inputs["key_lens"])
        return self._project(hidden)

    def _embed(self, features: torch.Tensor) -> torch.Tensor:
        """Both convolutions as matrix products over windows: (chunks, 80, frames) to (chunks, seq, width).

        The first gives one position more on either side; set to zero, they are the second's padding.
        """
        first, second = self.apm.conv1, self.apm.conv2
        windows = F.pad(features, (2, 2)).unfold(2, 3, 1).transpose(1, 2).flatten(2)
        x = F.gelu(F.linear(windows, first.weight.flatten(1), first.bias))
        x[:, 0] = 0
        x[:, -1] = 0
        chunks, frames, width = x.shape
        seq = (frames - 3) // 2 + 1
        windows = x.as_strided((chunks, seq, 3 * width), (frames * width, 2 * width, 1)).contiguous()
        x = F.gelu(F.linear(windows, self._second_weight, second.bias))
        return x + self.apm.embed_positions.weight[:seq]

    def _transform(self, hidden: torch.Tensor, key_lens: torch.Tensor) -> torch.Tensor:
        """The layers over a residual stream that each adds to in place."""
        stream = kernels.ResidualStream(hidden, self._biases)
        for layer, qkv in zip(self.apm.layers, self._qkv, strict=True):
            mixed = kernels.chunked_attention(
                F.linear(stream.norm(layer.self_attn_layer_norm), *qkv),
                key_lens, self.heads, self.scale, self.chunk,
            )  # fmt: skip
            stream.add(layer.self_attn.out_proj, mixed)
            inner = self.expand(layer.fc1, stream.norm(layer.final_layer_norm), layer.activation_fn)
            stream.add(layer.fc2, inner)
        return stream.norm(self.apm.layer_norm)

    def _project(self, states: torch.Tensor) -> torch.Tensor:
        """Pooling moved before the second linear layer, which it commutes with: a fifth of the work."""
        pooled = kernels.relu_pool(self.projection.linear1(states), self.pool_step)
        return self.projection.linear2(pooled)


def fuse_qkv(attention: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """One weight (3 * width, width) and bias for query, key and value.

    The three modules keep working: their weights become views of the fused one, so no memory is added.
    """
    parts = (attention.q_proj, attention.k_proj, attention.v_proj)
    width = attention.embed_dim
    weight = torch.cat([part.weight.data for part in parts])
    bias = torch.cat(
        [part.weight.new_zeros(width) if part.bias is None else part.bias.data for part in parts]
    )
    for part, view in zip(parts, weight.split(width), strict=True):
        part.weight.data = view
    return weight, bias
