"""FlashAttention 3 as vLLM ships it, called for equal sequence lengths.

vLLM's own wrapper knows only packed sequences of unequal length, which costs a scheduling kernel per
call; the operator underneath takes (batch, seq, heads, dim) as well. Without it: torch's attention.
"""

from functools import cache

import torch
import torch.nn.functional as F

FWD_ARGUMENTS = 37
"""Arguments of ``_vllm_fa3_C.fwd`` in the vLLM this was written for (0.32)."""


def flash_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
) -> torch.Tensor:
    """Unmasked attention of (batch, seq, heads, dim) tensors, strided as they come; same shape out."""
    if fa3_available() and query.shape[-1] % 8 == 0 and query.shape[-1] <= 128:
        # No split over keys: at these lengths the heads alone fill the card, and the merge costs more.
        return torch.ops._vllm_fa3_C.fwd(
            query, key, value, *[None] * 20, scale, False, -1, -1, 0.0, True, None, 1, None, 0, None, 1, 0,
            None,
        )[0]  # fmt: skip
    out = F.scaled_dot_product_attention(
        query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), scale=scale
    )
    return out.transpose(1, 2)


@cache
def fa3_available() -> bool:
    """Whether the installed vLLM has the operator in the form this module calls, and the card is Hopper."""
    try:
        from vllm.vllm_flash_attn.flash_attn_interface import is_fa_version_supported

        if not is_fa_version_supported(3):
            return False
        return len(torch.ops._vllm_fa3_C.fwd.default._schema.arguments) == FWD_ARGUMENTS
    except (ImportError, AttributeError):
        return False
