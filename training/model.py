"""The model in plain PyTorch, under the checkpoint's parameter names; its forward equals vLLM's.

Pictures come as patches with their grids, sounds as log-mel features, both padded to the longest of a batch:
padding is masked, so each item's embeddings are those that it has alone.
"""

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from toy_model import configs as c
from training.batches import Batch
from training.language import Language

SHORT_PROMPT = 256
"""Prompts up to this length go through the decoder together, and longer ones."""


def rows_of(table: Tensor, index: Tensor) -> Tensor:
    """Rows of an embedding table; the gradient adds up without sorting, as a CUDA graph needs it."""
    return table.index_select(0, index.flatten()).view(*index.shape, table.shape[1])


class SelfAttention(nn.Module):
    """Attention of every position to every valid one."""

    def __init__(self, width: int, heads: int, key_bias: bool) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(width, width)
        self.k_proj = nn.Linear(width, width, bias=key_bias)
        self.v_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        query, key, value = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.q_proj, self.k_proj, self.v_proj)
        )
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return self.out_proj(out.transpose(1, 2).flatten(2))


class VisionLayer(nn.Module):
    """SigLIP's: attention and a GELU layer, each after its norm."""

    def __init__(self) -> None:
        super().__init__()
        width = c.VISION_HIDDEN
        self.layer_norm1 = nn.LayerNorm(width, eps=1e-6)
        self.self_attn = SelfAttention(width, c.VISION_HEADS, key_bias=True)
        self.layer_norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.ModuleDict(
            {
                "fc1": nn.Linear(width, c.VISION_INTERMEDIATE),
                "fc2": nn.Linear(c.VISION_INTERMEDIATE, width),
            }
        )

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.self_attn(self.layer_norm1(x), mask)
        inner = F.gelu(self.mlp["fc1"](self.layer_norm2(x)), approximate="tanh")
        return x + self.mlp["fc2"](inner)


