"""What a header alone says of a piece of media: a picture's size, a clip's length. Nothing is decoded.

Runs in the Ingress on bytes of strangers, so it loads neither torch nor vLLM, looks at a bounded number of
bytes (Pillow's readers take two seconds for a megabyte of tiny hostile chunks), and answers None wherever
that does not settle it; the decoder decides then.
"""

import importlib.util
import math
import warnings
from dataclasses import dataclass
from functools import cache
from io import BytesIO

import numpy as np
from PIL import Image

from policies.limits import IMAGE_FORMATS, MODEL_RATE_HZ

# Sizes are checked against our own limits, which are below the one that Pillow warns of.
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)

ORIENTATION = 0x0112
SWAPS_SIDES = frozenset({5, 6, 7, 8})
HEADER_BYTES = 2**17
DECODER_HEADER_BYTES = 2**21
MAX_PNG_CHUNKS = 20_000
TIFF_MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
PNG_METADATA = (b"eXIf", b"tEXt", b"zTXt", b"iTXt")
EXACT_SUBTYPES = frozenset(
    {"PCM_S8", "PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW"}
)


@dataclass(frozen=True)
class ImageHeader:
    """A picture before decoding; ``size`` is None where the orientation is not known yet."""

    format: str
    stored_size: tuple[int, int]
    size: tuple[int, int] | None
    frames: int


@dataclass(frozen=True)
class AudioHeader:
    """A clip before decoding; ``samples`` per channel, None where the header does not say exactly."""

    rate_hz: int
    channels: int
    samples: int | None


def image_size(data: bytes) -> tuple[int, int] | None:
    """Width and height after EXIF orientation, or None."""
    header = image_header(data)
    return None if header is None else header.size


def image_header(
    data: bytes, formats: tuple[str, ...] = IMAGE_FORMATS, within_bytes: int = HEADER_BYTES
) -> ImageHeader | None:
    """The header of a picture, or None where the first bytes are that of none of the formats."""
    # These need the whole file to be opened, and do little of that in Python.
    whole = data[8:12] == b"WEBP" or data[4:8] == b"ftyp" or data[:4] in TIFF_MAGIC
    try:
        with Image.open(BytesIO(data if whole else data[:within_bytes]), formats=formats) as image:
            return ImageHeader(image.format or "", image.size, _oriented(image, data), _frames(image))
    except Exception:  # Pillow's readers raise anything on hostile bytes, and to all of it the answer is None
        return None


def _frames(image: Image.Image) -> int:
    # Elsewhere (GIF, TIFF) counting means reading the whole file, and only the first frame is decoded anyway.
    return int(getattr(image, "n_frames", 1)) if image.format in ("PNG", "WEBP", "AVIF") else 1


def _oriented(image: Image.Image, data: bytes) -> tuple[int, int] | None:
    """The size that ``ImageOps.exif_transpose`` would give."""
    if image.format == "TIFF":
        return image.size  # Pillow's reader has turned it already
    if image.format == "PNG":
        if _png_metadata_after_pixels(data):
            return None
        # The base class's, for PNG's own decodes the picture in search of metadata behind it.
        orientation = Image.Image.getexif(image).get(ORIENTATION)
    else:
        orientation = image.getexif().get(ORIENTATION)
    width, height = image.size
    return (height, width) if orientation in SWAPS_SIDES else (width, height)


def _png_metadata_after_pixels(data: bytes) -> bool:
    """Whether a chunk that may hold an orientation comes after the first pixels, or might."""
    position, seen_pixels = 8, False
    for _ in range(MAX_PNG_CHUNKS):
        if position + 8 > len(data):
            return False
        length = int.from_bytes(data[position : position + 4], "big")
        kind = data[position + 4 : position + 8]
        if kind == b"IDAT":
            seen_pixels = True
        elif seen_pixels and kind in PNG_METADATA:
            return True
        elif kind == b"IEND":
            return False
        position += 12 + length
    return True


LONGEST_16K = 24 * 3600 * 16_000
"""A day: a header of a few bytes can promise a thousand years, of which nobody should list the chunks."""


def audio_samples_16k(data: bytes) -> int | None:
    """Samples of a clip after upstream's resampling to 16 kHz mono; None where the header lies too."""
    header = audio_header(data)
    if header is None or header.samples is None or header.rate_hz <= 0:
        return None
    samples = resampled_length(header.samples, header.rate_hz)
    return samples if samples <= LONGEST_16K else None


def resampled_length(samples: int, rate_hz: int) -> int:
    """Length of what torchaudio's resampler makes of this many samples, its float32 rounding included."""
    if rate_hz == MODEL_RATE_HZ:
        return samples
    divisor = math.gcd(rate_hz, MODEL_RATE_HZ)
    old, new = rate_hz // divisor, MODEL_RATE_HZ // divisor
    wanted = int(np.ceil(np.float32(new * samples / old)))
    return min(wanted, (samples // old + 1) * new)


def audio_header(data: bytes) -> AudioHeader | None:
    """The header of a clip, or None where it is of another kind or broken."""
    container = audio_container(data)
    if container == "flac":
        return _flac_header(data)
    # Of the rest libsndfile cannot tell a length (mp3: it would guess) or cannot read them at all.
    return _sndfile_header(data) if container in ("wav", "w64", "aiff", "au", "caf", "ogg") else None


def _flac_header(data: bytes) -> AudioHeader | None:
    """STREAMINFO, which always comes first: 20 bits of rate, 3 of channels, 5 of depth, 36 of length."""
    if len(data) < 26 or data[4] & 0x7F != 0:
        return None
    packed = int.from_bytes(data[18:26], "big")
    samples = packed & (2**36 - 1)
    return AudioHeader(packed >> 44, (packed >> 41 & 7) + 1, samples or None)


def _sndfile_header(data: bytes) -> AudioHeader | None:
    import soundfile

    try:
        with soundfile.SoundFile(BytesIO(data)) as file:
            exact = file.subtype in EXACT_SUBTYPES or _ogg_is_exact(file.format)
            # A stream of unknown length has the largest number there is.
            known = exact and 0 <= file.frames < 2**48
            return AudioHeader(file.samplerate, file.channels, file.frames if known else None)
    except (soundfile.SoundFileError, OSError, ValueError, RuntimeError, TypeError):
        return None


def _ogg_is_exact(container: str) -> bool:
    return container == "OGG" and not _has_torchcodec()


@cache
def _has_torchcodec() -> bool:
    """Upstream decodes with torchcodec where it has it, whose Ogg lengths may differ from libsndfile's."""
    return importlib.util.find_spec("torchcodec") is not None


def audio_container(data: bytes) -> str | None:
    """The container by its first bytes, one of policies.limits.AUDIO_FORMATS, or None."""
    head = data[:16]
    if head[:4] in (b"RIFF", b"RIFX", b"RF64", b"BW64"):
        return "wav" if head[8:12] == b"WAVE" else None
    if head[:4] == b"FORM":
        return "aiff" if head[8:12] in (b"AIFF", b"AIFC") else None
    if head[4:8] == b"ftyp":
        return "mp4"
    for magic, name in _MAGIC:
        if head.startswith(magic):
            return name
    if len(head) > 2 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0:
        return "aac" if head[1] & 0xF6 == 0xF0 else "mp3"
    return None


_MAGIC = (
    (b"riff\x2e\x91\xcf\x11", "w64"),
    (b".snd", "au"),
    (b"caff", "caf"),
    (b"fLaC", "flac"),
    (b"OggS", "ogg"),
    (b"ID3", "mp3"),
    (b"\x1a\x45\xdf\xa3", "webm"),
)
