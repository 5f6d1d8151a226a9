"""Attention and norms of the encoders: plain torch everywhere, faster kernels on a GPU in 16 bit.

Every function computes the same thing on both paths up to rounding. The choice depends on device,
dtype and shape alone, so that a captured graph and an eager run of it take the same path.
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import nn

Inputs = Mapping[str, torch.Tensor]


def fast(x: torch.Tensor) -> bool:
    """Whether the GPU kernels serve this tensor."""
    return x.is_cuda and x.dtype in (torch.bfloat16, torch.float16)


def add_norm(x: torch.Tensor, delta: torch.Tensor, norm: nn.Module) -> tuple[torch.Tensor, torch.Tensor]:
    """Residual add and layer norm: (x + delta, norm(x + delta)), both (..., hidden)."""
    if fast(x) and isinstance(norm, nn.LayerNorm):
        from deployments.graphs import triton_kernels

        return triton_kernels.add_layer_norm(x, delta, norm.weight, norm.bias, norm.eps)
    total = x + delta
    return total, norm(total)


def full_attention(qkv: torch.Tensor, heads: int, scale: float) -> torch.Tensor:
    """Attention of every row over its whole sequence.

    qkv: (batch, seq, 3 * heads * head_dim), query first; returns (batch, seq, heads * head_dim).
    """
    batch, seq, width = qkv.shape
    query, key, value = qkv.view(batch, seq, 3, heads, width // (3 * heads)).unbind(2)
    if fast(qkv):
        from deployments.upstream.flash import flash_attention

        return flash_attention(query, key, value, scale).flatten(2)
    out = F.scaled_dot_product_attention(
        query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), scale=scale
    )
    return out.transpose(1, 2).flatten(2)


def chunked_attention(
    qkv: torch.Tensor, key_lens: torch.Tensor, heads: int, scale: float, chunk: int
) -> torch.Tensor:
    """Block-causal attention: a query sees every earlier chunk of positions and its own whole chunk.

    qkv: (batch, seq, 3 * heads * head_dim); key_lens: (batch,) int32, keys at or past it are hidden;
    chunk: positions, 0 for no chunks. Returns (batch, seq, heads * head_dim).
    """
    batch, seq, width = qkv.shape
    dim = width // (3 * heads)
    if fast(qkv) and dim >= 16 and dim & (dim - 1) == 0:
        from deployments.graphs import triton_kernels

        return triton_kernels.chunked_attention(qkv, key_lens, heads, scale, chunk)
    query, key, value = (part.transpose(1, 2) for part in qkv.view(batch, seq, 3, heads, dim).unbind(2))
    position = torch.arange(seq, device=qkv.device)
    visible = (position[None, :] < key_lens[:, None]).view(batch, 1, 1, seq)
    if chunk > 0:
        visible = visible & (position[None, :] < (position[:, None] // chunk + 1) * chunk)
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=visible, scale=scale)
    return out.transpose(1, 2).flatten(2)


def rotate_query_key(qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, heads: int) -> torch.Tensor:
    """Rotate neighbouring elements of query and key by one angle a pair; ``qkv`` may be overwritten.

    qkv: (batch, seq, 3 * heads * dim), query first; cos, sin: (seq, dim / 2) float32.
    """
    if fast(qkv):
        from deployments.graphs import triton_kernels

        return triton_kernels.rotate_query_key(qkv, cos, sin, heads)
    batch, seq, width = qkv.shape
    pairs = qkv.view(batch, seq, 3, heads, width // (6 * heads), 2)
    even, odd = pairs[:, :, :2, ..., 0].float(), pairs[:, :, :2, ..., 1].float()
    cos, sin = cos[:, None, None], sin[:, None, None]
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).to(qkv.dtype)
    return torch.cat((turned, pairs[:, :, 2:]), dim=2).view(batch, seq, width)


def linear_gelu_tanh(linear: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """gelu(x W^T + b), tanh form, in one kernel where the weights are plain 16-bit ones."""
    weight = getattr(linear, "weight", None)
    if fast(x) and weight is not None and weight.dtype == x.dtype:
        flat = torch._addmm_activation(linear.bias, x.flatten(0, -2), weight.t(), use_gelu=True)
        return flat.view(*x.shape[:-1], -1)
    return F.gelu(apply(linear, x), approximate="tanh")


def apply(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Call a torch or vLLM linear module; vLLM's return (output, bias)."""
    out = module(x.contiguous())  # vLLM's kernels on the CPU take nothing else
    return out[0] if isinstance(out, tuple) else out
