"""Requests by which parity is judged, on the CPU and on a GPU alike."""

from typing import Any

import numpy as np

from tests import media
from tests.asking import text, user
from tests.truth import spoken
from training import scenes
from training.evaluate import part_of_message

ONE_SLICE = (120, 90)
MANY_SLICES = (420, 300)


def picture(size: tuple[int, int] = ONE_SLICE, seed: int = 0) -> dict[str, Any]:
    return dict(media.image_part(media.image_bytes(media.drawn(*size, seed=seed))))


def scene(size: tuple[int, int], seed: int) -> dict[str, Any]:
    """One shape, or two, of which the trained model can say something."""
    rng = np.random.default_rng(seed)
    return part_of_message(scenes.draw(scenes.random_scene(rng, size, 1 + seed % 2), rng))


def word(number: int) -> dict[str, Any]:
    """A spoken word."""
    return part_of_message(spoken()[number].samples.astype(np.float32) / 32768)


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
    "noisy_picture": user(text("What is this?"), picture()),
    "image_one_slice": user(text("What is this?"), scene(ONE_SLICE, 1)),
    "image_many_slices": user(scene(MANY_SLICES, 2), text("What is this?")),
    "photograph": user(text("Describe"), photo("coffee")),
    "two_images_of_different_size": user(
        text("First"), scene(ONE_SLICE, 3), text("second"), scene(MANY_SLICES, 4)
    ),
    "word": user(word(7), text("What was said?")),
    "audio_1.5_s": user(clip(1.5), text("What was said?")),
    "audio_30_s": user(text("Listen"), clip(30, 1)),
    "audio_35_s": user(clip(35, 2)),
    "speech_as_it_is": user(
        dict(media.input_audio_part(media.speech_bytes(), "flac")), text("What was said?")
    ),
    "image_then_audio": user(scene(ONE_SLICE, 5), text("and"), word(12), text("Both?")),
    "audio_then_image": user(word(12), text("and"), scene(ONE_SLICE, 5), text("Both?")),
    "several_turns": turns(
        [text("Look"), scene(ONE_SLICE, 6)],
        "A blue square.",
        [text("And now?"), scene(MANY_SLICES, 7), word(20)],
    ),
}
