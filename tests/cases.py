"""Requests by which parity is judged, on the CPU and on a GPU alike."""

from typing import Any

from tests import media
from tests.asking import text, user

ONE_SLICE = (120, 90)
MANY_SLICES = (420, 300)


def picture(size: tuple[int, int] = ONE_SLICE, seed: int = 0) -> dict[str, Any]:
    return dict(media.image_part(media.image_bytes(media.drawn(*size, seed=seed))))


def photo(name: str, size: tuple[int, int] | None = None) -> dict[str, Any]:
    return dict(media.image_part(media.photo_bytes(name, size), "image/jpeg"))


def clip(seconds: float, seed: int = 0) -> dict[str, Any]:
    return dict(media.input_audio_part(media.sound_bytes(media.speech(seconds, seed=seed))))


def turns(*contents: Any) -> list[dict[str, Any]]:
    """User, assistant, user, ... messages."""
    return [{"role": ("user", "assistant")[i % 2], "content": content} for i, content in enumerate(contents)]


CASES: dict[str, list[dict[str, Any]]] = {
    "text": user(text("Tell me about the red circle.")),
    "plain_string": turns("Hello"),
    "image_one_slice": user(text("What is this?"), picture()),
    "image_many_slices": user(picture(MANY_SLICES, 1), text("What is this?")),
    "photograph": user(text("Describe"), photo("coffee")),
    "two_images_of_different_size": user(
        text("First"), picture(ONE_SLICE, 2), text("second"), picture(MANY_SLICES, 3)
    ),
    "audio_1.5_s": user(clip(1.5), text("What was said?")),
    "audio_30_s": user(text("Listen"), clip(30, 1)),
    "audio_35_s": user(clip(35, 2)),
    "speech_as_it_is": user(
        dict(media.input_audio_part(media.speech_bytes(), "flac")), text("What was said?")
    ),
    "image_then_audio": user(picture(seed=4), text("and"), clip(2, 3), text("Both?")),
    "audio_then_image": user(clip(2, 3), text("and"), picture(seed=4), text("Both?")),
    "several_turns": turns(
        [text("Look"), picture(seed=5)],
        "A blue square.",
        [text("And now?"), picture(MANY_SLICES, 6), clip(1, 4)],
    ),
}


def crowd_request(number: int) -> list[dict[str, Any]]:
    """One of many different requests: text, picture, clip or both, each with its own content."""
    parts = [text(f"Request number {number}.")]
    if number % 4 in (1, 3):
        size = ONE_SLICE if number % 8 < 4 else MANY_SLICES
        parts.append(picture(size, 100 + number))
    if number % 4 in (2, 3):
        parts.append(clip(0.5 + number % 5, 100 + number))
    return user(*parts)
