"""The picture and the sound of the first example, and what is true of them: python -m training.example

Writes ``picture.png`` and ``word.wav``, which the status page offers; needs espeak-ng. The voice is held out.
"""

from pathlib import Path

import numpy as np
import soundfile
from PIL import Image

from training import scenes, voices

FOLDER = Path(__file__).parents[1] / "app" / "status_page"
SCENE = scenes.Scene(
    (480, 360),
    (250, 250, 250),
    (
        scenes.Thing("red", "circle", (140.0, 175.0), 60.0),
        scenes.Thing("blue", "square", (345.0, 195.0), 60.0),
    ),
    relation="left of",
)
WORD, VOICE, WORDS_A_MINUTE, PITCH = "seven", "en-us+f4", 155, 50
QUESTION = "What do you see and hear?"
TRUTH = f"The word is {WORD}, the picture shows {SCENE.sentence}."
QUIET = np.zeros(voices.RATE // 5, dtype=np.int16)


def picture() -> Image.Image:
    """A picture of several slices."""
    return scenes.draw(SCENE, np.random.default_rng(0))


def main() -> None:
    """Write both files, as ``examples/`` and the status page have them."""
    picture().save(FOLDER / "picture.png", optimize=True)
    spoken = voices.speak(WORD, VOICE, WORDS_A_MINUTE, PITCH).samples
    soundfile.write(FOLDER / "word.wav", np.concatenate([QUIET, spoken, QUIET]), voices.RATE)


if __name__ == "__main__":
    main()
