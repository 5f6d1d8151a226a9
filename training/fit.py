"""Training: mixed batches, the answers' cross entropy, and helping heads on the encoders that fade out."""

import math
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from toy_model import configs as c
from toy_model import vocabulary
from training import mel
from training.batches import IGNORED, PICTURE_MARKS, Batch, TaskBatches, held_out
from training.model import ToyModel
from training.tasks import MARKS
from training.voices import Spoken

WARM_UP = 0.03
QUIET_BY = 6.0
"""Logits of blanks stay this far below the mean of all, so that constrained decoding takes them last."""


@dataclass(frozen=True)
class Options:
    """What a run is made of; the learning rate falls to zero at the last step or the deadline."""

    seed: int = 45
    steps: int = 20_000
    deadline_s: float = 840.0
    short_batch: int = 384
    long_batch: int = 32
    rate: float = 1.5e-3
    decay: float = 0.05
    uses: int = (
        8  # steps for each pair of batches that is made: making them takes longer than a step on a GPU
    )
    kept: int = 256  # pairs of batches that a step draws from
    workers: int = 2
    report_every: int = 100


class Helpers(nn.Module):
    """Linear readings of what is in a picture or a sound from the mean of its embeddings; not kept."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({name: nn.Linear(c.HIDDEN, len(values)) for name, values in MARKS.items()})

    def loss(self, name: str, states: Tensor, marks: Tensor) -> Tensor:
        """Mean cross entropy over the marks that are known."""
        logits = self.heads[name](states).float()
        total = F.cross_entropy(logits, marks, ignore_index=IGNORED, reduction="sum")
        return total / (marks != IGNORED).sum().clamp(min=1)


class Learner:
    """The model, its helpers and what a batch costs."""

    def __init__(self, device: torch.device, seed: int) -> None:
        self.device = device
        torch.manual_seed(seed)
        self.model = ToyModel()
        self.model.start(seed)
        self.model.to(device)
        self.helpers = Helpers().to(device)

    @cached_property
    def blanks(self) -> Tensor:
        """Ids of tokens that print as nothing but white space."""
        signs = {vocabulary.spell(blank) for blank in (" ", "\t", "\n", "\r")}
        ids = [number for token, number in vocabulary.vocabulary().items() if set(token) <= signs]
        return torch.tensor(ids, device=self.device)

    def forward(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Logits (answers' tokens, vocabulary), their labels, and embeddings of slices and of sounds."""
        patches = batch.patches.to(torch.float32) / 127.5 - 1.0
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda"):
            seen = patches.new_zeros(0, 1, c.HIDDEN)
            heard = seen
            if len(patches):
                seen = self.model.see(patches, batch.grids)
            if len(batch.sounds):
                with torch.autocast(self.device.type, enabled=False):
                    sounds = mel.features(batch.sounds.to(torch.float32) / 32768)
                heard = self.model.hear(sounds, mel.frames_of(batch.samples))
            states = self.model.states(
                batch.ids,
                seen.flatten(0, 1), batch.seen_at,
                heard.flatten(0, 1)[batch.heard_from], batch.heard_at,
            ).flatten(0, 1)  # fmt: skip
            labels = batch.labels.flatten()
            kept = torch.nonzero(labels != IGNORED)[:, 0]
            return self.model.llm.lm_head(states[kept]).float(), labels[kept], seen.float(), heard.float()

    def loss(self, batch: Batch, help_weight: float) -> tuple[Tensor, dict[str, Tensor]]:
        """What to minimise, and its terms for the log."""
        logits, labels, seen, heard = self.forward(batch)
        answer = F.cross_entropy(logits, labels)
        quiet = F.relu(logits[:, self.blanks] - logits.mean(1, keepdim=True).detach() + QUIET_BY).mean()
        help_loss = answer.new_zeros(())
        if help_weight:
            pictures = seen[batch.overviews].mean(1)
            for number, name in enumerate(PICTURE_MARKS):
                if len(pictures):
                    help_loss = help_loss + self.helpers.loss(name, pictures, batch.picture_marks[:, number])
            if len(heard):
                help_loss = help_loss + 2 * self.helpers.loss("word", _means(heard, batch), batch.sound_marks)
        total = answer + 0.02 * quiet + help_weight * help_loss
        return total, {"answer": answer.detach(), "help": help_loss.detach(), "quiet": quiet.detach()}


def _means(heard: Tensor, batch: Batch) -> Tensor:
    """Mean embedding of each sound, padding left out."""
    counts = torch.zeros(heard.shape[:2], device=heard.device).flatten()
    counts = counts.index_fill(0, batch.heard_from, 1.0).view(heard.shape[:2])
    return (heard * counts[..., None]).sum(1) / counts.sum(1, keepdim=True).clamp(min=1)


def _optimiser(learner: Learner, options: Options) -> torch.optim.AdamW:
    named = [*learner.model.named_parameters(), *learner.helpers.named_parameters()]
    matrices = [p for name, p in named if p.dim() > 1 and "embed" not in name and "query" not in name]
    rest = [p for name, p in named if p.dim() <= 1 or "embed" in name or "query" in name]
    groups = [{"params": matrices, "weight_decay": options.decay}, {"params": rest, "weight_decay": 0.0}]
    fused = learner.device.type == "cuda"
    return torch.optim.AdamW(groups, lr=options.rate, betas=(0.9, 0.97), fused=fused)


def _rate_at(done: float) -> float:
    """Share of the learning rate after a share of the run: a short rise, then half a cosine to zero."""
    if done < WARM_UP:
        return done / WARM_UP
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (done - WARM_UP) / (1 - WARM_UP))))


