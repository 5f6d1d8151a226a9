"""Triton kernels for 16-bit encoders on a GPU. Reached through ``kernels``, which also has the plain forms.

All read and write every element once; sums and norms are computed in float32.
"""

import torch
import triton  # type: ignore[import-not-found]  # comes with torch on a GPU stack alone
import triton.language as tl  # type: ignore[import-not-found]

ATTENTION_BLOCKS = (64, 64, 4, 3)
"""Query block, key block, warps, pipeline stages: the fastest of 13 on an H200 at 50 and 1,500 positions."""


@triton.jit
def _norm_kernel(
    x_ptr,
    offset_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    width,
    eps,
    HAS_OFFSET: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * width
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    x = tl.load(x_ptr + row + columns, mask=inside, other=0.0).to(tl.float32)
    if HAS_OFFSET:
        x += tl.load(offset_ptr + columns, mask=inside, other=0.0)
    mean = tl.sum(x, axis=0) / width
    centred = tl.where(inside, x - mean, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, axis=0) / width + eps)
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row + columns, centred * scale * weight + bias, mask=inside)


def layer_norm(
    x: torch.Tensor, offset: torch.Tensor | None, weight: torch.Tensor, bias: torch.Tensor, eps: float
) -> torch.Tensor:
    """layer_norm(x + offset) over the last axis; x contiguous, offset (width,) float32."""
    width = x.shape[-1]
    out = torch.empty_like(x)
    block = triton.next_power_of_2(width)
    _norm_kernel[(x.numel() // width,)](
        x, x if offset is None else offset, weight, bias, out, width, eps, HAS_OFFSET=offset is not None,
        BLOCK=block, num_warps=max(1, min(8, block // 512)),
    )  # fmt: skip
    return out


@triton.jit
def _relu_pool_kernel(x_ptr, out_ptr, seq, pooled, width, STEP: tl.constexpr, BLOCK: tl.constexpr):
    batch, position = tl.program_id(0) // pooled, tl.program_id(0) % pooled
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    first = (batch.to(tl.int64) * seq + position * STEP) * width
    total = tl.zeros((BLOCK,), tl.float32)
    for step in tl.static_range(STEP):
        x = tl.load(x_ptr + first + step * width + columns, mask=inside, other=0.0).to(tl.float32)
        total += tl.maximum(x, 0.0)
    tl.store(out_ptr + tl.program_id(0).to(tl.int64) * width + columns, total / STEP, mask=inside)


def relu_pool(x: torch.Tensor, step: int) -> torch.Tensor:
    """Mean of relu(x) over every ``step`` positions: (batch, seq, width) to (batch, seq // step, width)."""
    batch, seq, width = x.shape
    out = x.new_empty((batch, seq // step, width))
    if not out.numel():
        return out
    block = min(1024, triton.next_power_of_2(width))
    _relu_pool_kernel[(batch * (seq // step), triton.cdiv(width, block))](
        x, out, seq, seq // step, width, STEP=step, BLOCK=block
    )
    return out


@triton.jit
def _attend(
    acc, running_max, running_sum, query, k_ptr, v_ptr, row_stride, lo, hi, key_end, visible_end, scale,
    MASKED: tl.constexpr, BLOCK_K: tl.constexpr, DIM: tl.constexpr,
):  # fmt: skip
    """Online softmax over keys [lo, hi); with MASKED also against each query's own end."""
    dims = tl.arange(0, DIM)
    for start in range(lo, hi, BLOCK_K):
        keys = start + tl.arange(0, BLOCK_K)
        at = keys[:, None].to(tl.int64) * row_stride + dims[None, :]
        if MASKED:  # noqa: SIM108 -- the branch is taken at compile time
            k = tl.load(k_ptr + at, mask=keys[:, None] < key_end, other=0.0)
        else:
            k = tl.load(k_ptr + at)
        scores = tl.dot(query, tl.trans(k)) * scale
        if MASKED:
            scores = tl.where(keys[None, :] < visible_end[:, None], scores, float("-inf"))
        new_max = tl.maximum(running_max, tl.max(scores, axis=1))
        weights = tl.exp2(scores - new_max[:, None])
        shrink = tl.exp2(running_max - new_max)
        running_sum = running_sum * shrink + tl.sum(weights, axis=1)
        acc = acc * shrink[:, None]
        if MASKED:  # noqa: SIM108
            v = tl.load(v_ptr + at, mask=keys[:, None] < key_end, other=0.0)
        else:
            v = tl.load(v_ptr + at)
        acc = tl.dot(weights.to(v.dtype), v, acc)
        running_max = new_max
    return acc, running_max, running_sum


@triton.jit
def _chunked_attention_kernel(
    qkv_ptr, lens_ptr, out_ptr, seq, chunk, scale, HEADS: tl.constexpr, DIM: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    # The last queries see the most keys: start with them, so that short programs fill the gaps.
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    batch = tl.program_id(1) // HEADS
    head = tl.program_id(1) % HEADS
    row_stride = 3 * HEADS * DIM
    base = qkv_ptr + batch.to(tl.int64) * seq * row_stride + head * DIM
    key_end = tl.minimum(tl.load(lens_ptr + batch), seq)
    rows = block * BLOCK_Q + tl.arange(0, BLOCK_Q)
    dims = tl.arange(0, DIM)
    query = tl.load(
        base + rows[:, None].to(tl.int64) * row_stride + dims[None, :], mask=rows[:, None] < seq, other=0.0
    )
    visible_end = tl.minimum((rows // chunk + 1) * chunk, key_end)
    every_end = tl.minimum((block * BLOCK_Q // chunk + 1) * chunk, key_end)
    last_row = tl.minimum(block * BLOCK_Q + BLOCK_Q, seq) - 1
    last_end = tl.minimum((last_row // chunk + 1) * chunk, key_end)
    unmasked = every_end // BLOCK_K * BLOCK_K  # whole key blocks that every query of this block sees
    acc = tl.zeros((BLOCK_Q, DIM), tl.float32)
    running_max = tl.full((BLOCK_Q,), -1e30, tl.float32)
    running_sum = tl.zeros((BLOCK_Q,), tl.float32)
    k_ptr, v_ptr = base + HEADS * DIM, base + 2 * HEADS * DIM
    acc, running_max, running_sum = _attend(
        acc, running_max, running_sum, query, k_ptr, v_ptr, row_stride, 0, unmasked, key_end, visible_end,
        scale, False, BLOCK_K, DIM,
    )  # fmt: skip
    acc, running_max, running_sum = _attend(
        acc, running_max, running_sum, query, k_ptr, v_ptr, row_stride, unmasked, last_end, key_end,
        visible_end, scale, True, BLOCK_K, DIM,
    )  # fmt: skip
    out = acc / running_sum[:, None]
    at = (batch.to(tl.int64) * seq + rows[:, None]) * (HEADS * DIM) + head * DIM + dims[None, :]
    tl.store(out_ptr + at, out.to(out_ptr.dtype.element_ty), mask=rows[:, None] < seq)


def chunked_attention(
    qkv: torch.Tensor, key_lens: torch.Tensor, heads: int, scale: float, chunk: int
) -> torch.Tensor:
    """See ``kernels.chunked_attention``; the head dimension is a power of two of at least 16."""
    batch, seq, width = qkv.shape
    dim = width // (3 * heads)
    out = qkv.new_empty((batch, seq, heads * dim))
    block_q, block_k, warps, stages = ATTENTION_BLOCKS
    _chunked_attention_kernel[(triton.cdiv(seq, block_q), batch * heads)](
        qkv, key_lens, out, seq, chunk if chunk > 0 else seq, scale * 1.4426950408889634, HEADS=heads,
        DIM=dim, BLOCK_Q=block_q, BLOCK_K=block_k, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out


@triton.jit
def _rotate_kernel(
    qkv_ptr, cos_ptr, sin_ptr, seq, row_stride, PAIRS: tl.constexpr, HALF: tl.constexpr, BLOCK: tl.constexpr
):
    """Rotate (even, odd) neighbours of query and key; PAIRS of both together, HALF = head_dim / 2."""
    row = tl.program_id(0)
    base = qkv_ptr + row.to(tl.int64) * row_stride
    elements = tl.program_id(1) * 2 * BLOCK + tl.arange(0, 2 * BLOCK)
    inside = elements < 2 * PAIRS
    values = tl.load(base + elements, mask=inside, other=0.0).to(tl.float32)
    even, odd = tl.split(tl.reshape(values, (BLOCK, 2)))
    pairs = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = (row % seq) * HALF + pairs % HALF
    cos = tl.load(cos_ptr + at, mask=pairs < PAIRS, other=0.0)
    sin = tl.load(sin_ptr + at, mask=pairs < PAIRS, other=0.0)
    turned = tl.join(even * cos - odd * sin, even * sin + odd * cos)
    tl.store(base + elements, tl.reshape(turned, (2 * BLOCK,)).to(qkv_ptr.dtype.element_ty), mask=inside)


def rotate_query_key(qkv: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, heads: int) -> torch.Tensor:
    """Rotate query and key of a fresh qkv (batch, seq, 3 * heads * dim) in place and return it.

    cos, sin: (seq, dim / 2) float32, one angle for each pair of neighbouring elements.
    """
    batch, seq, width = qkv.shape
    pairs = width // 3
    block = min(1024, triton.next_power_of_2(pairs))
    _rotate_kernel[(batch * seq, triton.cdiv(pairs, block))](
        qkv, cos, sin, seq, width, PAIRS=pairs, HALF=width // (6 * heads), BLOCK=block, num_warps=4
    )
    return qkv
