"""Needs vLLM's CPU or GPU package, no GPU: odd pictures and clips give upstream's value or a 400."""

import contextlib
import io
import struct
import time
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import soundfile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from deployments.encoders import media_decode
from deployments.errors import ClientError
from deployments.families import media_headers
from policies.limits import MediaLimits, resample_kernel
from tests import media

LIMITS = MediaLimits()
SEED = 3


@pytest.fixture(scope="module")
def picture() -> Callable[..., Image.Image]:
    decode = media_decode.decoder("image", LIMITS)
    return lambda image, kind="PNG", **options: decode(
        image if isinstance(image, bytes) else media.image_bytes(image, kind, **options)
    )


@pytest.fixture(scope="module")
def sound() -> Callable[[bytes], np.ndarray]:
    return media_decode.decoder("audio", LIMITS)


def refused(decode: Callable[[bytes], Any], data: bytes, status: int = 400) -> ClientError:
    with pytest.raises(ClientError) as caught:
        decode(data)
    assert caught.value.status == status
    assert caught.value.message.startswith("this part ")
    assert "0x" not in caught.value.message
    return caught.value


def upstream_picture(data: bytes) -> np.ndarray:
    from vllm.multimodal.media import ImageMediaIO

    return np.asarray(ImageMediaIO(image_mode="RGB").load_bytes(data).media)


# ---- pictures ----


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_exif_orientation(picture: Any, kind: str, orientation: int) -> None:
    """A picture is turned as its EXIF orientation says, and the header's size is that of the turned one."""
    marked = Image.new("RGB", (40, 24), "black")
    marked.paste("white", (0, 0, 8, 8))  # top left of the stored picture
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = media.image_bytes(marked, kind, exif=exif)
    image = picture(data)
    corners = {(0, 0): {1, 5}, (-1, 0): {2, 6}, (-1, -1): {3, 7}, (0, -1): {4, 8}}
    pixels = np.asarray(image).mean(axis=-1)
    bright = [spot for spot in corners if pixels[spot[1], spot[0]] > 128]
    assert len(bright) == 1
    assert orientation in corners[bright[0]]
    assert image.size == ((40, 24) if orientation < 5 else (24, 40))
    assert media_headers.image_size(data) == image.size


def test_modes(picture: Any) -> None:
    """Palette, grey, two-tone, CMYK and alpha become the RGB that they mean; alpha lies on white."""
    photo = media.photo("coffee").resize((60, 40))
    assert np.array_equal(picture(photo.convert("P")), photo.convert("P").convert("RGB"))
    assert np.array_equal(picture(photo.convert("L")), np.asarray(photo.convert("L"))[..., None].repeat(3, 2))
    assert set(np.unique(picture(photo.convert("1")))) <= {0, 255}
    cmyk = media.image_bytes(photo.convert("CMYK"), "TIFF")
    assert np.array_equal(picture(cmyk), photo.convert("CMYK").convert("RGB"))
    clear = photo.convert("RGBA")
    clear.putalpha(0)
    assert np.all(np.asarray(picture(clear)) == 255)
    assert np.all(np.asarray(picture(Image.new("LA", (4, 4), (0, 0)))) == 255)
    keyed = Image.new("P", (4, 4), 1)
    keyed.putpalette([0, 0, 0, 9, 9, 9])
    assert np.all(np.asarray(picture(keyed, transparency=1)) == 255)


