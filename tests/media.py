"""Real and drawn media for tests, as bytes, data URLs and content parts. Nothing here is random unseeded."""

import base64
from collections.abc import Mapping
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from PIL import Image, ImageDraw

DATA = Path(__file__).parent / "data"
PHOTOS = ("astronaut", "chelsea", "coffee", "rocket", "retina", "hubble_deep_field")
"""Photographs that lie inside scikit-image's wheel (its other ones are fetched, so they are not used)."""
SPEECH = ("speech_harbour.flac", "speech_numbers.ogg", "speech_zug.wav")
AUDIO_MIME = {"wav": "audio/wav", "flac": "audio/flac", "ogg": "audio/ogg", "mp3": "audio/mpeg"}


# ---- pictures ----


@cache
def photo(name: str) -> Image.Image:
    """A real photograph, one of PHOTOS."""
    import skimage

    folder = Path(skimage.__file__).parent / "data"
    path = next(folder.glob(f"{name}.*"))
    with Image.open(path) as image:
        return image.convert("RGB")


def photo_bytes(name: str, size: tuple[int, int] | None = None, image_format: str = "JPEG") -> bytes:
    """A real photograph as a file, scaled to ``size`` (width, height) where that is given."""
    image = photo(name)
    return image_bytes(image if size is None else image.resize(size), image_format)


def drawn(width: int, height: int, seed: int = 0) -> Image.Image:
    """A picture with gradients, shapes and noise, different for every seed."""
    rng = np.random.default_rng(seed)
    x, y = np.linspace(0, 1, width), np.linspace(0, 1, height)[:, None]
    phase = rng.uniform(0, 2 * np.pi, 3)
    waves = rng.uniform(1, 6, 3)
    planes = [
        np.sin(w * (x * np.cos(p) + y * np.sin(p)) * np.pi + p) for w, p in zip(waves, phase, strict=True)
    ]
    pixels = (np.stack(planes, axis=-1) + 1) * 110 + rng.uniform(0, 35, (height, width, 3))
    image = Image.fromarray(pixels.astype(np.uint8))
    draw = ImageDraw.Draw(image)
    for _ in range(4):
        x0, x1 = sorted(int(value) for value in rng.integers(0, width + 1, 2))
        y0, y1 = sorted(int(value) for value in rng.integers(0, height + 1, 2))
        colour = tuple(int(value) for value in rng.integers(0, 256, 3))
        (draw.ellipse if rng.random() < 0.5 else draw.rectangle)((x0, y0, x1, y1), fill=colour)
    return image


def image_bytes(image: Image.Image, image_format: str = "PNG", **options: Any) -> bytes:
    """A picture as a file of this format."""
    buffer = BytesIO()
    image.save(buffer, image_format, **options)
    return buffer.getvalue()


# ---- sounds ----


def speech_bytes(name: str = "speech_harbour.flac") -> bytes:
    """A short clip of synthetic speech, one of SPEECH, as it lies on disk."""
    return (DATA / name).read_bytes()


@cache
def _speech(name: str) -> tuple[np.ndarray, int]:
    samples, rate = soundfile.read(DATA / name, dtype="float32")
    return samples, rate


def speech(
    seconds: float, rate: int = 16_000, name: str = "speech_harbour.flac", seed: int = 0
) -> np.ndarray:
    """Speech of exactly this length: the clip over and over, each time with another pause and loudness."""
    clip, clip_rate = _speech(name)
    positions = np.arange(0, len(clip), clip_rate / rate)
    clip = np.interp(positions, np.arange(len(clip)), clip).astype(np.float32)
    rng = np.random.default_rng(seed)
    wanted, pieces, total = round(seconds * rate), [], 0
    while total < wanted:
        pause = np.zeros(int(rng.uniform(0.1, 0.5) * rate), dtype=np.float32)
        pieces += [clip * np.float32(rng.uniform(0.5, 1.0)), pause]
        total += len(clip) + len(pause)
    return np.concatenate(pieces)[:wanted]


def tone(seconds: float, rate: int = 16_000, channels: int = 1, seed: int = 0) -> np.ndarray:
    """A few sine waves, (samples,) or (samples, channels), different in every channel."""
    rng = np.random.default_rng(seed)
    time = np.arange(round(seconds * rate)) / rate
    waves = [
        sum(0.2 * np.sin(2 * np.pi * f * time) for f in rng.uniform(80, min(3000, rate / 2.5), 3))
        for _ in range(channels)
    ]
    return np.stack(waves, axis=-1).astype(np.float32).reshape(-1, *(() if channels == 1 else (channels,)))


def sound_bytes(
    samples: np.ndarray, rate: int = 16_000, sound_format: str = "WAV", subtype: str | None = None
) -> bytes:
    """Samples as a file of this format (WAV, FLAC, OGG, MP3, ...)."""
    buffer = BytesIO()
    channels = 1 if samples.ndim == 1 else samples.shape[1]
    with soundfile.SoundFile(buffer, "w", rate, channels, subtype, format=sound_format) as file:
        # In pieces: libsndfile's Vorbis encoder overflows its stack on a minute in one call.
        for start in range(0, len(samples), rate):
            file.write(samples[start : start + rate])
    return buffer.getvalue()


# ---- as a request carries them ----


def data_url(data: bytes, mime: str = "application/octet-stream") -> str:
    """A data: URL; the type is free, for nobody may trust it."""
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"


def image_part(data: bytes, mime: str = "image/png") -> Mapping[str, Any]:
    """An ``image_url`` content part that holds the picture itself."""
    return {"type": "image_url", "image_url": {"url": data_url(data, mime)}}


def input_audio_part(data: bytes, sound_format: str = "wav") -> Mapping[str, Any]:
    """An ``input_audio`` content part."""
    return {
        "type": "input_audio",
        "input_audio": {"data": base64.b64encode(data).decode(), "format": sound_format},
    }


def audio_url_part(data: bytes, sound_format: str = "wav") -> Mapping[str, Any]:
    """An ``audio_url`` content part that holds the clip itself."""
    return {"type": "audio_url", "audio_url": {"url": data_url(data, AUDIO_MIME[sound_format])}}
