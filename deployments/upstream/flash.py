"""FlashAttention 3 as vLLM ships it; torch's own attention where it is not to be had."""

from functools import cache

import torch
import torch.nn.functional as F


def flash_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, starts: torch.Tensor, scale: float
) -> torch.Tensor:
    """Unmasked attention of (batch, seq, heads, dim) tensors of one length; same shape out.

    starts: (batch + 1,) int32, where each sequence begins: vLLM's build knows packed sequences alone.
    """
    dim = query.shape[-1]
    if fa3_available() and dim % 8 == 0 and dim <= 128:
        from vllm.vllm_flash_attn.flash_attn_interface import flash_attn_varlen_func

        seq = query.shape[1]
        # No split over keys: at these lengths the heads alone fill the card, and the merge costs more.
        out = flash_attn_varlen_func(
            query.flatten(0, 1), key.flatten(0, 1), value.flatten(0, 1), max_seqlen_q=seq,
            cu_seqlens_q=starts, max_seqlen_k=seq, cu_seqlens_k=starts, softmax_scale=scale, fa_version=3,
            num_splits=1,
        )  # fmt: skip
        return out.view(query.shape)
    out = F.scaled_dot_product_attention(
        query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), scale=scale
    )
    return out.transpose(1, 2)


@cache
def fa3_available() -> bool:
    """Whether the installed vLLM has FlashAttention 3 and the card is one that it runs on."""
    try:
        from vllm.vllm_flash_attn.flash_attn_interface import is_fa_version_supported
    except ImportError:
        return False
    return bool(is_fa_version_supported(3))
