"""Whisper's log-mel features of a padded batch of sounds, as transformers' extractor makes them."""

from functools import cache
from typing import TypeVar

import torch
from torch import Tensor
from transformers.audio_utils import mel_filter_bank

from toy_model import configs as c

HOP, WINDOW = 160, 400
Count = TypeVar("Count", int, Tensor)


@cache
def _filters(device: torch.device) -> Tensor:
    bank = mel_filter_bank(
        1 + WINDOW // 2, c.MEL_BINS, 0.0, 8000.0, 16_000, norm="slaney", mel_scale="slaney"
    )
    return torch.from_numpy(bank).float().to(device)


def frames_of(samples: Count) -> Count:
    """Mel frames of a sound of so many samples."""
    return (samples + HOP - 1) // HOP


def tokens_of(frames: Count) -> Count:
    """Embeddings that so many frames become."""
    return ((frames - 1) // 2 + 1) // c.POOL_STEP


def features(sounds: Tensor) -> Tensor:
    """(clips, samples) float32, zero after each clip and for the last 400, to (clips, bins, frames)."""
    window = torch.hann_window(WINDOW, device=sounds.device)
    waves = torch.stft(sounds, WINDOW, HOP, window=window, return_complex=True)[..., :-1]
    power = _filters(sounds.device).T @ waves.abs() ** 2
    logs = power.clamp(min=1e-10).log10()
    loudest = logs.amax(dim=(1, 2), keepdim=True)
    return (torch.maximum(logs, loudest - 8.0) + 4.0) / 4.0
