"""Tasks to tensors: the prompt as the chat template and the processor make it, patches, samples, labels."""

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer
from torch import Tensor

from toy_model import configs as c
from toy_model import vocabulary, write
from toy_model.checkpoint_code import image_processing_minicpmo as pictures
from training import mel, voices
from training.tasks import MARKS, Task, Tasks, surround

IGNORED = -100
PAD = "<|endoftext|>"
SHORT = {
    "shapes": 0.33, "asked": 0.05, "digit": 0.14, "word": 0.15, "both": 0.14, "lone": 0.04,
    "nothing_seen": 0.03, "nothing_heard": 0.04, "text": 0.08,
}  # fmt: skip
"""Shares of the kinds among pictures of one slice, sounds and texts."""
LONG = {
    "shapes": 0.44, "asked": 0.04, "digit": 0.13, "both": 0.18, "nothing_seen": 0.1,
    "long_sound": 0.05, "two": 0.06,
}  # fmt: skip
"""Shares of the kinds among pictures of several slices, long sounds and too many media."""


class Prompts:
    """Tokens of a task's prompt and answer."""

    def __init__(self) -> None:
        self.ids = vocabulary.vocabulary()
        self.pictures = pictures.MiniCPMVImageProcessor(
            image_feature_size=c.QUERIES, scale_resolution=c.SLICE_SIDE
        )

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.from_str(write.contents()["tokenizer.json"].decode())

    def encode(self, text: str) -> list[int]:
        """As the checkpoint's tokenizer does."""
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)

    def prompt(self, task: Task) -> str:
        """The whole prompt, placeholders expanded."""
        parts, images = [], 0
        for part in task.parts:
            if isinstance(part, str):
                parts.append(part)
            elif isinstance(part, Image.Image):
                parts.append(self.pictures.get_slice_image_placeholder(part.size, images))
                images += 1
            else:
                parts.append(_sound_placeholder(len(part)))
        turns = [("system", task.system)] if task.system else []
        for question, answer in task.earlier:
            turns += [("user", question), ("assistant", answer)]
        turns.append(("user", "\n".join(parts)))
        said = "".join(f"<|im_start|>{role}\n{body}<|im_end|>\n" for role, body in turns)
        return f"{said}<|im_start|>assistant\n"


def _sound_placeholder(samples: int) -> str:
    total = int(_tokens(samples))
    runs = [min(10, total - start) for start in range(0, total, 10)]
    return "".join(f"<|audio_start|>{'<unk>' * count}<|audio_end|>" for count in runs)


