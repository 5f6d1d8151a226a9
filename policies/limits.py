"""Limits on media from outside, and the checks that need only numbers read from a header.

A check returns None when all is well and a ``Refusal`` otherwise; the caller turns that into its own error.
"""

import math
from dataclasses import dataclass

MODEL_RATE_HZ = 16_000
"""Sample rate at which every supported audio encoder takes its input."""

IMAGE_FORMATS = ("BMP", "DIB", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP", "AVIF")
"""Pillow's names of the formats taken. Left out on purpose: formats that nest another picture whose size
the header does not say (ICO, ICNS, CUR), that have no signature, or that no client sends."""

AUDIO_FORMATS = ("wav", "w64", "aiff", "au", "caf", "flac", "ogg", "mp3", "aac", "mp4", "webm")
"""Containers taken, recognised by their first bytes. Left out on purpose: playlists and scripts (HLS,
concat), which make a demuxer open other files and addresses."""


@dataclass(frozen=True)
class MediaLimits:
    """What a piece of media may cost. Numbers say the largest value that is still taken."""

    max_parts: int = 32  # media parts in one request
    max_bytes: int = 32 * 2**20  # one piece of media, as it arrives

    max_redirects: int = 3
    max_concurrent_fetches: int = 32  # per Ingress replica; the next ones wait within their own time limit
    connect_timeout_s: float = 5.0
    first_byte_timeout_s: float = 10.0  # per hop, from the connection to the end of the response's headers
    fetch_timeout_s: float = 30.0  # all of it: names, redirects, body

    max_pixels: int = 64_000_000  # width times height of a picture
    max_side: int = 65_535  # the longer of the two
    max_frames: int = 1_000  # of an animation, where the header says; only the first is decoded
    image_formats: tuple[str, ...] = IMAGE_FORMATS

    max_audio_s: float = 600.0
    min_rate_hz: int = 4_000
    max_rate_hz: int = 192_000
    max_channels: int = 8
    max_decoded_bytes: int = 256 * 2**20  # float32 samples of all channels
    max_resample_kernel: int = 4_000_000  # elements; odd rates need a filter that grows with their square
    max_sample: float = 65_536.0  # magnitude of one sample; full scale is 1
    audio_formats: tuple[str, ...] = AUDIO_FORMATS

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not isinstance(value, tuple | list) and not value > 0:
                raise ValueError(f"{name} is {value}: a limit is above 0")
        # A config file has lists where this has tuples.
        for name, known in (("image_formats", IMAGE_FORMATS), ("audio_formats", AUDIO_FORMATS)):
            unknown = set(getattr(self, name)) - set(known)
            if unknown:
                raise ValueError(f"{name} has {sorted(unknown)}: known are {list(known)}")


@dataclass(frozen=True)
class Refusal:
    """Why a piece of media is not taken, for the client, and the HTTP status that says so."""

    message: str
    status: int = 400
    code: str = "media_limit"


def check_bytes(size: int, limits: MediaLimits) -> Refusal | None:
    """One piece of media as it arrived."""
    if size == 0:
        return Refusal("is empty", code="media_empty")
    if size > limits.max_bytes:
        return Refusal(f"is larger than {limits.max_bytes} bytes", 413)
    return None


def check_image(width: int, height: int, frames: int, limits: MediaLimits) -> Refusal | None:
    """A picture by its header, before anything is decoded."""
    if width <= 0 or height <= 0:
        return Refusal(f"is a picture of {width} x {height}", code="media_invalid")
    if max(width, height) > limits.max_side:
        return Refusal(f"is {width} x {height} pixels, the limit of a side is {limits.max_side}")
    if width * height > limits.max_pixels:
        return Refusal(f"is {width} x {height} pixels, the limit is {limits.max_pixels} in all")
    if frames > limits.max_frames:
        return Refusal(f"has {frames} frames, the limit is {limits.max_frames}")
    return None


def check_audio(rate_hz: int, channels: int, samples: int | None, limits: MediaLimits) -> Refusal | None:
    """A clip by its header, before anything is decoded; ``samples`` per channel, None where unknown."""
    if not limits.min_rate_hz <= rate_hz <= limits.max_rate_hz:
        return Refusal(
            f"has a sample rate of {rate_hz} Hz, taken are {limits.min_rate_hz} to {limits.max_rate_hz}"
        )
    if not 1 <= channels <= limits.max_channels:
        return Refusal(f"has {channels} channels, the limit is {limits.max_channels}")
    if resample_kernel(rate_hz) > limits.max_resample_kernel:
        return Refusal(
            f"has a sample rate of {rate_hz} Hz, which costs too much to resample to {MODEL_RATE_HZ}"
        )
    if samples is None:
        return None
    if samples > limits.max_audio_s * rate_hz:
        return Refusal(f"lasts {samples / rate_hz:.1f} s, the limit is {limits.max_audio_s:g}")
    if samples * channels * 4 > limits.max_decoded_bytes:
        return Refusal(f"decodes to more than {limits.max_decoded_bytes} bytes")
    return None


def resample_kernel(rate_hz: int) -> int:
    """Elements of the sinc filter bank from ``rate_hz`` to the model's rate; 0 when they are the same.

    The filters' number and length are the two rates without their common divisor, so a rate that shares
    none (15,999 Hz) asks for a gigabyte where a usual one (44,100 Hz) asks for 300 kB.
    """
    if rate_hz == MODEL_RATE_HZ:
        return 0
    divisor = math.gcd(rate_hz, MODEL_RATE_HZ)
    old, new = rate_hz // divisor, MODEL_RATE_HZ // divisor
    return new * (2 * sinc_width(old, new) + old)


def sinc_width(old: int, new: int) -> int:
    """Samples on either side that one output sample is made of; rates without their common divisor."""
    zero_crossings, rolloff = 6, 0.99
    return math.ceil(zero_crossings * old / (min(old, new) * rolloff))
