"""The decoder in plain PyTorch (Qwen3's), under the checkpoint's parameter names."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from toy_model import configs as c

EPSILON = float(c.model_config()["rms_norm_eps"])
ROTARY_BASE = float(c.model_config()["rope_theta"])


def rotary(length: int, device: torch.device) -> Tensor:
    """Cosines and sines of the positions' angles, (2, length, head size)."""
    frequencies = ROTARY_BASE ** (-torch.arange(0, c.HEAD_DIM, 2, device=device) / c.HEAD_DIM)
    angles = torch.arange(length, device=device)[:, None] * frequencies
    angles = torch.cat([angles, angles], dim=1)
    return torch.stack([angles.cos(), angles.sin()])


def turned(x: Tensor, waves: Tensor) -> Tensor:
    """Queries or keys (..., length, head size), each position turned by its angles."""
    first, second = x.chunk(2, dim=-1)
    return x * waves[0] + torch.cat([-second, first], dim=-1) * waves[1]


class Attention(nn.Module):
    """Causal, with normalised queries and keys; several query heads share one head of keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj = nn.Linear(c.HIDDEN, c.HEADS * c.HEAD_DIM, bias=False)
        self.k_proj = nn.Linear(c.HIDDEN, c.KV_HEADS * c.HEAD_DIM, bias=False)
        self.v_proj = nn.Linear(c.HIDDEN, c.KV_HEADS * c.HEAD_DIM, bias=False)
        self.o_proj = nn.Linear(c.HEADS * c.HEAD_DIM, c.HIDDEN, bias=False)
        self.q_norm = nn.RMSNorm(c.HEAD_DIM, eps=EPSILON)
        self.k_norm = nn.RMSNorm(c.HEAD_DIM, eps=EPSILON)

    def forward(self, x: Tensor, waves: Tensor) -> Tensor:
        query, key, value = (
            part(x).unflatten(-1, (-1, c.HEAD_DIM)) for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        query, key = self.q_norm(query).transpose(1, 2), self.k_norm(key).transpose(1, 2)
        out = F.scaled_dot_product_attention(
            turned(query, waves), turned(key, waves), value.transpose(1, 2), is_causal=True, enable_gqa=True
        )
        return self.o_proj(out.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Attention and a gated layer, each after its norm."""

    def __init__(self) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(c.HIDDEN, eps=EPSILON)
        self.self_attn = Attention()
        self.post_attention_layernorm = nn.RMSNorm(c.HIDDEN, eps=EPSILON)
        self.mlp = nn.ModuleDict(
            {
                "gate_proj": nn.Linear(c.HIDDEN, c.INTERMEDIATE, bias=False),
                "up_proj": nn.Linear(c.HIDDEN, c.INTERMEDIATE, bias=False),
                "down_proj": nn.Linear(c.INTERMEDIATE, c.HIDDEN, bias=False),
            }
        )

    def forward(self, x: Tensor, waves: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), waves)
        inner = self.post_attention_layernorm(x)
        inner = F.silu(self.mlp["gate_proj"](inner)) * self.mlp["up_proj"](inner)
        return x + self.mlp["down_proj"](inner)


class Body(nn.Module):
    """Embeddings, layers and the last norm."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary, c.HIDDEN)
        self.layers = nn.ModuleList(Layer() for _ in range(c.LAYERS))
        self.norm = nn.RMSNorm(c.HIDDEN, eps=EPSILON)

    def forward(self, x: Tensor) -> Tensor:
        """Embeddings (batch, length, hidden) to last states of the same shape."""
        waves = rotary(x.shape[1], x.device).to(x.dtype)
        for layer in self.layers:
            x = layer(x, waves)
        return self.norm(x)


class Language(nn.Module):
    """The body and the head over the vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        size = c.decoder_sizes()["vocab_size"]
        self.model = Body(size)
        self.lm_head = nn.Linear(c.HIDDEN, size, bias=False)
