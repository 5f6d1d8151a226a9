"""scikit-learn's handwritten digits (1,797 pictures of 8 x 8, 17 greys) as pictures that a client would send.

``data/digits.csv.gz`` is the file that scikit-learn 1.9 ships as ``load_digits``: a copy of the test part of
UCI's "Optical Recognition of Handwritten Digits" (E. Alpaydin and C. Kaynak, 1998; CC BY 4.0).
"""

import gzip
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

FILE = Path(__file__).parent / "data" / "digits.csv.gz"
NAMES = "zero one two three four five six seven eight nine".split()
HELD_OUT = 360
"""Every fifth picture, about, is for evaluation alone."""


@cache
def _all() -> tuple[np.ndarray, np.ndarray]:
    with gzip.open(FILE, "rt") as file:
        table = np.loadtxt(file, delimiter=",").astype(np.uint8)
    order = np.random.default_rng(0).permutation(len(table))
    return table[order, :64].reshape(-1, 8, 8), table[order, 64]


def count(*, held_out: bool) -> int:
    """Pictures on this side of the split."""
    return HELD_OUT if held_out else len(_all()[1]) - HELD_OUT


def digit(number: int, *, held_out: bool) -> tuple[np.ndarray, str]:
    """One picture (8, 8) uint8 of 0 (paper) to 16 (ink), and its name."""
    pixels, labels = _all()
    row = number if held_out else HELD_OUT + number
    return pixels[row], NAMES[labels[row]]


def picture(pixels: np.ndarray, rng: np.random.Generator, *, bent: bool = False) -> Image.Image:
    """The digit in dark ink on light paper (or light on dark), smoothed to some size.

    ``bent`` turns, shears, stretches and thickens it a little, for training.
    """
    side = int(rng.integers(56, 140))
    ink = Image.fromarray((pixels.astype(np.float32) * (255 / 16)).astype(np.uint8))
    inner = int(side * rng.uniform(0.7, 1.0))
    large = ink.resize((inner, inner), Image.Resampling.BICUBIC)
    if bent:
        large = _bend(large, rng)
    mask = np.zeros((side, side), dtype=np.float32)
    x, y = (int(v) for v in rng.integers(0, side - inner + 1, 2))
    mask[y : y + inner, x : x + inner] = np.asarray(large, dtype=np.float32) / 255
    if bent:
        mask **= rng.uniform(0.6, 1.6)
    dark, light = rng.uniform(0, 60, 3), rng.uniform(200, 255, 3)
    paper, pen = (light, dark) if rng.random() < 0.7 else (dark, light)
    return Image.fromarray((paper + (pen - paper) * mask[..., None]).astype(np.uint8))


def _bend(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    turn, shear = rng.normal(0, 0.10), rng.normal(0, 0.12)
    wide, tall = rng.uniform(0.88, 1.15, 2)
    matrix = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
    matrix = matrix @ np.array([[1 / wide, shear], [0, 1 / tall]])
    middle = image.width / 2
    shift = middle - matrix @ np.array([middle, middle]) + rng.normal(0, 0.03, 2) * image.width
    values = (*matrix[0], shift[0], *matrix[1], shift[1])
    return image.transform(image.size, Image.Transform.AFFINE, values, Image.Resampling.BILINEAR)
