"""What passes between deployments: frozen, small beside the arrays they carry, and picklable."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

BFLOAT16_EXPONENT = np.uint16(0x7F80)  # all ones in NaN and in the infinities, and in nothing else
EMBEDDING_PART = "graphserve_embedding"
"""Type of the content part that stands for an embedding while a request is on its way."""


@dataclass(frozen=True)
class MediaItem:
    """One piece of media on its way to an encoder, still as the client's bytes."""

    data: bytes
    media_key: str
    uuid: str  # hash of the bytes, the model's and the processor's identity and options
    request_id: str = ""


@dataclass(frozen=True)
class EncodeReceipt:
    """Sent ahead of an embedding: what the Ingress may know of it without touching the tensor."""

    uuid: str
    encoder: str
    replica_id: str
    shape_key: str
    tokens: int
    bytes: int
    outcome: Literal["hit", "miss"]
    batch_size: int
    preprocess_s: float
    queue_s: float
    encode_s: float


@dataclass(frozen=True)
class EncodedMedia:
    """One embedding as a numpy view: (tokens, hidden), bfloat16 as its 16-bit pattern."""

    uuid: str
    encoder: str
    dtype: Literal["float32", "bfloat16"]
    data: np.ndarray
    metadata: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class ChatHead:
    """First message of the decoder's answer: the status, and whether chunks or one body follow."""

    status: int
    streaming: bool
    spent_s: float = field(default=0.0, compare=False)  # the decoder's own time until it said so


def embedding_to_message(
    tensor: Any, *, uuid: str, encoder: str, metadata: Mapping[str, np.ndarray]
) -> EncodedMedia:
    """Wrap a CPU tensor without copying it. Raises TypeError for other dtypes than the two."""
    import torch

    if tensor.dtype == torch.bfloat16:
        return EncodedMedia(uuid, encoder, "bfloat16", tensor.view(torch.uint16).numpy(), metadata)
    if tensor.dtype == torch.float32:
        return EncodedMedia(uuid, encoder, "float32", tensor.numpy(), metadata)
    raise TypeError(f"embeddings travel as float32 or bfloat16, not {tensor.dtype}")


def message_to_embedding(message: EncodedMedia) -> Any:
    """The tensor of a message, (tokens, hidden); shares the message's memory, which is read-only."""
    import warnings

    import torch

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        tensor = torch.from_numpy(message.data)
    return tensor.view(torch.bfloat16) if message.dtype == "bfloat16" else tensor


def is_finite(message: EncodedMedia) -> bool:
    """Whether every value of the embedding is finite, read off the bits: 0.2 ms where torch took 6."""
    if message.dtype == "bfloat16":
        return bool(((message.data & BFLOAT16_EXPONENT) != BFLOAT16_EXPONENT).all())
    return bool(np.isfinite(message.data).all())
