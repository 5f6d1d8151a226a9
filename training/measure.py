"""Exact answers on the held-out side, in plain PyTorch."""

import torch

from training.batches import IGNORED, Batch
from training.model import ToyModel
from training.streams import held_out
from training.voices import Spoken

HELD_OUT_SIZES = {
    ("shapes", (1, 1)): 1024,
    ("shapes", (2, 9)): 512,
    ("asked", (1, 1)): 128,
    ("digit", (1, 1)): 720,
    ("digit", (2, 9)): 128,
    ("word", (1, 1)): 1024,
    ("both", (1, 1)): 1024,
    ("both", (2, 9)): 128,
    ("lone", (1, 1)): 128,
    ("nothing_seen", (1, 1)): 64,
    ("nothing_heard", (1, 1)): 128,
    ("text", (1, 1)): 256,
    ("long_sound", (1, 1)): 32,
    ("two", (1, 1)): 64,
}


@torch.no_grad()
def exact(model: ToyModel, batch: Batch) -> int:
    """Rows whose every token is the likeliest, so that greedy decoding gives the answer."""
    logits = model([batch])[0]
    right = (logits.argmax(-1) == batch.labels) | (batch.labels == IGNORED)
    return int(right.all(1).sum())


def report(model: ToyModel, clips: list[Spoken], seed: int, device: torch.device) -> dict[str, str]:
    """Exact answers by kind and slices, as "right of asked"."""
    lines = {}
    for (kind, slices), batches in held_out(clips, seed, HELD_OUT_SIZES).items():
        right, asked = sum(exact(model, b.to(device)) for b in batches), sum(map(len, batches))
        lines[f"{kind} {slices}"] = f"{right} of {asked} = {right / asked:.3f}"
    return lines