def _odd_pictures() -> dict[str, bytes]:
    photo = media.photo("chelsea").resize((90, 60))
    sixteen = Image.fromarray((np.arange(600, dtype=np.uint16) * 100).reshape(20, 30))
    frames = [media.drawn(30, 20, seed) for seed in range(3)]
    return {
        "16-bit grey": media.image_bytes(sixteen),
        "16-bit TIFF": media.image_bytes(sixteen, "TIFF"),
        "progressive": media.image_bytes(photo, "JPEG", progressive=True),
        "cmyk jpeg": media.image_bytes(photo.convert("CMYK"), "JPEG"),
        "palette with alpha": media.image_bytes(photo.convert("RGBA").quantize(20)),
        "grey jpeg": media.image_bytes(photo.convert("L"), "JPEG"),
        "interlaced": _interlaced_png(),
        "gif": media.image_bytes(frames[0], "GIF", save_all=True, append_images=frames[1:]),
        "apng": media.image_bytes(frames[0], "PNG", save_all=True, append_images=frames[1:]),
        "animated webp": media.image_bytes(frames[0], "WEBP", save_all=True, append_images=frames[1:]),
        "multi-page": media.image_bytes(frames[0], "TIFF", save_all=True, append_images=frames[1:]),
        "bmp": media.image_bytes(photo, "BMP"),
        "ppm": media.image_bytes(photo, "PPM"),
        "1 x 1": media.image_bytes(Image.new("RGB", (1, 1), "red")),
        "wide": media.image_bytes(media.drawn(3000, 1)),
        "tall": media.image_bytes(media.drawn(2, 2000)),
        "lossy webp": media.image_bytes(photo, "WEBP", quality=40),
    }


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def _png(width: int, height: int, pixels: bytes, *after: bytes, interlace: int = 0) -> bytes:
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, interlace)
    chunks = [_chunk(b"IHDR", head), _chunk(b"IDAT", zlib.compress(pixels)), *after, _chunk(b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _interlaced_png() -> bytes:
    """A 2 x 2 Adam7 PNG: passes 1, 6 and 7 hold its pixels."""
    return _png(2, 2, b"\0\xff\0\0" + b"\0\0\xff\0" + b"\0\0\0\xff\x10\x20\x30", interlace=1)


@pytest.mark.parametrize("kind", list(_odd_pictures()))
def test_odd_pictures_equal_upstream(picture: Any, kind: str) -> None:
    """Every odd kind of picture gives exactly upstream's pixels, and its header's size is the real one."""
    data = _odd_pictures()[kind]
    image = picture(data)
    assert (image.mode, np.array_equal(image, upstream_picture(data))) == ("RGB", True)
    assert media_headers.image_size(data) == image.size


def test_interlaced_and_first_frames(picture: Any) -> None:
    """An interlaced picture has its pixels in place, and an animation gives its first frame."""
    red, green, blue, grey = (255, 0, 0), (0, 255, 0), (0, 0, 255), (16, 32, 48)
    assert np.asarray(picture(_interlaced_png())).tolist() == [
        [list(red), list(green)],
        [list(blue), list(grey)],
    ]
    for kind in ("apng", "multi-page"):
        assert np.array_equal(picture(_odd_pictures()[kind]), media.drawn(30, 20, 0))


def test_orientation_behind_the_pixels(picture: Any) -> None:
    """Where a PNG keeps its EXIF behind the pixels the header's size is not known, and the picture turned."""
    exif = Image.Exif()
    exif[0x0112] = 6
    data = _png(3, 2, (b"\0" + b"\1\2\3" * 3) * 2, _chunk(b"eXIf", exif.tobytes()[6:]))
    assert (media_headers.image_size(data), picture(data).size) == (None, (2, 3))


def test_pictures_that_are_refused(picture: Any) -> None:
    """Empty, unknown, cut and lying pictures are a 400."""
    jpeg, png = media.photo_bytes("coffee"), media.photo_bytes("coffee", (80, 60), "PNG")
    svg, eps = (
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n",
    )
    icon = media.image_bytes(media.drawn(32, 32), "ICO")
    for data in (b"", b"x", b"\0" * 1000, svg, eps, icon, jpeg[:300], jpeg[:20_000], png[:2000], png[:40]):
        refused(picture, data)
    refused(picture, _png(4, 4, b"\0" * 10))
    refused(picture, b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", struct.pack(">IIBBBBB", 0, 5, 8, 2, 0, 0, 0)))


def test_pixel_bombs_are_refused_by_their_header(monkeypatch: pytest.MonkeyPatch) -> None:
    """A picture over the pixel, side or frame limit is refused before upstream's decoder sees a byte."""
    from vllm.multimodal.media import ImageMediaIO

    monkeypatch.setattr(ImageMediaIO, "load_bytes", lambda self, data: pytest.fail("decoded"))
    small = MediaLimits(max_pixels=10_000, max_side=500, max_frames=2, max_bytes=100_000)
    frames = [media.drawn(9, 9, seed) for seed in range(3)]
    for data in (
        _png(60_000, 60_000, b""),
        media.image_bytes(Image.new("1", (101, 100))),
        media.image_bytes(Image.new("1", (501, 1))),
        media.image_bytes(frames[0], "PNG", save_all=True, append_images=frames[1:]),
    ):
        refused(media_decode.decoder("image", small), data)
    refused(media_decode.decoder("image", small), b"x" * 100_001, 413)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    width=st.integers(1, 90),
    height=st.integers(1, 90),
    kind=st.sampled_from(["PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM"]),
    orientation=st.none() | st.integers(0, 9),
)
def test_header_size_is_the_real_size(
    picture: Any, width: int, height: int, kind: str, orientation: int | None
) -> None:
    """What a picture's header says of its size is the size that decoding gives."""
    options: dict[str, Any] = {}
    if orientation is not None and kind in ("PNG", "JPEG", "WEBP", "TIFF"):
        options["exif"] = Image.Exif()
        options["exif"][0x0112] = orientation
    data = media.image_bytes(media.drawn(width, height), kind, **options)
    assert media_headers.image_size(data) == picture(data).size


# ---- sounds ----

RATES = (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000, 96_000, 192_000)


def upstream_sound(data: bytes) -> np.ndarray:
    from vllm.multimodal.media import AudioMediaIO
    from vllm.multimodal.parse import MultiModalDataParser

    parser = MultiModalDataParser(target_sr=16_000)
    return parser.parse_mm_data({"audio": [AudioMediaIO().load_bytes(data)]})["audio"].get(0)


@pytest.mark.parametrize(
    "subtype", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "ULAW", "ALAW"]
)
def test_wav_encodings(sound: Any, subtype: str) -> None:
    """Every encoding of a wav gives the samples that were written, within its own step."""
    wave = media.speech(0.5)
    samples = sound(media.sound_bytes(wave, subtype=subtype))
    steps = {"PCM_U8": 1 / 128, "ULAW": 0.02, "ALAW": 0.02, "FLOAT": 0, "DOUBLE": 0}
    assert samples.dtype == np.float32
    assert np.abs(samples - wave).max() <= steps.get(subtype, 1e-4)


@pytest.mark.parametrize("rate", RATES)
def test_rates(sound: Any, rate: int) -> None:
    """A clip at any usual rate gives upstream's samples bit for bit, at the length its header foretold."""
    for seconds in (0.001, 0.3):
        data = media.sound_bytes(media.tone(seconds, rate), rate)
        samples = sound(data)
        assert np.array_equal(samples, upstream_sound(data))
        assert media_headers.audio_samples_16k(data) == len(samples)
    assert np.std(samples) > 0.05


@pytest.mark.parametrize("channels", range(1, 9))
def test_channels_are_averaged(sound: Any, channels: int) -> None:
    """One to eight channels become their mean."""
    wave = media.tone(0.2, channels=channels)
    expected = wave if channels == 1 else wave.mean(axis=1)
    assert np.allclose(sound(media.sound_bytes(wave, subtype="FLOAT")), expected, atol=1e-6)


@pytest.mark.parametrize("kind", ["FLAC", "OGG", "MP3", "AIFF", "AU", "CAF", "W64", "RF64"])
def test_formats(sound: Any, kind: str) -> None:
    """Every container gives upstream's samples, and a length in its header, if any, is the real one."""
    wave = media.speech(1.3, 22_050, seed=SEED)
    data = media.sound_bytes(wave, 22_050, kind)
    samples = sound(data)
    assert np.array_equal(samples, upstream_sound(data))
    assert media_headers.audio_samples_16k(data) in (None, len(samples))
    assert abs(len(samples) - 1.3 * 16_000) < 2_500
    if kind != "MP3":
        assert media_headers.audio_samples_16k(data) is not None


def test_real_speech_and_tags(sound: Any) -> None:
    """Recorded speech in flac, ogg and wav decodes, and so does an mp3 with a tag in front."""
    for name in media.SPEECH:
        data = media.speech_bytes(name)
        samples = sound(data)
        assert 1.5 * 16_000 < len(samples) < 3 * 16_000
        assert media_headers.audio_samples_16k(data) == len(samples)
    mp3 = media.sound_bytes(media.speech(1.0), sound_format="MP3")
    tag = b"ID3\x04\x00\x00" + bytes([0, 0, 2, 0]) + b"\0" * 256
    assert np.array_equal(sound(tag + mp3), upstream_sound(tag + mp3))


def test_m4a(sound: Any) -> None:
    """AAC in mp4, which libsndfile cannot read, decodes by upstream's second way."""
    av = pytest.importorskip("av")
    buffer = io.BytesIO()
    wave = media.tone(0.5)
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("aac", rate=16_000, layout="mono")
        frame = av.AudioFrame.from_ndarray(wave.reshape(1, -1), format="fltp", layout="mono")
        frame.sample_rate = 16_000
        for packet in (*stream.encode(frame), *stream.encode(None)):
            container.mux(packet)
    data = buffer.getvalue()
    assert np.array_equal(sound(data), upstream_sound(data))
    assert media_headers.audio_samples_16k(data) is None


def test_silence_and_very_short_clips(sound: Any) -> None:
    """Silence is sound, and a clip of one sample is one sample."""
    assert not np.any(sound(media.sound_bytes(np.zeros(500, np.float32))))
    assert len(sound(media.sound_bytes(np.full(1, 0.5, np.float32)))) == 1


def test_sounds_that_are_refused(sound: Any) -> None:
    """Empty, unknown, cut and lying clips are a 400, and so is what would make a demuxer open other files."""
    flac, ogg = media.speech_bytes(), media.speech_bytes("speech_numbers.ogg")
    playlist, script = (
        b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd\n",
        b"ffconcat version 1.0\nfile /etc/passwd\n",
    )
    no_sound = media.sound_bytes(np.zeros(0, np.float32))
    cut = (flac[:40], flac[: len(flac) // 2], ogg[:50], media.sound_bytes(media.tone(0.1))[:30])
    fakes = (b"RIFF\xff\xff\xff\xffWAVE", b"fLaC" + b"\0" * 99, b"\0\0\0\x20ftypM4A " + b"\0" * 99, b"ID3")
    for data in (
        b"",
        b"x",
        b"\0" * 5000,
        playlist,
        script,
        no_sound,
        *cut,
        *fakes,
        media.photo_bytes("coffee"),
    ):
        refused(sound, data)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e38, -1e30])
def test_samples_that_are_no_sound(sound: Any, value: float) -> None:
    """One sample that is not a number, infinite or huge refuses the clip."""
    for rate in (16_000, 44_100):
        wave = media.tone(0.1, rate)
        wave[77] = value
        refused(sound, media.sound_bytes(wave, rate, subtype="FLOAT"))


def test_sound_limits() -> None:
    """Seconds, rate, channels, decoded bytes and the cost of an odd rate are limited, by the header alone."""
    limits = MediaLimits(max_audio_s=1.0, max_channels=2, max_decoded_bytes=300_000, max_bytes=10_000_000)
    sound = media_decode.decoder("audio", limits)
    for wave, rate in (
        (media.tone(1.1), 16_000),
        (media.tone(0.1, channels=3), 16_000),
        (media.tone(0.9, 96_000), 96_000),
        (media.tone(0.1, 3_999), 3_999),
        (media.tone(0.1, 200_000), 200_000),
        (media.tone(0.1, 15_999), 15_999),
    ):
        assert refused(sound, media.sound_bytes(wave, rate)).code == "media_limit"
    assert resample_kernel(15_999) > 2e8
    assert all(resample_kernel(rate) < 300_000 for rate in RATES)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    samples=st.integers(1, 5_000),
    rate=st.sampled_from(RATES),
    channels=st.integers(1, 3),
    kind=st.sampled_from(["WAV", "FLAC", "OGG", "AIFF"]),
)
def test_header_length_is_the_real_length(
    sound: Any, samples: int, rate: int, channels: int, kind: str
) -> None:
    """What a clip's header says of its length is the length that decoding gives."""
    data = media.sound_bytes(media.tone(samples / rate, rate, channels), rate, kind)
    assert media_headers.audio_samples_16k(data) in (None, len(sound(data)))


