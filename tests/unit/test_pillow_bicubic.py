"""The resize of pictures against Pillow itself. Needs numba, no torch."""

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from deployments.upstream.pillow_bicubic import TILE_ROWS, resize, vertical_first

SIDE = st.integers(1, 300)


def noise(width: int, height: int) -> np.ndarray:
    """Black, white and everything between, so that sums leave the range of a byte at both ends."""
    rng = np.random.default_rng(width * 1000 + height)
    pixels = rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    pixels[rng.random((height, width)) < 0.2] = 0
    pixels[rng.random((height, width)) < 0.2] = 255
    return pixels


def by_pillow(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    image = Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC)
    return np.asarray(image).transpose(2, 0, 1)


@settings(max_examples=300)
@given(SIDE, SIDE, st.lists(st.tuples(SIDE, SIDE), min_size=1, max_size=3))
@example(1, 1, [(1, 1), (7, 9)])
@example(140, 140, [(140, 140), (140, 70), (70, 140)])
@example(139, 280, [(98, 196), (140, 280)])
@example(20, 42, [(7, 16)])
@example(1, 300, [(300, 1)])
@example(50, TILE_ROWS, [(20, 20)])
@example(50, TILE_ROWS + 1, [(20, 200)])
def test_the_bytes_are_pillows(width: int, height: int, sizes: list[tuple[int, int]]) -> None:
    """Up, down, either side alone or none, one size or several at once: every byte is the same."""
    pixels = noise(width, height)
    for size, planes in zip(sizes, resize(pixels, sizes), strict=True):
        np.testing.assert_array_equal(planes, by_pillow(pixels, size))


def test_large_pictures() -> None:
    """The sizes that pictures really have, as the real checkpoint resizes them."""
    for width, height in ((1300, 900), (1344, 1344), (1080, 2400)):
        pixels = noise(width, height)
        sizes = [(532, 378), (1344, 1344)]
        for size, planes in zip(sizes, resize(pixels, sizes), strict=True):
            np.testing.assert_array_equal(planes, by_pillow(pixels, size))


def test_both_orders_of_the_passes_are_among_the_tested() -> None:
    """The examples above reach the rule from both sides, and its border."""
    assert vertical_first((139, 280), (98, 196))
    assert not vertical_first((140, 140), (70, 140))
    assert not vertical_first((20, 42), (7, 16))
    assert vertical_first((20, 42), (7, 15))
