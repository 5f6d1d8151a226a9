"""Drawn pictures and the sentence that is true of each: one shape and its place, or two and how they lie."""

import io
import math
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

COLOURS: dict[str, tuple[int, int, int]] = {
    "red": (220, 30, 35),
    "orange": (250, 140, 20),
    "yellow": (245, 220, 40),
    "green": (30, 160, 60),
    "blue": (35, 70, 220),
    "purple": (130, 40, 160),
    "pink": (250, 140, 190),
    "black": (15, 15, 15),
    "white": (250, 250, 250),
}
SHAPES = ("circle", "square", "triangle", "star", "cross", "ring", "diamond", "heart")
PLACES = (
    "at the top left", "at the top", "at the top right",
    "at the left", "in the middle", "at the right",
    "at the bottom left", "at the bottom", "at the bottom right",
)  # fmt: skip
RELATIONS = ("left of", "above")
PAPERS = ((250, 250, 250), (225, 225, 220), (200, 205, 210), (240, 230, 205), (60, 62, 66), (25, 30, 45))
"""Backgrounds: light ones first, then two dark ones."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Thing:
    """One shape: its centre and half its side in pixels."""

    colour: str
    shape: str
    centre: Point
    half: float

    @property
    def name(self) -> str:
        """As in "a red circle"."""
        return f"{'an' if self.colour == 'orange' else 'a'} {self.colour} {self.shape}"


@dataclass(frozen=True)
class Scene:
    """A picture's size (width, height), paper and things; two things are in the order of the sentence."""

    size: tuple[int, int]
    paper: tuple[int, int, int]
    things: tuple[Thing, ...]
    place: str | None = None
    relation: str | None = None

    @property
    def sentence(self) -> str:
        """What is true of it, without "the picture shows"."""
        first = self.things[0].name
        return f"{first} {self.place}" if self.place else f"{first} {self.relation} {self.things[1].name}"


def random_size(rng: np.random.Generator, slices: tuple[int, int], side: int = 140) -> tuple[int, int]:
    """A width and height whose area asks for so many slices of ``side`` squared, both limits included."""
    low, high = slices
    area = side * side * (rng.uniform(0.25, 1.0) if high == 1 else rng.uniform(low - 1, high))
    ratio = np.exp(rng.uniform(-0.6, 0.6))
    round_to = math.floor if high == 1 else math.ceil
    width, height = round_to((area * ratio) ** 0.5), round_to((area / ratio) ** 0.5)
    return max(width, 40), max(height, 40)


def random_scene(rng: np.random.Generator, size: tuple[int, int], things: int) -> Scene:
    """Shapes of other colours than the paper, far enough apart and apart from the edges."""
    paper = PAPERS[int(rng.integers(len(PAPERS)))]
    colours = [
        name
        for name, rgb in COLOURS.items()
        if sum(abs(a - b) for a, b in zip(rgb, paper, strict=True)) > 200
    ]
    picked = [(str(rng.choice(colours)), str(rng.choice(SHAPES))) for _ in range(things)]
    if things == 1:
        cell = int(rng.integers(9))
        half = min(size) * rng.uniform(0.12, 0.17)
        jitter = rng.uniform(-0.35, 0.35, 2) / 3
        row, column = divmod(cell, 3)
        x, y = (
            float(np.clip((at + 0.5) / 3 + off, half / length, 1 - half / length) * length)
            for at, off, length in zip((column, row), jitter, size, strict=True)
        )
        return Scene(size, paper, (Thing(*picked[0], (x, y), half),), place=PLACES[cell])
    axis = int(rng.integers(2))
    centres, half = _two_places(rng, size, axis)
    pair = tuple(Thing(*one, centre, half) for one, centre in zip(picked, centres, strict=True))
    return Scene(size, paper, pair, relation=RELATIONS[axis])


def _two_places(rng: np.random.Generator, size: tuple[int, int], axis: int) -> tuple[list[Point], float]:
    """Two centres, apart along the axis by far more than across it, and half the side of both things."""
    half = min(min(size) * rng.uniform(0.12, 0.2), size[axis] * 0.18)
    free = size[axis] - 2 * half
    apart = free * rng.uniform(max(2.4 * half / free, 0.45), 1.0)
    start = half + rng.uniform(0, free - apart)
    across = size[1 - axis]
    middle = rng.uniform(half, across - half)
    most = min(apart * 0.3, across / 2)
    other = np.clip(middle + rng.uniform(-most, most), half, across - half)
    places = [(start, middle), (start + apart, other)]
    return [(float(a), float(b)) if axis == 0 else (float(b), float(a)) for a, b in places], half


