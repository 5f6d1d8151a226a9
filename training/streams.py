"""Streams of rows for training; each has kinds of tasks, and limits that keep its tensors at one size."""

import sys
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from training import mel, voices
from training.batches import Batch, Collector, Limits, Prepared
from training.tasks import Tasks, surround

ANSWER = 32
PATCHES = 112
SHORT_SOUND, LONG_SOUND = (seconds * voices.RATE + 2 * mel.HOP for seconds in (2, 30))


@dataclass(frozen=True)
class Stream:
    """Kinds with their shares, slices of a picture, rows in each step, and the limits of a row."""

    kinds: dict[str, float]
    rows: int
    limits: Limits
    slices: tuple[int, int] = (1, 1)


STREAMS = {
    "picture": Stream(
        {"shapes": 0.56, "asked": 0.09, "digit": 0.28, "nothing_seen": 0.04, "lone_picture": 0.03},
        192, Limits(136, ANSWER, 1, PATCHES, 0, 0),
    ),
    "sound": Stream(
        {"word": 0.72, "nothing_heard": 0.22, "lone_sound": 0.06},
        64, Limits(96, ANSWER, 0, 0, 1, SHORT_SOUND),
    ),
    "both": Stream({"both": 1.0}, 96, Limits(160, ANSWER, 1, PATCHES, 1, SHORT_SOUND)),
    "text": Stream({"text": 1.0}, 32, Limits(96, ANSWER, 0, 0, 0, 0)),
    "slices": Stream(
        {"shapes": 0.5, "asked": 0.04, "digit": 0.13, "both": 0.23, "nothing_seen": 0.1},
        16, Limits(752, ANSWER, 10, PATCHES, 1, SHORT_SOUND), (2, 9),
    ),
    "long_sound": Stream({"long_sound": 1.0}, 4, Limits(448, ANSWER, 0, 0, 1, LONG_SOUND)),
    "two": Stream({"two": 1.0}, 4, Limits(576, ANSWER, 8, PATCHES, 2, SHORT_SOUND)),
}  # fmt: skip


class Chunks(torch.utils.data.Dataset[dict[str, Batch]]):
    """Item i holds a step's rows of every stream, always the same; sizes are the streams' times ``scale``."""

    def __init__(self, clips: list[voices.Spoken], seed: int, scale: float) -> None:
        self.tasks = Tasks(clips, held_out=False)
        self.seed, self.scale = seed, scale

    def __len__(self) -> int:
        return sys.maxsize

    @cached_property
    def collector(self) -> Collector:
        return Collector()

    def __getitem__(self, number: int) -> dict[str, Batch]:
        rng = np.random.default_rng([self.seed, number])
        return {
            name: self.collector.fill(
                [self._one(stream, rng) for _ in range(rows_of(stream, self.scale))], stream.limits
            )
            for name, stream in STREAMS.items()
        }

    def _one(self, stream: Stream, rng: np.random.Generator) -> Prepared:
        """A task of the stream; what is too large for its limits is made again."""
        while True:
            kind = str(rng.choice(list(stream.kinds), p=list(stream.kinds.values())))
            made = self.collector.prepare(surround(self.tasks.make(kind, rng, stream.slices), rng))
            if stream.limits.hold(made.needs):
                return made


def rows_of(stream: Stream, scale: float) -> int:
    """Rows of a stream in a step, one at least."""
    return max(1, round(stream.rows * scale))


def held_out(
    clips: list[voices.Spoken], seed: int, sizes: dict[tuple[str, tuple[int, int]], int]
) -> dict[tuple[str, tuple[int, int]], list[Batch]]:
    """Batches of the held-out side for each kind and number of slices, of 64 rows at the most."""
    tasks, collector = Tasks(clips, held_out=True), Collector()
    batches = {}
    for number, ((kind, slices), size) in enumerate(sizes.items()):
        rng = np.random.default_rng([seed, 1_000_000 + number])
        made = [tasks.make(kind, rng, slices) for _ in range(size)]
        batches[kind, slices] = [collector.collect(made[at : at + 64]) for at in range(0, size, 64)]
    return batches
