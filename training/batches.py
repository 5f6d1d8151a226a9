"""Tasks to tensors: the prompt as the chat template and the processor make it, patches, samples, labels."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property

import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer
from torch import Tensor

from toy_model import configs as c
from toy_model import vocabulary, write
from toy_model.checkpoint_code import image_processing_minicpmo as pictures
from training import mel
from training.tasks import MARKS, Task

IGNORED = -100
ABSENT = -1
PAD = "<|endoftext|>"
PICTURE_MARKS = [name for name in MARKS if name != "word"]


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
    total = _tokens(samples)
    runs = [min(10, total - start) for start in range(0, total, 10)]
    return "".join(f"<|audio_start|>{'<unk>' * count}<|audio_end|>" for count in runs)


def _tokens(samples: int) -> int:
    return mel.tokens_of(mel.frames_of(samples))


@dataclass(frozen=True)
class Limits:
    """The most that a row of a batch holds: the sizes of its tensors."""

    tokens: int  # of prompt and answer
    answer: int
    slices: int
    patches: int  # in a slice
    sounds: int
    samples: int  # in a sound

    def hold(self, other: "Limits") -> bool:
        """Whether nothing of the other is more."""
        return all(getattr(self, f.name) >= getattr(other, f.name) for f in fields(self))


@dataclass
class Batch:
    """Rows of equal size; a slice or sound that a row does not have is ABSENT and one patch or frame long."""

    ids: Tensor  # (rows, tokens) int64
    answer_at: Tensor  # (rows,) int64, the place whose next token is the answer's first
    labels: Tensor  # (rows, answer) int64, IGNORED after the end
    patches: Tensor  # (rows, slices, patches, 3 * patch * patch) uint8
    grids: Tensor  # (rows, slices, 2) int64
    slice_at: Tensor  # (rows, slices) int64, the first of a slice's places in its row
    samples: Tensor  # (rows, sounds, samples) int16; none once the features are made
    features: Tensor  # (rows, sounds, bins, frames) float32; none before
    frames: Tensor  # (rows, sounds) int64
    sound_at: Tensor  # (rows, sounds) int64
    picture_marks: Tensor  # (rows, marks) int64, of the first picture
    sound_marks: Tensor  # (rows,) int64, of the first sound

    def __len__(self) -> int:
        return len(self.ids)

    def tensors(self) -> dict[str, Tensor]:
        """All of them, by name."""
        return {f.name: getattr(self, f.name) for f in fields(self)}

    def pin_memory(self) -> "Batch":
        """The same in memory that a device can fetch from by itself."""
        return Batch(**{name: value.pin_memory() for name, value in self.tensors().items()})

    def to(self, device: torch.device) -> "Batch":
        """The same on a device, with the sounds' features."""
        moved = Batch(**{name: v.to(device, non_blocking=True) for name, v in self.tensors().items()})
        if not moved.samples.numel():
            return moved
        features = mel.features(moved.samples.flatten(0, 1).float() / 32768)
        # The silence behind the longest sound is two frames at least, and no sound's.
        most = min(features.shape[2] - 2, 2 * c.AUDIO_POSITIONS)
        features = features[..., :most].unflatten(0, moved.samples.shape[:2])
        return replace(moved, samples=moved.samples[..., :0], features=features)

    def slice_places(self) -> Tensor:
        """Where in the flat ids each slice's embeddings stand, (rows, slices, queries); absent: past all."""
        rows, length = self.ids.shape
        row = torch.arange(rows, device=self.ids.device)[:, None, None] * length
        places = row + self.slice_at[..., None] + torch.arange(c.QUERIES, device=self.ids.device)
        return torch.where(self.slice_at[..., None] == ABSENT, rows * length, places)

    def sound_places(self, most: int) -> Tensor:
        """The same of each sound's first ``most`` embeddings, (rows, sounds, most); two marks part tens."""
        rows, length = self.ids.shape
        row = torch.arange(rows, device=self.ids.device)[:, None, None] * length
        number = torch.arange(most, device=self.ids.device)
        places = row + self.sound_at[..., None] + number + 2 * (number // 10)
        there = (self.sound_at[..., None] != ABSENT) & (number < mel.tokens_of(self.frames)[..., None])
        return torch.where(there, places, rows * length)


@dataclass
class Prepared:
    """One task in pieces that a row is filled with."""

    prompt: list[int]
    answer: list[int]
    slices: list[np.ndarray]  # (patches, 3 * patch * patch) uint8 each
    grids: list[tuple[int, int]]
    sounds: list[np.ndarray]  # (samples,) int16 each
    media: list[tuple[str, int]]  # kind and number of embeddings, in the prompt's order
    marks: dict[str, int]

    @property
    def needs(self) -> Limits:
        """The least limits that hold it; sounds are followed by a window of silence, in whole frames."""
        longest = max((len(sound) for sound in self.sounds), default=0)
        return Limits(
            tokens=len(self.prompt) + len(self.answer),
            answer=len(self.answer),
            slices=len(self.slices),
            patches=max((len(piece) for piece in self.slices), default=0),
            sounds=len(self.sounds),
            samples=-(-(longest + mel.WINDOW) // mel.HOP) * mel.HOP if longest else 0,
        )


class Collector:
    """Puts tasks together."""

    def __init__(self) -> None:
        self.prompts = Prompts()

    def prepare(self, task: Task) -> Prepared:
        """The task's tokens, patches and samples."""
        end = self.prompts.ids["<|im_end|>"]
        made = Prepared(
            self.prompts.encode(self.prompts.prompt(task)),
            [*self.prompts.encode(task.answer), end],
            [], [], [], [], task.marks,
        )  # fmt: skip
        for part in task.parts:
            if isinstance(part, Image.Image):
                pieces = pictures.cut(part, 9, c.SLICE_SIDE, c.PATCH)
                made.slices += [as_patches(np.asarray(piece)) for piece in pieces]
                made.grids += [(piece.height // c.PATCH, piece.width // c.PATCH) for piece in pieces]
                made.media += [("slice", c.QUERIES)] * len(pieces)
            elif isinstance(part, np.ndarray):
                made.sounds.append(np.clip(np.round(part * 32767), -32767, 32767).astype(np.int16))
                made.media.append(("sound", _tokens(len(part))))
        return made

    def collect(self, tasks: list[Task]) -> Batch:
        """The tasks as a batch that just holds them."""
        made = [self.prepare(task) for task in tasks]
        most = [max(getattr(one.needs, f.name) for one in made) for f in fields(Limits)]
        return self.fill(made, Limits(*most))

    def fill(self, made: Sequence[Prepared], limits: Limits) -> Batch:
        """A batch of these limits, which must hold each."""
        batch = _empty(len(made), limits, self.prompts.ids[PAD])
        for row, one in enumerate(made):
            self._fill_row(batch, row, one)
        return batch

    def _fill_row(self, batch: Batch, row: int, one: Prepared) -> None:
        tokens = [*one.prompt, *one.answer]
        batch.ids[row, : len(tokens)] = torch.tensor(tokens)
        batch.answer_at[row] = len(one.prompt) - 1
        batch.labels[row, : len(one.answer)] = torch.tensor(one.answer)
        for number, (piece, grid) in enumerate(zip(one.slices, one.grids, strict=True)):
            batch.patches[row, number, : len(piece)] = torch.from_numpy(piece)
            batch.grids[row, number] = torch.tensor(grid)
        for number, sound in enumerate(one.sounds):
            batch.samples[row, number, : len(sound)] = torch.from_numpy(sound)
            batch.frames[row, number] = mel.frames_of(len(sound))
        places = np.flatnonzero(np.array(one.prompt) == self.prompts.ids["<unk>"])
        counts, starts = {"slice": 0, "sound": 0}, {"slice": batch.slice_at, "sound": batch.sound_at}
        for kind, embeddings in one.media:
            if embeddings:
                starts[kind][row, counts[kind]] = int(places[0])
            counts[kind] += 1
            places = places[embeddings:]
        for number, name in enumerate(PICTURE_MARKS):
            batch.picture_marks[row, number] = one.marks.get(name, IGNORED)
        batch.sound_marks[row] = one.marks.get("word", IGNORED)


def _empty(rows: int, limits: Limits, pad: int) -> Batch:
    width = 3 * c.PATCH**2
    return Batch(
        ids=torch.full((rows, limits.tokens), pad),
        answer_at=torch.zeros(rows, dtype=torch.int64),
        labels=torch.full((rows, limits.answer), IGNORED),
        patches=torch.zeros((rows, limits.slices, limits.patches, width), dtype=torch.uint8),
        grids=torch.ones((rows, limits.slices, 2), dtype=torch.int64),
        slice_at=torch.full((rows, limits.slices), ABSENT),
        samples=torch.zeros((rows, limits.sounds, limits.samples), dtype=torch.int16),
        features=torch.zeros((rows, limits.sounds, c.MEL_BINS, 0)),
        frames=torch.ones((rows, limits.sounds), dtype=torch.int64),
        sound_at=torch.full((rows, limits.sounds), ABSENT),
        picture_marks=torch.full((rows, len(PICTURE_MARKS)), IGNORED),
        sound_marks=torch.full((rows,), IGNORED),
    )


def as_patches(pixels: np.ndarray) -> np.ndarray:
    """(height, width, 3) to (patches, 3 * patch * patch), each as the patch convolution reads it."""
    strip = pictures.to_strip(pixels, c.PATCH)
    return strip.reshape(3, c.PATCH, -1, c.PATCH).transpose(2, 0, 1, 3).reshape(-1, 3 * c.PATCH**2)
