"""The one function of torchaudio that upstream's audio path needs, where torchaudio cannot be had.

MiniCPM-o's data parser resamples with ``torchaudio.transforms.Resample``. PyPI has that package only as a
CUDA build that does not load beside a CPU-only torch, so on the CPU every clip that is not at 16 kHz would
be refused. The formula is torchaudio's (BSD-2-Clause), operation for operation, so that the samples are the
same bits (checked against it where it is installed, and against numbers recorded from it elsewhere).
"""

import math
from types import SimpleNamespace
from typing import Any

import torch

from policies.limits import sinc_width

ZERO_CROSSINGS = 6
ROLLOFF = 0.99


class Resample:
    """Band-limited sinc interpolation with a Hann window, from one whole rate to another."""

    def __init__(self, orig_freq: int, new_freq: int) -> None:
        divisor = math.gcd(orig_freq, new_freq)
        self.old, self.new = orig_freq // divisor, new_freq // divisor
        self.width = sinc_width(self.old, self.new)
        self.kernel = self._kernel()

    def _kernel(self) -> torch.Tensor:
        """One filter per output phase, (new, 1, taps)."""
        base = min(self.old, self.new) * ROLLOFF
        taps = torch.arange(-self.width, self.width + self.old, dtype=torch.float64)[None, None] / self.old
        # float32 on purpose: torchaudio divides integers here, which gives torch's default type.
        phases = torch.arange(0, -self.new, -1)[:, None, None] / self.new
        t = ((phases + taps) * base).clamp_(-ZERO_CROSSINGS, ZERO_CROSSINGS)
        window = torch.cos(t * math.pi / ZERO_CROSSINGS / 2) ** 2
        t *= math.pi
        kernel = torch.where(t == 0, torch.ones((), dtype=t.dtype), t.sin() / t)
        kernel *= window * (base / self.old)
        return kernel.to(torch.float32)

    def __call__(self, waveform: torch.Tensor) -> torch.Tensor:
        """Resample the last axis of a float32 waveform, one or more channels."""
        channels = waveform.reshape(-1, waveform.shape[-1])
        padded = torch.nn.functional.pad(channels, (self.width, self.width + self.old))
        out = torch.nn.functional.conv1d(padded[:, None], self.kernel, stride=self.old)
        out = out.transpose(1, 2).reshape(channels.shape[0], -1)
        # The length is rounded in float32, as torchaudio does: above 2**24 it can be off by one or two.
        length = int(torch.ceil(torch.as_tensor(self.new * waveform.shape[-1] / self.old)))
        return out[:, :length].reshape(*waveform.shape[:-1], -1)


def fill_torchaudio() -> bool:
    """Give upstream's audio module this resampler if, and only if, it found no torchaudio. True if it did."""
    from vllm.multimodal import audio
    from vllm.utils.import_utils import PlaceholderModule

    missing: Any = audio.torchaudio
    if not isinstance(missing, PlaceholderModule):
        return False
    audio.torchaudio = SimpleNamespace(transforms=SimpleNamespace(Resample=Resample))
    return True
