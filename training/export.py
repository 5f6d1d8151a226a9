"""Weights to one bfloat16 safetensors file, in name order, and rounded in place."""

import hashlib
import json
from pathlib import Path

import torch

from training.model import ToyModel


def write_weights(model: ToyModel, path: Path) -> str:
    """Round the model to bfloat16, write the file and return its sha256."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    body, start = [], 0
    with torch.no_grad():
        for name, tensor in sorted(model.state_dict().items()):
            rounded = tensor.to(torch.bfloat16)
            tensor.copy_(rounded)
            data = rounded.contiguous().view(torch.uint8).numpy().tobytes()
            end = start + len(data)
            header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [start, end]}
            body.append(data)
            start = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    whole = len(text).to_bytes(8, "little") + text + b"".join(body)
    path.write_bytes(whole)
    return hashlib.sha256(whole).hexdigest()
