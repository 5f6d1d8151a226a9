"""Clips as a client would send them: a word amid silence and noise, or a sound without a word."""

import numpy as np

RATE = 16_000


def clip(samples: np.ndarray, rng: np.random.Generator, *, bent: bool = False) -> np.ndarray:
    """A spoken word (n,) int16 with silence before and after, noise over all, at some loudness.

    ``bent`` plays it a little faster or slower and colours it, for training. Noise is 12 dB below the speech
    at the loudest.
    """
    voice = samples.astype(np.float32) / 32768
    if bent:
        voice = np.interp(
            np.arange(0, len(voice) - 1, rng.uniform(0.88, 1.14)), np.arange(len(voice)), voice
        ).astype(np.float32)
        if rng.random() < 0.3:
            # A one-pole filter in two taps: darker or brighter.
            voice[1:] += np.float32(rng.uniform(-0.6, 0.6)) * voice[:-1]
    before, after = (np.zeros(int(rng.uniform(0.02, 0.45) * RATE), dtype=np.float32) for _ in range(2))
    sound = np.concatenate([before, voice, after])
    power = float(np.sqrt(np.mean(voice**2)))
    if rng.random() < 0.75:
        level = 10 ** (-rng.uniform(12, 40) / 20)
        sound = sound + noise(len(sound), rng) * np.float32(power * level)
    gain = rng.uniform(0.15, 1.0) / max(1e-6, float(np.abs(sound).max()))
    return (sound * np.float32(gain)).astype(np.float32)


def noise(length: int, rng: np.random.Generator) -> np.ndarray:
    """White to brownish noise of spread 1."""
    white = rng.standard_normal(length, dtype=np.float32)
    mix = rng.uniform(0, 0.95)
    smooth = np.convolve(white, np.exp(-np.arange(24) * (1.05 - mix)).astype(np.float32))[:length]
    return (smooth / smooth.std()).astype(np.float32)


def wordless(rng: np.random.Generator, seconds: float | None = None) -> np.ndarray:
    """Silence, noise, tones, sweeps or beeps, of 0.2 to 3 seconds where none are given."""
    if seconds is None:
        seconds = float(rng.choice([rng.uniform(0.2, 1.2), rng.uniform(0.2, 3.0)]))
    time = np.arange(int(seconds * RATE), dtype=np.float32) / RATE
    kind = int(rng.integers(5))
    if kind == 0:
        return np.zeros_like(time) + rng.normal(0, 1e-4, len(time)).astype(np.float32) * (rng.random() < 0.5)
    if kind == 1:
        return noise(len(time), rng) * np.float32(rng.uniform(0.01, 0.25))
    low, high = np.exp(rng.uniform(np.log(80), np.log(4000), 2))
    if kind == 2:
        high = low
    phase = 2 * np.pi * (low * time + (high - low) * time**2 / (2 * seconds))
    sound = np.sin(phase)
    if kind == 4:
        sound = sum(np.sin(phase * n) / n for n in (1, 2, 3)) * (
            np.sin(2 * np.pi * rng.uniform(1, 6) * time) > 0
        )
    sound = sound * rng.uniform(0.05, 0.5) + noise(len(time), rng) * 10 ** rng.uniform(-4, -1.5)
    return np.asarray(sound, dtype=np.float32)