class Vision(nn.Module):
    """SigLIP over patches of any grid; positions are fractions of the grid."""

    def __init__(self) -> None:
        super().__init__()
        width = c.VISION_HIDDEN
        self.embeddings = nn.ModuleDict(
            {
                "patch_embedding": nn.Conv2d(3, width, c.PATCH, stride=c.PATCH),
                "position_embedding": nn.Embedding(c.POSITIONS_SIDE**2, width),
            }
        )
        self.encoder = nn.ModuleDict({"layers": nn.ModuleList(VisionLayer() for _ in range(c.VISION_LAYERS))})
        self.post_layernorm = nn.LayerNorm(width, eps=1e-6)

    def forward(self, patches: Tensor, grids: Tensor, valid: Tensor) -> Tensor:
        """patches (slices, most, 3 * patch**2), grids (slices, 2), valid (slices, most) to (..., width)."""
        conv = self.embeddings["patch_embedding"]
        x = F.linear(patches, conv.weight.flatten(1), conv.bias)
        index = torch.arange(patches.shape[1], device=patches.device)[None]
        rows, columns = grids[:, :1], grids[:, 1:]
        side = c.POSITIONS_SIDE
        edges = torch.arange(1 / side, 1.0, 1 / side, device=patches.device)
        y = torch.bucketize((index // columns) / rows, edges, right=True)
        across = torch.bucketize((index % columns) / columns, edges, right=True)
        positions = torch.where(valid, y * side + across, 0)
        x = x + rows_of(self.embeddings["position_embedding"].weight, positions).to(x.dtype)
        mask = valid[:, None, None]
        for layer in self.encoder["layers"]:
            x = layer(x, mask)
        return self.post_layernorm(x)


def sincos_positions(width: int, rows: int, columns: int) -> Tensor:
    """The resampler's fixed table (rows, columns, width): halves for the column and for the row."""
    frequencies = 10_000 ** (-torch.arange(width // 4, dtype=torch.float64) / (width / 4))

    def waves(count: int) -> Tensor:
        angles = torch.arange(count, dtype=torch.float64)[:, None] * frequencies
        return torch.cat([angles.sin(), angles.cos()], dim=1)

    across = waves(columns)[None].expand(rows, -1, -1)
    down = waves(rows)[:, None].expand(-1, columns, -1)
    return torch.cat([across, down], dim=-1).float()


class CrossAttention(nn.Module):
    """torch's multi-head attention by its parameter names."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = nn.Linear(width, width)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        weights, biases = self.in_proj_weight.chunk(3), self.in_proj_bias.chunk(3)
        query, key, value = (
            F.linear(x, weight, bias).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for x, weight, bias in zip((query, key, value), weights, biases, strict=True)
        )
        out = F.scaled_dot_product_attention(
            query.expand(key.shape[0], -1, -1, -1), key, value, attn_mask=mask
        )
        return self.out_proj(out.transpose(1, 2).flatten(2))


class Resampler(nn.Module):
    """A fixed number of queries over a slice's patches."""

    table: Tensor

    def __init__(self) -> None:
        super().__init__()
        width = c.HIDDEN
        self.query = nn.Parameter(torch.empty(c.QUERIES, width))
        self.kv_proj = nn.Linear(c.VISION_HIDDEN, width, bias=False)
        self.attn = CrossAttention(width, width // 128)
        self.ln_q = nn.LayerNorm(width, eps=1e-6)
        self.ln_kv = nn.LayerNorm(width, eps=1e-6)
        self.ln_post = nn.LayerNorm(width, eps=1e-6)
        self.proj = nn.Parameter(torch.empty(width, width))
        self.register_buffer("table", sincos_positions(width, 70, 70), persistent=False)

    def forward(self, x: Tensor, grids: Tensor, valid: Tensor) -> Tensor:
        """Patch features (slices, most, vision width) to embeddings (slices, queries, hidden)."""
        index = torch.arange(x.shape[1], device=x.device)[None]
        rows = (index // grids[:, 1:]).clamp(max=69)
        positions = self.table[rows, index % grids[:, 1:]].to(x.dtype)
        x = self.ln_kv(self.kv_proj(x))
        out = self.attn(self.ln_q(self.query)[None], x + positions, x, valid[:, None, None])
        return self.ln_post(out) @ self.proj


class AudioLayer(nn.Module):
    """Whisper's: attention and a GELU layer, each after its norm."""

    def __init__(self) -> None:
        super().__init__()
        width = c.AUDIO_HIDDEN
        self.self_attn_layer_norm = nn.LayerNorm(width)
        self.self_attn = SelfAttention(width, c.AUDIO_HEADS, key_bias=False)
        self.final_layer_norm = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, c.AUDIO_INTERMEDIATE)
        self.fc2 = nn.Linear(c.AUDIO_INTERMEDIATE, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        x = x + self.self_attn(self.self_attn_layer_norm(x), mask)
        return x + self.fc2(F.gelu(self.fc1(self.final_layer_norm(x))))


class Audio(nn.Module):
    """Whisper's encoder; a position sees its own second and those before."""

    def __init__(self) -> None:
        super().__init__()
        width = c.AUDIO_HIDDEN
        self.conv1 = nn.Conv1d(c.MEL_BINS, width, 3, padding=1)
        self.conv2 = nn.Conv1d(width, width, 3, stride=2, padding=1)
        self.embed_positions = nn.Embedding(c.AUDIO_POSITIONS, width)
        self.layers = nn.ModuleList(AudioLayer() for _ in range(c.AUDIO_LAYERS))
        self.layer_norm = nn.LayerNorm(width)

    def forward(self, features: Tensor, frames: Tensor) -> Tensor:
        """features (clips, bins, most), frames (clips,) to states (clips, (most + 1) // 2, width)."""
        at = torch.arange(features.shape[2], device=features.device)
        # A clip alone has zeros around it, before either convolution.
        inside = (at < frames[:, None])[:, None]
        x = F.gelu(self.conv1(features * inside)) * inside
        x = F.gelu(self.conv2(x)).transpose(1, 2)
        at = at[: x.shape[1]]
        x = x + self.embed_positions.weight[: x.shape[1]].to(x.dtype)
        second = at // 50
        mask = (second[None, :] <= second[:, None]) & (at < (frames[:, None] + 1) // 2)[:, None]
        # The rows of padding see the first position alone, for a row that sees nothing has no softmax.
        mask = mask | (at == 0)
        for layer in self.layers:
            x = layer(x, mask[:, None])
        return self.layer_norm(x)


class Projection(nn.Module):
    """Audio states to the language model's width, then averages of five."""

    def __init__(self) -> None:
        super().__init__()
        self.linear1 = nn.Linear(c.AUDIO_INTERMEDIATE // 4, c.HIDDEN)
        self.linear2 = nn.Linear(c.HIDDEN, c.HIDDEN)

    def forward(self, states: Tensor) -> Tensor:
        x = self.linear2(F.relu(self.linear1(states)))
        return F.avg_pool1d(x.transpose(1, 2), c.POOL_STEP, c.POOL_STEP).transpose(1, 2)


def together(
    encode: Callable[[Tensor, Tensor], Tensor], media: list[tuple[Tensor, Tensor]], none: Tensor
) -> list[Tensor]:
    """Encode (rows, number, ...) media with their lengths, those of one size at once; ``none`` for none."""
    encoded = [none] * len(media)
    for size in dict.fromkeys(values.shape[2:] for values, _ in media):
        members = [n for n, (values, _) in enumerate(media) if values.shape[2:] == size]
        values, lengths = (torch.cat([media[n][part].flatten(0, 1) for n in members]) for part in (0, 1))
        out = encode(values, lengths) if len(values) else none
        parts = out.split([media[n][0].shape[:2].numel() for n in members])
        for n, part in zip(members, parts, strict=True):
            encoded[n] = part.view(*media[n][0].shape[:2], *part.shape[1:])
    return encoded


def _answers(states: Tensor, batch: Batch) -> Tensor:
    """The states (rows, answer, hidden) that give the answers' tokens."""
    at = batch.answer_at[:, None] + torch.arange(batch.labels.shape[1], device=states.device)
    at = at.clamp(max=states.shape[1] - 1)
    return states.gather(1, at[..., None].expand(-1, -1, states.shape[2]))


class ToyModel(nn.Module):
    """All parts by the checkpoint's names; ``state_dict()`` is the checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.llm = Language()
        self.vpm = Vision()
        self.resampler = Resampler()
        self.apm = Audio()
        self.audio_projection_layer = Projection()

    def see(self, patches: Tensor, grids: Tensor) -> Tensor:
        """Patches and grids of all slices to embeddings (slices, queries, hidden)."""
        valid = torch.arange(patches.shape[1], device=patches.device) < grids.prod(1, keepdim=True)
        return self.resampler(self.vpm(patches, grids, valid), grids, valid)

    def hear(self, features: Tensor, frames: Tensor) -> Tensor:
        """Mel features and lengths to pooled embeddings (clips, most, hidden); see ``audio_tokens``."""
        return self.audio_projection_layer(self.apm(features, frames))

    def encode(self, batches: Sequence[Batch]) -> tuple[list[Tensor], list[Tensor]]:
        """Embeddings of each batch's slices (rows, slices, queries, hidden) and sounds, alike."""
        kind = self.llm.lm_head.weight.dtype

        def see(patches: Tensor, grids: Tensor) -> Tensor:
            return self.see((patches.float() / 127.5 - 1.0).to(kind), grids)

        def hear(features: Tensor, frames: Tensor) -> Tensor:
            return self.hear(features.to(kind), frames)

        none = self.resampler.query.new_zeros(0, c.QUERIES, c.HIDDEN)
        return (
            together(see, [(batch.patches, batch.grids) for batch in batches], none),
            together(hear, [(batch.features, batch.frames) for batch in batches], none),
        )

    def forward(self, batches: Sequence[Batch]) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Logits of all answers (rows, answer, vocabulary), and the embeddings as ``encode`` gives them."""
        seen, heard = self.encode(batches)
        prompts = list(map(self._filled, batches, seen, heard))
        states = [torch.empty(0)] * len(batches)
        for members in (
            [n for n, batch in enumerate(batches) if (batch.ids.shape[1] <= SHORT_PROMPT) == short]
            for short in (True, False)
        ):
            most = max((prompts[n].shape[1] for n in members), default=0)
            padded = [F.pad(prompts[n], (0, 0, 0, most - prompts[n].shape[1])) for n in members]
            if padded:
                parts = self.llm.model(torch.cat(padded)).split([len(one) for one in padded])
                for n, part in zip(members, parts, strict=True):
                    states[n] = _answers(part, batches[n])
        return self.llm.lm_head(torch.cat(states)), seen, heard

    def _filled(self, batch: Batch, seen: Tensor, heard: Tensor) -> Tensor:
        """The prompts' embeddings (rows, length, hidden), those of the media in their places."""
        flat = rows_of(self.llm.model.embed_tokens.weight, batch.ids).flatten(0, 1).to(seen.dtype)
        # One place more takes what belongs to media that are not there.
        flat = F.pad(flat, (0, 0, 0, 1))
        places = torch.cat([batch.slice_places().flatten(), batch.sound_places(heard.shape[2]).flatten()])
        flat = flat.index_copy(0, places, torch.cat([seen.flatten(0, 2), heard.flatten(0, 2)]))
        return flat[:-1].view(*batch.ids.shape, -1)

    @torch.no_grad()
    def start(self, seed: int) -> None:
        """Seeded first weights."""
        generator = torch.Generator().manual_seed(seed)

        def fill(tensor: Tensor, spread: float) -> None:
            tensor.copy_(torch.empty(tensor.shape).normal_(0, spread, generator=generator))

        for name, tensor in self.named_parameters():
            if name.endswith(("query", "embed_tokens.weight", "position_embedding.weight")):
                fill(tensor, 0.5)
            elif name.endswith("embed_positions.weight"):
                fill(tensor, 0.1)
            elif name.endswith("lm_head.weight"):
                fill(tensor, 0.03)
            elif tensor.dim() == 1:
                tensor.copy_(
                    torch.full_like(tensor, float("norm" in name or "ln_" in name) * name.endswith("weight"))
                )
            else:
                fill(tensor, 0.8 / math.sqrt(tensor[0].numel()))
