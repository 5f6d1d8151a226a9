"""The least work each encoder can do: FLOPs of its matrix products, bytes read and written once.

Attention counts only pairs that the mask allows; what depends on weights or the patch grid alone and
can be kept (projected queries, positions) counts nothing. bf16, so two bytes a number.
"""

from dataclasses import dataclass

from benchmarks.random_encoders import Dimensions

FLOPS_PER_S = 790e12  # bf16 matrix products on random data, measured on an H200
BYTES_PER_S = 4.3e12  # device-to-device copy, read plus written, likewise


@dataclass(frozen=True)
class Work:
    """FLOPs and bytes of one call."""

    flops: float
    bytes: float

    @property
    def floor_ms(self) -> float:
        """No version runs much faster than this on an H200."""
        return max(self.flops / FLOPS_PER_S, self.bytes / BYTES_PER_S) * 1e3


def vision_work(dims: Dimensions, batch: int, patches: int, queries: int = 64) -> Work:
    """Patch projection, transformer, resampler."""
    width, hidden, rows = dims.vision_width, dims.hidden, batch * patches
    layer = 4 * width * width + 2 * width * dims.vision_mlp
    per_row = 588 * width + dims.vision_layers * layer + width * hidden + 2 * hidden * hidden
    per_query = 2 * hidden * hidden
    attention = 2 * batch * patches * (patches * width * dims.vision_layers + queries * hidden)
    weights = per_row + per_query
    flops = 2 * (rows * per_row + batch * queries * per_query + attention)
    return Work(flops, 2 * (weights + rows * 588 + batch * queries * hidden))


def audio_work(dims: Dimensions, batch: int, frames: int, chunk: int = 50, pool: int = 5) -> Work:
    """Convolutions, transformer, projection; pooling before the second linear layer."""
    width, hidden, seq = dims.audio_width, dims.hidden, (frames - 1) // 2 + 1
    layer = 12 * width * width
    pairs = sum(min((i // chunk + 1) * chunk, seq) for i in range(seq))
    convolutions = frames * 3 * 80 * width + seq * 3 * width * width
    projection = seq * width * hidden + seq // pool * hidden * hidden
    products = convolutions + dims.audio_layers * (seq * layer + 2 * pairs * width) + projection
    weights = 3 * 80 * width + 3 * width * width + dims.audio_layers * layer + width * hidden + hidden**2
    return Work(2 * batch * products, 2 * (weights + batch * (80 * frames + seq // pool * hidden)))


def tile_work(dims: Dimensions, tiles: int) -> Work:
    """Patch projection, transformer, pixel shuffle with its two layers, projector."""
    width, patches = dims.llama_width, (dims.llama_image // 14) ** 2
    layer = 4 * width * width + 2 * width * dims.llama_mlp
    seq, out = patches + 1, patches // 4
    shuffled = 4 * width * dims.llama_projector + dims.llama_projector**2
    tail = shuffled + dims.llama_projector * dims.llama_text
    products = patches * 588 * width + dims.llama_layers * (seq * layer + 2 * seq * seq * width) + out * tail
    weights = 588 * width + dims.llama_layers * layer + tail
    return Work(2 * tiles * products, 2 * (weights + tiles * (patches * 588 + out * dims.llama_text)))
