"""Bytes to a picture or to samples, as upstream decodes them; runs in a CPU worker process.

Upstream's own functions do the decoding, so that the answer is upstream's. Before them the header is held
against the limits, and after them the result against the header, so that no file costs more than it says.
"""

import logging
from collections.abc import Callable
from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image

from deployments.errors import TransientError
from deployments.families import media_headers
from deployments.media_errors import bad_part, raise_refusal
from policies.limits import MODEL_RATE_HZ, MediaLimits, check_audio, check_bytes, check_image


def decoder(modality: str, limits: MediaLimits) -> Callable[[bytes], Any]:
    """The decoder of one modality: "image" gives RGB pictures, "audio" mono float32 samples at 16 kHz."""
    if modality == "image":
        return lambda data: decode_image(data, limits)
    if modality == "audio":
        from deployments.upstream.sinc_resample import fill_torchaudio

        fill_torchaudio()
        # It warns for every clip that torchcodec is missing, where it is missing on purpose.
        logging.getLogger("vllm.multimodal.media.audio").setLevel(logging.ERROR)
        return lambda data: decode_audio(data, limits)
    raise ValueError(f"no decoder for {modality}; there are image and audio")


def decode_image(data: bytes, limits: MediaLimits) -> Image.Image:
    """One picture, oriented, in RGB; the first frame of an animation. Raises ClientError."""
    from vllm.multimodal.media import ImageMediaIO

    raise_refusal(check_bytes(len(data), limits))
    header = media_headers.image_header(data, limits.image_formats, media_headers.DECODER_HEADER_BYTES)
    if header is None:
        raise bad_part(f"is no picture that can be read; taken are {', '.join(limits.image_formats)}")
    raise_refusal(check_image(*header.stored_size, header.frames, limits))
    image: Image.Image = _decoded(
        lambda: ImageMediaIO(image_mode="RGB").load_bytes(data).media, f"{header.format} picture"
    )
    if sorted(image.size) != sorted(header.stored_size) or header.size not in (None, image.size):
        raise bad_part("is a picture of another size than its header says")
    return image


def decode_audio(data: bytes, limits: MediaLimits) -> np.ndarray:
    """One clip as mono float32 samples at 16 kHz. Raises ClientError."""
    from vllm.multimodal.audio import AudioResampler
    from vllm.multimodal.media.audio import load_audio

    raise_refusal(check_bytes(len(data), limits))
    container = media_headers.audio_container(data)
    if container not in limits.audio_formats:
        raise bad_part(f"is no sound that can be read; taken are {', '.join(limits.audio_formats)}")
    header = media_headers.audio_header(data) or _decoded(lambda: _demuxed_header(data), container)
    raise_refusal(check_audio(header.rate_hz, header.channels, header.samples, limits))
    native, rate = _decoded(
        lambda: load_audio(
            BytesIO(data),
            sr=None,
            max_duration_s=limits.max_audio_s,
            max_decode_bytes=limits.max_decoded_bytes,
        ),
        f"{container} clip",
    )
    _check_samples(native, limits)
    if header.samples not in (None, len(native)):
        raise bad_part(f"ends after {len(native)} samples where its header says {header.samples}")
    # Again, for what the decoder found can differ from what the header said.
    raise_refusal(check_audio(round(rate), 1, len(native), limits))
    samples = AudioResampler(target_sr=MODEL_RATE_HZ).resample(native, orig_sr=rate)
    return np.ascontiguousarray(samples, dtype=np.float32)


def _demuxed_header(data: bytes) -> media_headers.AudioHeader:
    """The header of what only a decoder can read (mp3, mp4, webm, aac)."""
    import av

    with av.open(BytesIO(data)) as container:
        stream = container.streams.audio[0]
        return media_headers.AudioHeader(stream.rate, stream.codec_context.channels, None)


def _check_samples(samples: np.ndarray, limits: MediaLimits) -> None:
    """Refuse what a model would spread to everything it computes."""
    if samples.ndim != 1 or samples.size == 0:
        raise bad_part("has no sound in it", code="media_empty")
    peak = float(np.max(np.abs(samples)))
    if not np.isfinite(peak):
        raise bad_part("has samples that are not numbers")
    if peak > limits.max_sample:
        raise bad_part(f"has a sample of magnitude {peak:.3g}, the limit is {limits.max_sample:g}")


def _decoded(decode: Callable[[], Any], what: str) -> Any:
    """Run a decoder on hostile bytes: whatever it raises, the file is at fault."""
    try:
        return decode()
    except MemoryError as error:
        raise TransientError(f"no memory to decode a {what}") from error
    except Exception as error:  # Pillow, libsndfile and FFmpeg have no common error, and struct, zlib join in
        raise bad_part(
            f"cannot be decoded: it is damaged, cut short or no {what} at all",
            detail=f"{type(error).__name__}: {error}",
        ) from error
