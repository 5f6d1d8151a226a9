"""The toy weights: a table of names, shapes and spreads, filled from a fixed stream of random bits.

Only integer arithmetic and single IEEE multiplications are used, and every value is one that bfloat16
holds exactly: the bytes are the same on every machine, and both dtypes start from the same numbers.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from toy_model import configs as c
from toy_model.vocabulary import SPECIAL, VISIBLE, answer_words, spell, vocabulary

SEED = 45
# How far a token turns the answer away from itself, so that no answer repeats one word for ever.
SELF_DAMPING = 4.0
# The end follows the full stop and nothing else, and no answer begins with either: the full stop's own
# loudness sets how long answers are, and its large embedding makes the end after it certain.
FULL_STOP_LOUDNESS = 1.1
FULL_STOP_SIZE = 3.0
END_AFTER_FULL_STOP = 6.0
NOT_AFTER_BREAK = 6.0
# The first hidden dimension is kept at one value from the embedding to the head, which has no bias of its
# own: it makes blanks so quiet that constrained decoding (JSON allows any of them) takes them last.
CONSTANT = 4.0
BLANK_BIAS = -48.0


@dataclass(frozen=True)
class Spec:
    """One tensor: its name in the checkpoint, its shape, the centre and the spread of its values."""

    name: str
    shape: tuple[int, ...]
    spread: float
    centre: float = 0.0


def linear(
    name: str, out_size: int, in_size: int, gain: float = 1.0, bias: float | None = 0.0
) -> Iterator[Spec]:
    """A linear layer whose outputs spread ``gain`` times as wide as its inputs, its bias by ``bias``."""
    yield Spec(f"{name}.weight", (out_size, in_size), gain / in_size**0.5)
    if bias is not None:
        yield Spec(f"{name}.bias", (out_size,), bias)


def norm(name: str, size: int, *, bias: bool = True, scale: float = 1.0) -> Iterator[Spec]:
    """A normalisation that multiplies by ``scale``."""
    yield Spec(f"{name}.weight", (size,), 0.0, scale)
    if bias:
        yield Spec(f"{name}.bias", (size,), 0.0)


def _llm() -> Iterator[Spec]:
    size = len(vocabulary())
    yield Spec("llm.model.embed_tokens.weight", (size, c.HIDDEN), 1.0)
    for layer in range(c.LAYERS):
        name = f"llm.model.layers.{layer}"
        yield from norm(f"{name}.input_layernorm", c.HIDDEN, bias=False)
        for part, heads in (("q", c.HEADS), ("k", c.KV_HEADS), ("v", c.KV_HEADS)):
            yield from linear(f"{name}.self_attn.{part}_proj", heads * c.HEAD_DIM, c.HIDDEN, bias=None)
        # Normalised queries and keys meet with a spread of the product of the two scales.
        yield from norm(f"{name}.self_attn.q_norm", c.HEAD_DIM, bias=False, scale=1.5)
        yield from norm(f"{name}.self_attn.k_norm", c.HEAD_DIM, bias=False, scale=1.5)
        yield from linear(f"{name}.self_attn.o_proj", c.HIDDEN, c.HEADS * c.HEAD_DIM, gain=1.2, bias=None)
        yield from norm(f"{name}.post_attention_layernorm", c.HIDDEN, bias=False)
        yield from linear(f"{name}.mlp.gate_proj", c.INTERMEDIATE, c.HIDDEN, gain=2.0, bias=None)
        yield from linear(f"{name}.mlp.up_proj", c.INTERMEDIATE, c.HIDDEN, bias=None)
        yield from linear(f"{name}.mlp.down_proj", c.HIDDEN, c.INTERMEDIATE, gain=1.5, bias=None)
    yield from norm("llm.model.norm", c.HIDDEN, bias=False)
    yield from linear("llm.lm_head", size, c.HIDDEN, gain=16.0, bias=None)


def _vision() -> Iterator[Spec]:
    size = c.VISION_HIDDEN
    pixels = (size, 3, c.PATCH, c.PATCH)
    yield Spec("vpm.embeddings.patch_embedding.weight", pixels, 2.0 / (3 * c.PATCH**2) ** 0.5)
    yield Spec("vpm.embeddings.patch_embedding.bias", (size,), 0.3)
    yield Spec("vpm.embeddings.position_embedding.weight", (c.POSITIONS_SIDE**2, size), 0.5)
    for layer in range(c.VISION_LAYERS):
        name = f"vpm.encoder.layers.{layer}"
        yield from norm(f"{name}.layer_norm1", size)
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            yield from linear(f"{name}.self_attn.{part}", size, size, gain=1.4)
        yield from norm(f"{name}.layer_norm2", size)
        yield from linear(f"{name}.mlp.fc1", c.VISION_INTERMEDIATE, size, gain=1.5)
        yield from linear(f"{name}.mlp.fc2", size, c.VISION_INTERMEDIATE, gain=1.5)
    yield from norm("vpm.post_layernorm", size)


def _resampler() -> Iterator[Spec]:
    yield Spec("resampler.query", (c.QUERIES, c.HIDDEN), 1.0)
    yield Spec("resampler.kv_proj.weight", (c.HIDDEN, c.VISION_HIDDEN), c.VISION_HIDDEN**-0.5)
    yield Spec("resampler.attn.in_proj_weight", (3 * c.HIDDEN, c.HIDDEN), 1.4 * c.HIDDEN**-0.5)
    yield Spec("resampler.attn.in_proj_bias", (3 * c.HIDDEN,), 0.0)
    yield from linear("resampler.attn.out_proj", c.HIDDEN, c.HIDDEN)
    for part in ("ln_q", "ln_kv", "ln_post"):
        yield from norm(f"resampler.{part}", c.HIDDEN)
    yield Spec("resampler.proj", (c.HIDDEN, c.HIDDEN), c.HIDDEN**-0.5)


def _audio() -> Iterator[Spec]:
    size = c.AUDIO_HIDDEN
    yield Spec("apm.conv1.weight", (size, c.MEL_BINS, 3), 2.0 / (3 * c.MEL_BINS) ** 0.5)
    yield Spec("apm.conv1.bias", (size,), 0.1)
    yield Spec("apm.conv2.weight", (size, size, 3), 2.0 / (3 * size) ** 0.5)
    yield Spec("apm.conv2.bias", (size,), 0.1)
    yield Spec("apm.embed_positions.weight", (c.AUDIO_POSITIONS, size), 0.1)
    for layer in range(c.AUDIO_LAYERS):
        name = f"apm.layers.{layer}"
        yield from norm(f"{name}.self_attn_layer_norm", size)
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            bias = None if part == "k_proj" else 0.0
            yield from linear(f"{name}.self_attn.{part}", size, size, gain=1.4, bias=bias)
        yield from norm(f"{name}.final_layer_norm", size)
        yield from linear(f"{name}.fc1", c.AUDIO_INTERMEDIATE, size, gain=1.5)
        yield from linear(f"{name}.fc2", size, c.AUDIO_INTERMEDIATE, gain=1.5)
    yield from norm("apm.layer_norm", size)
    yield from linear("audio_projection_layer.linear1", c.HIDDEN, c.AUDIO_INTERMEDIATE // 4, bias=0.1)
    yield from linear("audio_projection_layer.linear2", c.HIDDEN, c.HIDDEN, gain=2.0)


def specs() -> list[Spec]:
    """Every tensor of the checkpoint, in the order in which the random stream fills them."""
    return [*_llm(), *_vision(), *_resampler(), *_audio()]


def round_to_bfloat16(values: np.ndarray) -> np.ndarray:
    """The nearest float32 numbers that bfloat16 holds (ties to even)."""
    bits = values.astype(np.float32).view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded & np.uint32(0xFFFF0000)).view(np.float32)


def _bell(stream: np.random.Philox, count: int) -> np.ndarray:
    """Values of mean 0 and spread 1, each the sum of four random 16-bit numbers."""
    words = stream.random_raw(count).astype("<u8")
    quarters = words.view("<u2").reshape(count, 4).astype(np.int64).sum(axis=1)
    # Four uniform 16-bit numbers: mean 4 * 32767.5, variance 4 * (2**32 - 1) / 12.
    return (quarters * 2 - 4 * 65535) * 1.3215177537966724e-05


def head_scales() -> np.ndarray:
    """How loud each token is in the answer: words speak, letters and markers stay below them."""
    ids = vocabulary()
    scales = np.full(len(ids), 0.35)
    scales[[ids[token] for token in (*SPECIAL, *VISIBLE)]] = 0.2
    scales[[ids[spell(word)] for word in answer_words()]] = 1.0
    scales[ids["."]] = FULL_STOP_LOUDNESS
    return scales


def _printed(token: str) -> str:
    return token.translate({ord(spell(blank)): blank for blank in (" ", "\t", "\n", "\r")})


def _keep_constant(name: str, values: np.ndarray) -> np.ndarray:
    """Let no layer read or write the constant dimension."""
    if name.endswith(
        ("q_proj.weight", "k_proj.weight", "v_proj.weight", "gate_proj.weight", "up_proj.weight")
    ):
        values[:, 0] = 0.0
    elif name.endswith(("o_proj.weight", "down_proj.weight")):
        values[0, :] = 0.0
    elif name.endswith("embed_tokens.weight"):
        values[:, 0] = CONSTANT
    return values


def _shape_head(head: np.ndarray, embeddings: np.ndarray) -> np.ndarray:
    ids = vocabulary()
    unit = embeddings.astype(np.float64) / embeddings.shape[1] ** 0.5
    unit[ids["."]] /= FULL_STOP_SIZE
    shaped = (head - SELF_DAMPING * unit) * head_scales()[:, None]
    breaks = unit[ids[spell("\n")]] + unit[ids[spell("\n\n")]]
    shaped[ids["<|im_end|>"]] += END_AFTER_FULL_STOP * unit[ids["."]] - NOT_AFTER_BREAK * breaks
    shaped[ids["."]] -= NOT_AFTER_BREAK * breaks
    shaped[:, 0] = 0.0
    shaped[[number for token, number in ids.items() if not _printed(token).strip()], 0] = BLANK_BIAS
    return shaped


def tensors() -> dict[str, np.ndarray]:
    """The whole checkpoint, by name."""
    return fill(specs(), SEED, "llm.")


def fill(specs: Iterable[Spec], seed: int, llm: str) -> dict[str, np.ndarray]:
    """Every tensor by name, from one stream of random bits.

    ``llm`` stands before the language model's names, whose head is shaped so that answers are words and end.
    """
    stream = np.random.Philox(seed)
    filled: dict[str, np.ndarray] = {}
    for spec in specs:
        values = np.full(spec.shape, spec.centre)
        if spec.spread:
            values += _bell(stream, values.size).reshape(spec.shape) * spec.spread
        if spec.name == f"{llm}model.embed_tokens.weight":
            values[vocabulary()["."]] *= FULL_STOP_SIZE
        if spec.name.startswith(f"{llm}model."):
            values = _keep_constant(spec.name, values)
        if spec.name == f"{llm}lm_head.weight":
            values = _shape_head(values, filled[f"{llm}model.embed_tokens.weight"])
        filled[spec.name] = round_to_bfloat16(values)
    return filled


def to_safetensors(named: dict[str, np.ndarray]) -> bytes:
    """The safetensors file: an eight-byte length, a JSON header, then the numbers in name order."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name in sorted(named):
        end = start + named[name].nbytes
        header[name] = {"dtype": "F32", "shape": list(named[name].shape), "data_offsets": [start, end]}
        start = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    body = b"".join(named[name].astype("<f4").tobytes() for name in sorted(named))
    return len(text).to_bytes(8, "little") + text + body