# ---- anything ----


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    source=st.sampled_from(["png", "jpeg", "webp", "gif", "flac", "ogg", "mp3", "wav"]),
    edits=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=6),
    keep=st.floats(0.05, 1),
)
def test_damage_is_a_value_or_a_400(picture: Any, sound: Any, source: str, edits: Any, keep: float) -> None:
    """Files with changed bytes or a cut end give a picture, a sound or a ClientError, and nothing else."""
    data = bytearray(_sources()[source])
    for position, value in edits:
        data[int(position * len(data))] = value
    for decode in (picture, sound):
        with contextlib.suppress(ClientError):
            decode(bytes(data[: int(len(data) * keep)]))


def _sources() -> dict[str, bytes]:
    photo, wave = media.photo("coffee").resize((60, 40)), media.speech(0.3)
    pictures = {kind: media.image_bytes(photo, kind) for kind in ("png", "jpeg", "webp", "gif")}
    return pictures | {
        kind: media.sound_bytes(wave, 16_000, kind.upper()) for kind in ("flac", "ogg", "mp3", "wav")
    }


def test_hostile_headers_cost_little() -> None:
    """A megabyte of tiny chunks around the pixels is not read to its end: the size is unknown."""
    tiny, photo = _chunk(b"juNk", b""), media.photo_bytes("coffee", (40, 30))
    head, pixels = _png(4, 4, b"\0" * 52)[:33], _png(4, 4, b"\0" * 52)[33:]
    begun = time.perf_counter()
    assert media_headers.image_size(head + tiny * 90_000 + pixels) is None
    assert media_headers.image_size(_png(4, 4, b"\0" * 52, tiny * 90_000)) is None
    assert media_headers.image_size(photo[:2] + b"\xff\xe5\0\2" * 250_000 + photo[2:]) is None
    assert media_headers.image_size(b"P6\n#" + b"a" * 1_000_000 + b"\n4 4 255\n" + b"\0" * 48) is None
    assert time.perf_counter() - begun < 5


def test_importing_headers_loads_no_torch() -> None:
    """The Ingress reads headers without torch or vLLM in its process."""
    import subprocess
    import sys

    program = (
        "import sys; from deployments.families import media_headers\n"
        "media_headers.audio_samples_16k(b'fLaC'); print('torch' in sys.modules, 'vllm' in sys.modules)"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "False"]


def test_decoder_names_what_it_knows() -> None:
    """A modality without a decoder is an error that says which there are."""
    with pytest.raises(ValueError, match="image and audio"):
        media_decode.decoder("video", LIMITS)
    assert soundfile.available_formats()["MP3"]