def _outline(shape: str, half: float, tilt: float) -> list[Point]:
    """Corners around (0, 0) of the shapes that are polygons."""
    if shape == "star":
        angles = np.arange(10) * np.pi / 5 - np.pi / 2
        radii = np.where(np.arange(10) % 2, 0.45, 1.08)
        corners = np.stack([np.cos(angles) * radii, np.sin(angles) * radii], axis=1)
    elif shape == "heart":
        t = np.linspace(0, 2 * np.pi, 40)
        x = 16 * np.sin(t) ** 3
        y = -(13 * np.cos(t) - 5 * np.cos(2 * t) - 2 * np.cos(3 * t) - np.cos(4 * t)) - 2.5
        corners = np.stack([x, y], axis=1) / 16
    elif shape == "cross":
        w = 0.32
        corners = np.array(
            [
                (-w, -1),
                (w, -1),
                (w, -w),
                (1, -w),
                (1, w),
                (w, w),
                (w, 1),
                (-w, 1),
                (-w, w),
                (-1, w),
                (-1, -w),
                (-w, -w),
            ]
        )
    else:
        corners = np.array(
            {
                "square": [(-0.88, -0.88), (0.88, -0.88), (0.88, 0.88), (-0.88, 0.88)],
                "triangle": [(0, -1), (1, 0.85), (-1, 0.85)],
                "diamond": [(0, -1.1), (0.8, 0), (0, 1.1), (-0.8, 0)],
            }[shape]
        )
    turn = np.array([[np.cos(tilt), np.sin(tilt)], [-np.sin(tilt), np.cos(tilt)]])
    return [(float(x), float(y)) for x, y in corners @ turn * half]


def draw(scene: Scene, rng: np.random.Generator) -> Image.Image:
    """The picture; shades, tilt and smoothness vary a little with ``rng``."""
    scale = 2 if max(scene.size) < 400 and rng.random() < 0.7 else 1
    width, height = scene.size
    image = Image.new("RGB", (width * scale, height * scale), _shade(scene.paper, rng, 6))
    pen = ImageDraw.Draw(image)
    for thing in scene.things:
        fill = _shade(COLOURS[thing.colour], rng, 12)
        x, y, half = (value * scale for value in (*thing.centre, thing.half))
        if thing.shape in ("circle", "ring"):
            pen.ellipse((x - half, y - half, x + half, y + half), fill=fill)
            if thing.shape == "ring":
                hole = half * rng.uniform(0.5, 0.62)
                pen.ellipse((x - hole, y - hole, x + hole, y + hole), fill=image.getpixel((0, 0)))
        else:
            corners = _outline(thing.shape, half, float(rng.uniform(-0.12, 0.12)))
            pen.polygon([(x + a, y + b) for a, b in corners], fill=fill)
    return image if scale == 1 else image.resize(scene.size, Image.Resampling.BOX)


def _shade(colour: tuple[int, int, int], rng: np.random.Generator, spread: int) -> tuple[int, int, int]:
    r, g, b = (int(v) for v in np.clip(np.array(colour) + rng.integers(-spread, spread + 1, 3), 0, 255))
    return r, g, b


def worn(image: Image.Image, rng: np.random.Generator) -> Image.Image:
    """As it comes back from a JPEG file of middling quality, or with a little grain."""
    if rng.random() < 0.5:
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=int(rng.integers(60, 96)))
        return Image.open(buffer).convert("RGB")
    grain = rng.normal(0, rng.uniform(1, 6), (image.height, image.width, 3))
    return Image.fromarray(np.clip(np.asarray(image) + grain, 0, 255).astype(np.uint8))


def shapeless(rng: np.random.Generator, size: tuple[int, int]) -> Image.Image:
    """A picture with no shape to name: noise, waves, stripes, blots or a clutter of many shapes."""
    width, height = size
    kind = int(rng.integers(5))
    if kind == 0:
        pixels = rng.uniform(0, 255, (height, width, 3)) * rng.uniform(0.3, 1)
    elif kind in (1, 2):
        x, y = np.linspace(0, 1, width), np.linspace(0, 1, height)[:, None]
        phase, waves = rng.uniform(0, 2 * np.pi, 3), rng.uniform(0.5, 9 if kind == 2 else 3, 3)
        planes = [
            np.sin(w * (x * np.cos(p) + y * np.sin(p)) * np.pi + p) for w, p in zip(waves, phase, strict=True)
        ]
        pixels = (np.stack(planes, axis=-1) + 1) * 110 + rng.uniform(0, 35, (height, width, 3))
    elif kind == 3:
        small = rng.uniform(0, 255, (int(rng.integers(3, 14)), int(rng.integers(3, 14)), 3)).astype(np.uint8)
        return Image.fromarray(small).resize(size, Image.Resampling.BICUBIC)
    else:
        pixels = np.full((height, width, 3), rng.uniform(0, 255, 3))
    image = Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8))
    if kind in (1, 4):
        pen = ImageDraw.Draw(image)
        for _ in range(int(rng.integers(6, 16)) if kind == 4 else 4):
            x0, x1 = sorted(rng.uniform(0, width, 2))
            y0, y1 = sorted(rng.uniform(0, height, 2))
            fill = tuple(int(v) for v in rng.integers(0, 256, 3))
            (pen.ellipse if rng.random() < 0.5 else pen.rectangle)((x0, y0, x1, y1), fill=fill)
    return image