def _tokens(samples: int) -> int:
    frames = -(-samples // mel.HOP)
    return ((frames - 1) // 2 + 1) // c.POOL_STEP


@dataclass
class Batch:
    """Everything of a step; sounds and patches are small integers until they are on the device."""

    ids: Tensor  # (batch, length) int64
    labels: Tensor  # (batch, length) int64, what comes next, IGNORED outside the answer
    patches: Tensor  # (slices, most, 3 * patch * patch) uint8
    grids: Tensor  # (slices, 2) int64
    seen_at: Tensor  # (slices * queries,) flat positions in ids
    sounds: Tensor  # (clips, samples) int16
    samples: Tensor  # (clips,) int64
    heard_from: Tensor  # (embeddings,) flat positions in (clips, most embeddings)
    heard_at: Tensor  # (embeddings,) flat positions in ids
    overviews: Tensor  # (pictures,) which slice is a picture's first
    picture_marks: Tensor  # (pictures, marks) int64
    sound_marks: Tensor  # (clips,) int64
    kinds: list[str]

    def to(self, device: torch.device) -> "Batch":
        """The same on a device."""
        moved = {
            f.name: value.to(device, non_blocking=True)
            if isinstance(value := getattr(self, f.name), Tensor)
            else value
            for f in fields(self)
        }
        return Batch(**moved)


PICTURE_MARKS = [name for name in MARKS if name != "word"]


class Collector:
    """Puts tasks together."""

    def __init__(self) -> None:
        self.prompts = Prompts()

    def collect(self, tasks: list[Task]) -> Batch:
        """One padded batch."""
        prompts = [self.prompts.encode(self.prompts.prompt(task)) for task in tasks]
        end = self.prompts.ids["<|im_end|>"]
        answers = [[*self.prompts.encode(task.answer), end] for task in tasks]
        length = -(-max(len(p) + len(a) for p, a in zip(prompts, answers, strict=True)) // 8) * 8
        ids = np.full((len(tasks), length), self.prompts.ids[PAD])
        labels = np.full((len(tasks), length), IGNORED)
        for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
            ids[row, : len(prompt) + len(answer)] = [*prompt, *answer]
            labels[row, len(prompt) - 1 : len(prompt) + len(answer) - 1] = answer
        media = self._media(tasks, ids)
        return Batch(
            ids=torch.from_numpy(ids), labels=torch.from_numpy(labels), kinds=[t.kind for t in tasks], **media
        )

    def _media(self, tasks: list[Task], ids: np.ndarray) -> dict[str, Tensor]:
        """Slices and sounds in the order of their placeholders, and where those stand."""
        slices: list[np.ndarray] = []
        grids: list[tuple[int, int]] = []
        sounds: list[np.ndarray] = []
        overviews, picture_marks, sound_marks, seen_at = [], [], [], []
        heard: list[tuple[int, np.ndarray]] = []
        unknown = self.prompts.ids["<unk>"]
        for row, task in enumerate(tasks):
            places = np.flatnonzero(ids[row] == unknown) + row * ids.shape[1]
            for part in task.parts:
                if isinstance(part, Image.Image):
                    overviews.append(len(slices))
                    picture_marks.append([task.marks.get(name, IGNORED) for name in PICTURE_MARKS])
                    pieces = pictures.cut(part, 9, c.SLICE_SIDE, c.PATCH)
                    slices += [as_patches(np.asarray(piece)) for piece in pieces]
                    grids += [(piece.height // c.PATCH, piece.width // c.PATCH) for piece in pieces]
                    count = len(pieces) * c.QUERIES
                    seen_at.append(places[:count])
                elif isinstance(part, np.ndarray):
                    count = _tokens(len(part))
                    heard.append((len(sounds), places[:count]))
                    sound_marks.append(task.marks.get("word", IGNORED))
                    sounds.append(part)
                else:
                    continue
                places = places[count:]
        padded, lengths = _pad_sounds(sounds)
        most = _tokens(padded.shape[1])
        return {
            "patches": torch.from_numpy(_pad(slices, (3 * c.PATCH**2,), np.uint8)),
            "grids": torch.tensor(grids).reshape(-1, 2),
            "seen_at": _joined(seen_at),
            "sounds": torch.from_numpy(padded),
            "samples": torch.from_numpy(lengths),
            "heard_from": _joined([clip * most + np.arange(len(places)) for clip, places in heard]),
            "heard_at": _joined([places for _, places in heard]),
            "overviews": torch.tensor(overviews, dtype=torch.int64),
            "picture_marks": torch.tensor(picture_marks, dtype=torch.int64).reshape(-1, len(PICTURE_MARKS)),
            "sound_marks": torch.tensor(sound_marks, dtype=torch.int64),
        }


def as_patches(pixels: np.ndarray) -> np.ndarray:
    """(height, width, 3) to (patches, 3 * patch * patch), each as the patch convolution reads it."""
    strip = pictures.to_strip(pixels, c.PATCH)
    return strip.reshape(3, c.PATCH, -1, c.PATCH).transpose(2, 0, 1, 3).reshape(-1, 3 * c.PATCH**2)


def _joined(arrays: list[np.ndarray]) -> Tensor:
    return torch.from_numpy(np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.int64))


def _pad(arrays: list[np.ndarray], shape: tuple[int, ...], kind: Any) -> np.ndarray:
    out = np.zeros((len(arrays), max((len(a) for a in arrays), default=1), *shape), dtype=kind)
    for row, array in zip(out, arrays, strict=True):
        row[: len(array)] = array
    return out


def _pad_sounds(sounds: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """int16 with at least 400 samples of silence after the longest, in whole frames."""
    lengths = np.array([len(sound) for sound in sounds], dtype=np.int64)
    longest = int(lengths.max(initial=mel.HOP)) + mel.WINDOW
    padded = np.zeros((len(sounds), -(-longest // mel.HOP) * mel.HOP), dtype=np.int16)
    for row, sound in zip(padded, sounds, strict=True):
        row[: len(sound)] = np.clip(np.round(sound * 32767), -32767, 32767).astype(np.int16)
    return padded, lengths


class TaskBatches(torch.utils.data.Dataset[list[Batch]]):
    """Item i is step i's batches, always the same: a short one and a long one."""

    def __init__(self, clips: list[voices.Spoken], seed: int, steps: int, sizes: tuple[int, int]) -> None:
        self.tasks = Tasks(clips, held_out=False)
        self.seed, self.steps, self.sizes = seed, steps, sizes

    def __len__(self) -> int:
        return self.steps

    @cached_property
    def collector(self) -> Collector:
        return Collector()

    def __getitem__(self, step: int) -> list[Batch]:
        rng = np.random.default_rng([self.seed, step])
        limit = int(rng.choice([3, 4, 6, 9]))
        return [
            self.collector.collect(
                [
                    surround(self.tasks.make(str(kind), rng, slices), rng)
                    for kind in rng.choice(list(shares), size, p=list(shares.values()))
                ]
            )
            for shares, size, slices in zip((SHORT, LONG), self.sizes, ((1, 1), (2, limit)), strict=True)
            if size
        ]


def held_out(
    clips: list[voices.Spoken], seed: int, sizes: dict[tuple[str, tuple[int, int]], int]
) -> list[Batch]:
    """Batches of the held-out side, one or more for each kind and number of slices."""
    tasks, collector = Tasks(clips, held_out=True), Collector()
    batches = []
    for number, ((kind, slices), size) in enumerate(sizes.items()):
        rng = np.random.default_rng([seed, 1_000_000 + number])
        for start in range(0, size, 64):
            made = [tasks.make(kind, rng, slices) for _ in range(min(64, size - start))]
            batches.append(collector.collect(made))
    return batches
