"""Random weights for tiny checkpoints: names, shapes and spreads, filled from a fixed stream of random bits.

Only integer arithmetic and single IEEE multiplications are used, and every value is one that bfloat16
holds exactly: the bytes are the same on every machine, and both dtypes start from the same numbers.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from toy_model.vocabulary import SPECIAL, VISIBLE, answer_words, spell, vocabulary

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
