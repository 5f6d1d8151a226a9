"""Pillow's bicubic resize of an RGB picture, bit for bit, to several sizes in one reading of the picture.

Pillow's arithmetic (``src/libImaging/Resample.c``): weights with 22 fractional bits, one direction rounded
to 8 bits, then the other. Here 128 rows are turned at a time, so that the compiler works on many at once.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numba
import numpy as np
from numba import types

Size = tuple[int, int]  # width, height

TILE_ROWS = 128
TURN_BYTES = 64  # what is turned at once stays in the nearest cache
OUT_COLUMNS = 32


_PIXELS = [types.Array(types.uint8, dimensions, "C", readonly=True) for dimensions in range(4)]
_OUT = [types.Array(types.uint8, dimensions, "C") for dimensions in range(4)]
_WEIGHTS = (types.int32[::1], types.int32[::1], types.int32[:, ::1])


def _compiled(*arguments: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Machine code for these argument types, kept beside this file where that can be written."""
    signature = types.void(*arguments)

    def compile_(function: Callable[..., None]) -> Callable[..., None]:
        try:
            compiled: Callable[..., None] = numba.njit(signature, nogil=True, cache=True)(function)
        except RuntimeError:  # a read-only installation: compiled in every process, for some seconds
            compiled = numba.njit(signature, nogil=True)(function)
        return compiled

    return compile_


def resize(pixels: np.ndarray, sizes: Sequence[Size]) -> list[np.ndarray]:
    """Resize one picture to every one of ``sizes`` (width, height).

    Args:
        pixels: (height, width, 3) uint8, contiguous.

    Returns:
        For each size (3, height, width) uint8: the bytes of ``Image.resize(size, BICUBIC)``, by colour.
    """
    height, width, _ = pixels.shape
    rows = pixels.reshape(height, width * 3)
    later = [w for w, h in sizes if not vertical_first((width, height), (w, h))]
    narrowed = dict(zip(later, _to_widths(rows, later), strict=True))
    results = []
    for w, h in sizes:
        if vertical_first((width, height), (w, h)):
            (shortened,) = _to_height(rows[None], h)
            results += _to_widths(shortened, [w])
        else:
            results.append(_to_height(narrowed[w], h))
    return results


def vertical_first(size: Size, out: Size) -> bool:
    """Pillow 13's order of the two passes; the first rounds to 8 bits, so that it can be seen."""
    (width, height), (out_width, out_height) = size, out
    return out_height < height and height - out_height > 2 * (width - out_width)


def _to_widths(rows: np.ndarray, widths: Sequence[int]) -> list[np.ndarray]:
    """(height, bytes) to (3, height, w) for each w of ``widths``."""
    height, width = len(rows), rows.shape[1] // 3
    outs = [np.empty((3, height, w), np.uint8) for w in widths]
    plans = [(_weights(width, out.shape[2]), out) for out in outs if out.shape[2] != width]
    for out in outs:
        if out.shape[2] == width:
            _planes(rows, out)
    tile = np.empty((width * 3 if plans else 0, TILE_ROWS), np.uint8)
    for top in range(0, height if plans else 0, TILE_ROWS):
        _turn(rows[top : top + TILE_ROWS], tile)
        for weights, out in plans:
            _horizontal(tile, *weights, out, top)
    return outs


def _to_height(planes: np.ndarray, height: int) -> np.ndarray:
    """(any, rows, width) to (any, height, width)."""
    if planes.shape[1] == height:
        return planes
    out = np.empty((len(planes), height, planes.shape[2]), np.uint8)
    _vertical(planes, *_weights(planes.shape[1], height), out)
    return out


