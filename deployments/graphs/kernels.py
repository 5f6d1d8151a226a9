"""Attention and norms of the encoders: plain torch everywhere, faster kernels on a GPU in 16 bit.

Every function computes the same thing on both paths up to rounding. The choice depends on device,
dtype and shape alone, so that a captured graph and an eager run of it take the same path.
"""

from collections.abc import Callable, Mapping
from functools import cache
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Inputs = Mapping[str, torch.Tensor]

EPILOGUE_ROWS = 512
"""From here on a matrix product with gelu in its epilogue beats a product and a gelu (H200)."""


def fast(x: torch.Tensor) -> bool:
    """Whether the GPU kernels serve this tensor."""
    return x.is_cuda and x.dtype in (torch.bfloat16, torch.float16)


@cache
def triton_kernels() -> ModuleType:
    """The Triton kernels, or a plain error that says what to install."""
    try:
        from deployments.graphs import triton_kernels as module
    except ImportError as error:
        raise RuntimeError(
            f"the encoders' GPU kernels need Triton ({error}): install requirements/gpu.lock"
        ) from error
    return module


def plain(linear: nn.Module) -> bool:
    """Whether a linear module's weight is an ordinary 16-bit one on a GPU, to be used as it is."""
    weight = getattr(linear, "weight", None)
    return isinstance(weight, torch.Tensor) and weight.ndim == 2 and fast(weight)


class ResidualStream:
    """The residual (batch, seq, width) of a transformer whose layers add linear maps to it.

    On a GPU the matrix product adds into the residual itself, and the biases, which no product can
    carry along, are summed up beforehand and added inside the next norm.
    """

    def __init__(self, hidden: torch.Tensor, biases: list[torch.Tensor] | None) -> None:
        """``hidden`` is overwritten; ``biases`` as ``bias_sums`` made them, in order of the adds."""
        self.hidden = hidden
        self._biases = biases
        self._adds = 0

    def add(self, linear: nn.Module, x: torch.Tensor) -> None:
        """hidden += linear(x)."""
        if self._biases is None:
            self.hidden = self.hidden + apply(linear, x)
            return
        flat = self.hidden.view(-1, self.hidden.shape[-1])
        flat.addmm_(x.reshape(flat.shape[0], -1), linear.weight.t())
        self._adds += 1

    def norm(self, norm: nn.Module) -> torch.Tensor:
        """norm(hidden)."""
        if self._biases is None:
            return norm(self.hidden)
        offset = self._biases[self._adds - 1] if self._adds else None
        return triton_kernels().layer_norm(self.hidden, offset, norm.weight, norm.bias, norm.eps)


@torch.no_grad()
def bias_sums(linears: list[nn.Module], norms: list[nn.Module]) -> list[torch.Tensor] | None:
    """Running sums of the biases, (width,) float32 each, or None where the plain form must be taken."""
    if not all(plain(linear) for linear in linears) or not all(isinstance(n, nn.LayerNorm) for n in norms):
        return None
    triton_kernels()  # a missing package shows at start, not in the first request
    zero = torch.zeros(linears[0].weight.shape[0], dtype=torch.float32, device=linears[0].weight.device)
    biases = [zero if linear.bias is None else linear.bias.float() for linear in linears]
    return list(torch.stack(biases).cumsum(0).unbind(0))


def relu_pool(x: torch.Tensor, step: int) -> torch.Tensor:
    """Mean of relu(x) over every ``step`` positions: (batch, seq, width) to (batch, seq // step, width)."""
    if fast(x):
        return triton_kernels().relu_pool(x, step)
    return F.avg_pool1d(F.relu(x).transpose(1, 2), step, step).transpose(1, 2)


def row_starts(batch: int, seq: int, device: torch.device) -> torch.Tensor:
    """Offsets (batch + 1,) int32 of equal sequences laid end to end."""
    return torch.arange(0, (batch + 1) * seq, seq, dtype=torch.int32, device=device)


def full_attention(qkv: torch.Tensor, starts: torch.Tensor, heads: int, scale: float) -> torch.Tensor:
    """Attention of every row over its whole sequence.

    qkv: (batch, seq, 3 * heads * head_dim), query first; starts: ``row_starts``, made once for all
    layers; returns (batch, seq, heads * head_dim).
    """
    batch, seq, width = qkv.shape
    query, key, value = qkv.view(batch, seq, 3, heads, width // (3 * heads)).unbind(2)
    if fast(qkv):
        from deployments.upstream.flash import flash_attention

        return flash_attention(query, key, value, starts, scale).flatten(2)
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
        return triton_kernels().chunked_attention(qkv, key_lens, heads, scale, chunk)
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
        return triton_kernels().rotate_query_key(qkv, cos, sin, heads)
    batch, seq, width = qkv.shape
    pairs = qkv.view(batch, seq, 3, heads, width // (6 * heads), 2)
    even, odd = pairs[:, :, :2, ..., 0].float(), pairs[:, :, :2, ..., 1].float()
    cos, sin = cos[:, None, None], sin[:, None, None]
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).to(qkv.dtype)
    return torch.cat((turned, pairs[:, :, 2:]), dim=2).view(batch, seq, width)


def linear_gelu(
    linear: nn.Module, x: torch.Tensor, activation: nn.Module | Callable[..., Any]
) -> torch.Tensor:
    """activation(linear(x)), where ``activation`` is one of the two forms of gelu.

    On many 16-bit rows the product's own epilogue does it, in float32 and in the tanh form, which is
    within 5e-4 of the other: less than the rounding that it saves. On few rows that product is slower.
    """
    rows = x.numel() // x.shape[-1]
    if rows >= EPILOGUE_ROWS and fast(x) and plain(linear):
        flat = torch._addmm_activation(linear.bias, x.flatten(0, -2), linear.weight.t(), use_gelu=True)
        return flat.view(*x.shape[:-1], -1)
    return activation(apply(linear, x))


def expansion(activation: str) -> Callable[[nn.Module, torch.Tensor, Any], torch.Tensor]:
    """How a layer's first linear map and its activation, by its name in the config, are run."""
    if activation in ("gelu", "gelu_new", "gelu_pytorch_tanh"):
        return linear_gelu
    return lambda linear, x, function: function(apply(linear, x))


def apply(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Call a torch or vLLM linear module; vLLM's return (output, bias)."""
    out = module(x.contiguous())  # vLLM's kernels on the CPU take nothing else
    return out[0] if isinstance(out, tuple) else out
