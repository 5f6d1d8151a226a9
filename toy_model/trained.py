"""The trained weights: a bfloat16 file of this package, widened to float32 for the checkpoint."""

import hashlib
import json
from pathlib import Path

import numpy as np

FILE = Path(__file__).with_name("model.safetensors")
SHA256 = "bdc1d1143a969555bf9b760b42ef6f57edb3f3bbdc4fbc0432dec9ca1ec95c18"
"""Of that file, as training wrote it."""


def tensors() -> dict[str, np.ndarray]:
    """Every tensor by name, float32. Raises ValueError where the file is another than the one meant."""
    data = memoryview(FILE.read_bytes())
    found = hashlib.sha256(data).hexdigest()
    if found != SHA256:
        raise ValueError(f"{FILE.name} of the toy model is damaged: its SHA-256 is {found}, not {SHA256}")
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(bytes(data[8:start]))
    del header["__metadata__"]
    return {name: _widened(data[start:], **entry) for name, entry in header.items()}


def _widened(body: memoryview, dtype: str, shape: list[int], data_offsets: list[int]) -> np.ndarray:
    if dtype != "BF16":
        raise ValueError(f"a tensor is {dtype} and not BF16")
    begin, end = data_offsets
    # bfloat16 is the upper half of float32.
    bits = np.frombuffer(body[begin:end], "<u2").astype("<u4") << np.uint32(16)
    return bits.view("<f4").reshape(shape)