def say(text: str) -> None:
    """A line of progress."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def train(clips: list[Spoken], options: Options, device: torch.device, place: Path) -> ToyModel:
    """Train from seeded weights; a checkpoint is written to ``place`` at every tenth of the run."""
    learner = Learner(device, options.seed)
    optimiser = _optimiser(learner, options)
    progress = Progress(options)
    saved = 0.0
    for step, batches in enumerate(_supply(clips, options, device, progress)):
        done = progress.done(step + 1)
        for group in optimiser.param_groups:
            group["lr"] = options.rate * _rate_at(done)
        progress.add(step + 1, _step(learner, optimiser, batches, 0.3 * max(0.0, 1 - done / 0.6)))
        if done - saved >= 0.1 or done >= 1:
            torch.save(learner.model.state_dict(), place / "toy.pt")
            saved = done
        if done >= 1:
            break
    return learner.model


def _step(
    learner: Learner, optimiser: torch.optim.Optimizer, batches: list[Batch], help_weight: float
) -> dict[str, Tensor]:
    """One step over all of the batches; their weights are the roots of their sizes."""
    sums: dict[str, Tensor] = {}
    for batch in batches:
        share = len(batch.kinds) ** 0.5 / sum(len(b.kinds) ** 0.5 for b in batches)
        loss, terms = learner.loss(batch, help_weight)
        (loss * share).backward()
        sums = {name: value * share + sums.get(name, 0.0) for name, value in terms.items()}
    torch.nn.utils.clip_grad_norm_([*learner.model.parameters(), *learner.helpers.parameters()], 1.0)
    optimiser.step()
    optimiser.zero_grad(set_to_none=True)
    return sums


class Progress:
    """How far the run is, by steps or by the clock, and a line of it now and then."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self.begun = time.monotonic()
        self.waited_s = 0.0
        self.sums: dict[str, Tensor] = {}

    def done(self, steps: int) -> float:
        """Share of the run after so many steps: 1 or more at its end."""
        return max(steps / self.options.steps, (time.monotonic() - self.begun) / self.options.deadline_s)

    def add(self, step: int, terms: dict[str, Tensor]) -> None:
        """Count a step's losses in."""
        self.sums = {name: value + self.sums.get(name, 0.0) for name, value in terms.items()}
        every = self.options.report_every
        if step % every == 0:
            means = {name: f"{float(value) / every:.4f}" for name, value in self.sums.items()}
            past_s = time.monotonic() - self.begun
            say(f"step {step} {means} {past_s:.0f} s, of them {self.waited_s:.0f} s waiting for data")
            self.sums = {}


def _supply(
    clips: list[Spoken], options: Options, device: torch.device, progress: Progress
) -> Iterator[list[Batch]]:
    """Each step's batches on the device: a new pair every ``uses`` steps, else one drawn from those kept."""
    made = -(-options.steps // options.uses)
    data = TaskBatches(clips, options.seed, made, (options.short_batch, options.long_batch))
    kept: list[list[Batch]] = []
    rng = np.random.default_rng([options.seed, 2])
    fresh = iter(_loader(data, options, device))
    for step in range(options.steps):
        if step % options.uses:
            yield kept[int(rng.integers(len(kept)))]
            continue
        asked = time.monotonic()
        pair = [batch.to(device) for batch in next(fresh)]
        progress.waited_s += time.monotonic() - asked
        kept = [*kept[-options.kept + 1 :], pair]
        yield pair


def _loader(data: TaskBatches, options: Options, device: torch.device) -> Iterable[list[Batch]]:
    return torch.utils.data.DataLoader(
        data, batch_size=None, shuffle=False, num_workers=options.workers,
        prefetch_factor=3 if options.workers else None, persistent_workers=False,
        pin_memory=device.type == "cuda",
    )  # fmt: skip


@torch.no_grad()
def exact(model: ToyModel, device: torch.device, batches: list[Batch]) -> dict[str, tuple[int, int]]:
    """For each kind, answers whose every token is the likeliest (so greedy decoding gives them), of all."""
    learner = Learner(device, 0)
    learner.model = model.eval()
    counts: dict[str, tuple[int, int]] = {}
    for batch in batches:
        moved = batch.to(device)
        logits, labels, _, _ = learner.forward(moved)
        wrong = logits.argmax(1) != labels
        rows = torch.nonzero(moved.labels.flatten() != IGNORED)[:, 0] // moved.labels.shape[1]
        bad = torch.zeros(len(batch.kinds), device=device).index_add(0, rows, wrong.float()) > 0
        for kind, failed in zip(batch.kinds, bad.tolist(), strict=True):
            right, asked = counts.get(kind, (0, 0))
            counts[kind] = (right + (not failed), asked + 1)
    return counts


HELD_OUT_SIZES = {
    ("shapes", (1, 1)): 512,
    ("shapes", (2, 9)): 256,
    ("asked", (1, 1)): 128,
    ("digit", (1, 1)): 384,
    ("word", (1, 1)): 512,
    ("both", (1, 1)): 512,
    ("both", (2, 9)): 64,
    ("lone", (1, 1)): 128,
    ("nothing_seen", (1, 1)): 64,
    ("nothing_heard", (1, 1)): 128,
    ("text", (1, 1)): 256,
    ("long_sound", (1, 1)): 32,
    ("two", (1, 1)): 64,
}


def report(model: ToyModel, clips: list[Spoken], seed: int, device: torch.device) -> dict[str, str]:
    """Exact answers on the held-out side, by kind and slices, as "right of asked"."""
    lines = {}
    for key, size in HELD_OUT_SIZES.items():
        counts = exact(model, device, held_out(clips, seed, {key: size}))
        for kind, (right, asked) in counts.items():
            lines[f"{kind} {key[1]}"] = f"{right} of {asked} = {right / asked:.3f}"
    return lines
