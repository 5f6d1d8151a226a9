"""MiniCPM-o 4.5's vision transformer and resampler as one function that a CUDA graph can hold.

The weights are upstream's modules; what differs from upstream's forward is written at each step.
"""

from typing import Any

import torch
import torch.nn.functional as F

from deployments.graphs import kernels


class VisionFunction:
    """Slices of one patch grid to queries: no padding, so no mask; nothing read back to the host.

    ``vpm`` is upstream's ``Idefics2VisionTransformer``, ``resampler`` its ``Resampler4_5``.
    """

    def __init__(self, vpm: Any, resampler: Any) -> None:
        self.vpm = vpm
        self.resampler = resampler
        self.queries = int(resampler.num_queries)
        attention = vpm.encoder.layers[0].self_attn
        self.heads = attention.num_heads_per_partition
        self.scale = attention.scale
        self.expand = kernels.expansion(str(vpm.config.hidden_act))
        self._query: torch.Tensor | None = None
        layers = vpm.encoder.layers
        self._biases = kernels.bias_sums(
            [linear for layer in layers for linear in (layer.self_attn.out_proj, layer.mlp.fc2)],
            [norm for layer in layers for norm in (layer.layer_norm1, layer.layer_norm2)]
            + [vpm.post_layernorm],
        )

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return self.vpm.embeddings.position_embedding.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """The model's dtype."""
        return self.vpm.embeddings.position_embedding.weight.dtype

    def __call__(self, inputs: kernels.Inputs) -> torch.Tensor:
        """pixels (slices, 3, patch, patches * patch) and grid constants to (slices, queries, hidden)."""
        hidden = self._patches(inputs["pixels"]) + inputs["vision_positions"]
        return self._resample(self._transform(hidden), inputs["key_positions"])

    def grid_constants(self, grid: tuple[int, int]) -> dict[str, torch.Tensor]:
        """vision_positions (1, patches, width) and key_positions (1, patches, hidden) of a grid.

        Keys are a linear map of features plus positions, so the positions go through it here, once.
        """
        rows, columns = grid
        mask = torch.ones((1, 1, rows * columns), dtype=torch.bool, device=self.device)
        sizes = torch.tensor([grid], dtype=torch.int64, device=self.device)
        embeddings = self.vpm.embeddings
        positions = embeddings.position_embedding(embeddings.get_position_ids(mask, sizes))
        self.resampler._adjust_pos_cache(torch.tensor([grid]), device=self.device)
        table = self.resampler.pos_embed[:rows, :columns].reshape(rows * columns, -1)
        weight = self._resampler_weights()[0].chunk(3)[1]
        keys = F.linear(table.to(weight.device, self.dtype), weight)
        return {"vision_positions": positions, "key_positions": keys.unsqueeze(0)}

    def _patches(self, pixels: torch.Tensor) -> torch.Tensor:
        """The patch convolution as one matrix product over unfolded patches."""
        conv = self.vpm.embeddings.patch_embedding
        size = pixels.shape[2]
        patches = pixels.unflatten(3, (-1, size)).permute(0, 3, 1, 2, 4).flatten(2)
        return F.linear(patches, conv.weight.flatten(1), conv.bias)

    def _transform(self, hidden: torch.Tensor) -> torch.Tensor:
        """The layers over a residual stream that each adds to in place."""
        starts = kernels.row_starts(hidden.shape[0], hidden.shape[1], hidden.device)
        stream = kernels.ResidualStream(hidden, self._biases)
        for layer in self.vpm.encoder.layers:
            attention = layer.self_attn
            qkv = kernels.apply(attention.qkv_proj, stream.norm(layer.layer_norm1))
            stream.add(attention.out_proj, kernels.full_attention(qkv, starts, self.heads, self.scale))
            mlp = layer.mlp
            inner = self.expand(mlp.fc1, stream.norm(layer.layer_norm2), mlp.activation_fn)
            stream.add(mlp.fc2, inner)
        return stream.norm(self.vpm.post_layernorm)

    def _resample(self, features: torch.Tensor, key_positions: torch.Tensor) -> torch.Tensor:
        """Cross attention of constant queries; keys and values in one product, positions added late."""
        resampler, attention = self.resampler, self.resampler.attn
        x = resampler.ln_kv(resampler.kv_proj(features)[0])
        weight, bias = self._resampler_weights()
        width = attention.embed_dim
        key, value = F.linear(x, weight[width:], bias[width:]).chunk(2, dim=-1)
        key = key + key_positions
        heads = attention.num_heads
        out = F.scaled_dot_product_attention(
            _split(self.query(), heads).expand(x.shape[0], -1, -1, -1),
            _split(key, heads),
            _split(value, heads),
        )
        out = out.transpose(1, 2).flatten(2)
        out = resampler.ln_post(F.linear(out, attention.out_proj.weight, attention.out_proj.bias))
        return out @ resampler.proj

    def query(self) -> torch.Tensor:
        """The projected queries (1, queries, hidden): weights alone decide them, so they are kept."""
        if self._query is None:
            weight, bias = self._resampler_weights()
            width = self.resampler.attn.embed_dim
            query = self.resampler.ln_q(self.resampler.query)
            self._query = F.linear(query, weight[:width], bias[:width]).unsqueeze(0)
        return self._query

    def _resampler_weights(self) -> tuple[torch.Tensor, torch.Tensor]:
        attention = self.resampler.attn
        return attention.in_proj_weight, attention.in_proj_bias


def _split(x: torch.Tensor, heads: int) -> torch.Tensor:
    """(batch, seq, heads * dim) to (batch, heads, seq, dim)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)