def _weights(size: int, out_size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """First source pixel, number of source pixels, and their weights, for each pixel of the result."""
    taps = math.ceil(2.0 * max(size / out_size, 1.0)) * 2 + 1
    first, count = np.zeros(out_size, np.int32), np.zeros(out_size, np.int32)
    weights = np.zeros((out_size, taps), np.int32)
    _fill_weights(size, first, count, weights)
    return first, count, weights


@_compiled(types.int64, *_WEIGHTS)
def _fill_weights(size: int, first: np.ndarray, count: np.ndarray, weights: np.ndarray) -> None:
    scale = size / len(first)
    spread = max(scale, 1.0)
    shrink = 1.0 / spread
    values = np.zeros(weights.shape[1], np.float64)
    for i in range(len(first)):
        centre = (i + 0.5) * scale
        start = max(int(centre - 2.0 * spread + 0.5), 0)
        end = min(int(centre + 2.0 * spread + 0.5), size)
        total = 0.0
        for k in range(end - start):
            x = abs((k + start - centre + 0.5) * shrink)
            values[k] = 0.0
            if x < 1.0:
                values[k] = (1.5 * x - 2.5) * x * x + 1
            elif x < 2.0:
                values[k] = (((x - 5) * x + 8) * x - 4) * -0.5
            total += values[k]
        for k in range(end - start):
            value = values[k] / total if total != 0.0 else values[k]
            weights[i, k] = int(value * 4194304.0 + (0.5 if value >= 0 else -0.5))
        first[i], count[i] = start, end - start


@_compiled(_PIXELS[2], _OUT[3])
def _planes(rows: np.ndarray, out: np.ndarray) -> None:
    """(height, width * 3) to (3, height, width)."""
    for y in range(len(rows)):
        row = rows[y]
        for x in range(out.shape[2]):
            for c in range(3):
                out[c, y, x] = row[3 * x + c]


@_compiled(_PIXELS[2], _OUT[2])
def _turn(rows: np.ndarray, tile: np.ndarray) -> None:
    """(rows, bytes) to (bytes, TILE_ROWS); of fewer rows the rest is left as it was."""
    for start in range(0, rows.shape[1], TURN_BYTES):
        end = min(rows.shape[1], start + TURN_BYTES)
        for r in range(len(rows)):
            row = rows[r]
            for i in range(start, end):
                tile[i, r] = row[i]


@_compiled(_OUT[2], *_WEIGHTS, _OUT[3], types.int64)
def _horizontal(
    tile: np.ndarray, first: np.ndarray, count: np.ndarray, weights: np.ndarray, out: np.ndarray, top: int
) -> None:
    """A turned tile to the rows of ``out`` (3, height, width) from ``top`` on."""
    rows = min(TILE_ROWS, out.shape[1] - top)
    sums = np.empty(TILE_ROWS, np.int32)
    columns = np.empty((OUT_COLUMNS, TILE_ROWS), np.uint8)
    for c in range(3):
        for start in range(0, len(first), OUT_COLUMNS):
            width = min(OUT_COLUMNS, len(first) - start)
            for i in range(width):
                x = start + i
                for r in range(TILE_ROWS):
                    sums[r] = 1 << 21
                for k in range(count[x]):
                    weight = weights[x, k]
                    source = tile[(first[x] + k) * 3 + c]
                    for r in range(TILE_ROWS):
                        sums[r] += weight * np.int32(source[r])
                column = columns[i]
                for r in range(TILE_ROWS):
                    column[r] = np.uint8(min(max(sums[r] >> 22, 0), 255))
            for r in range(rows):
                row = out[c, top + r]
                for i in range(width):
                    row[start + i] = columns[i, r]


@_compiled(_PIXELS[3], *_WEIGHTS, _OUT[3])
def _vertical(
    planes: np.ndarray, first: np.ndarray, count: np.ndarray, weights: np.ndarray, out: np.ndarray
) -> None:
    """(any, rows, width) to ``out`` (any, other rows, width)."""
    width = planes.shape[2]
    sums = np.empty(width, np.int32)
    for c in range(len(planes)):
        for y in range(len(first)):
            for x in range(width):
                sums[x] = 1 << 21
            for k in range(count[y]):
                weight = weights[y, k]
                source = planes[c, first[y] + k]
                for x in range(width):
                    sums[x] += weight * np.int32(source[x])
            row = out[c, y]
            for x in range(width):
                row[x] = np.uint8(min(max(sums[x] >> 22, 0), 255))
