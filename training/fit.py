"""The training loop: the encoders learn alone first, then everything; a CUDA graph replays each step."""

import copy
import math
import sys
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from training.batches import Batch
from training.export import write_weights
from training.learner import Learner
from training.model import ToyModel
from training.pool import Pool
from training.streams import STREAMS, Chunks
from training.supply import Supply
from training.tasks import MARKS
from training.voices import Spoken

ALONE = ("picture", "sound", "both")
"""Streams from which the encoders learn alone."""
TABLES = ("embed_tokens.weight", "position_embedding.weight", "embed_positions.weight")
"""Stay in float32: many positions add to the gradient of one row."""
RISE = 0.02
"""Share of the run, and then of the second phase, in which the learning rate rises."""
WARM_UP_STEPS, AHEAD = 3, 8


@dataclass(frozen=True)
class Options:
    """What a run is made of; the learning rate falls to zero at the last step or the deadline."""

    seed: int = 45
    steps: int = 100_000
    deadline_s: float = 105.0
    alone: float = 0.3  # share of the run in which the encoders learn alone, from the helping heads
    scale: float = 1.0  # of every stream's rows
    rate: float = 1.5e-3
    decay: float = 0.05
    kept: int = 300  # chunks that a step's rows are drawn from
    workers: int = 2
    report_every: int = 400
    save_every_s: float = 60.0


def _optimiser(learner: Learner, options: Options) -> torch.optim.AdamW:
    named = list(learner.named_parameters())
    matrices = [p for name, p in named if p.dim() > 1 and "embed" not in name and "query" not in name]
    rest = [p for name, p in named if p.dim() <= 1 or "embed" in name or "query" in name]
    groups = [{"params": matrices, "weight_decay": options.decay}, {"params": rest, "weight_decay": 0.0}]
    on_gpu = learner.device.type == "cuda"
    rate = torch.tensor(options.rate, device=learner.device) if on_gpu else options.rate
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.98), fused=on_gpu, capturable=on_gpu)


class Stepper:
    """Steps over rows drawn from the pools; on a GPU each step is one replay of a CUDA graph."""

    def __init__(self, learner: Learner, options: Options) -> None:
        self.learner, self.options = learner, options
        self.optimiser = _optimiser(learner, options)
        self.pools: dict[str, Pool] = {}
        self.indices: dict[str, Tensor] = {}
        self.help_weight = torch.zeros((), device=learner.device)
        self.terms: dict[str, Tensor] = {}
        self.graph: torch.cuda.CUDAGraph | None = None
        self.taken = 0

    def take(self, chunk: dict[str, Batch]) -> None:
        """Put a chunk's rows into the pools."""
        for name, made in chunk.items():
            batch = made.to(self.learner.device)
            if name not in self.pools:
                self.pools[name] = Pool(batch, self.options.kept * len(batch))
                self.indices[name] = torch.zeros(len(batch), dtype=torch.int64, device=self.learner.device)
            self.pools[name].put(batch)

    def step(self, rate: float, help_weight: float, alone: bool) -> None:
        """One step; the first few of a phase run without a graph, as warm-up."""
        for group in self.optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        self.help_weight.fill_(help_weight)
        for name, index in self.indices.items():
            index.random_(0, self.pools[name].filled)
        if self.graph is not None:
            self.graph.replay()
        elif self.learner.device.type == "cuda":
            self._warm_or_capture(alone)
        else:
            self.compute(alone)

    def begin_phase(self) -> None:
        """Forget the graph and the gradients: other losses follow."""
        self.graph, self.taken, self.terms = None, 0, {}
        self.optimiser.zero_grad(set_to_none=True)

    def _warm_or_capture(self, alone: bool) -> None:
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self.compute(alone)
        torch.cuda.current_stream().wait_stream(side)
        self.taken += 1
        if self.taken == WARM_UP_STEPS:
            self.optimiser.zero_grad(set_to_none=True)
            self.graph = torch.cuda.CUDAGraph()
            # The loader's threads pin memory meanwhile.
            with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):
                self.compute(alone)

    def compute(self, alone: bool) -> None:
        """Losses of all streams, gradients, and the optimiser's step."""
        self.optimiser.zero_grad(set_to_none=True)
        batches = [self.pools[name].draw(self.indices[name]) for name in (ALONE if alone else STREAMS)]
        terms = torch.func.functional_call(self.learner, self._weights(), (batches, alone))
        loss = self.help_weight * sum(terms[f"{name} loss"] for name in MARKS)
        if not alone:
            loss = loss + terms["answer loss"] + 0.02 * terms["quiet"]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.learner.parameters(), 1.0)
        self.optimiser.step()
        for key, value in terms.items():
            if key not in self.terms:
                self.terms[key] = torch.zeros((), device=value.device)
            self.terms[key] += value.detach()

    def _weights(self) -> dict[str, Tensor]:
        """The parameters as the step computes with them: bfloat16 on a GPU."""
        if self.learner.device.type != "cuda":
            return {}
        return {
            name: value if name.endswith(TABLES) else value.to(torch.bfloat16)
            for name, value in self.learner.named_parameters()
        }


def say(text: str) -> None:
    """A line of progress."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def rate_at(done: float, alone: float) -> float:
    """Share of the learning rate after a share of the run: each phase rises, the second then falls."""
    if done < alone:
        return min(1.0, (done + 1e-4) / RISE)
    joint = (done - alone) / (1 - alone)
    return min(1.0, (joint + 1e-4) / RISE, 0.5 * (1 + math.cos(math.pi * min(1.0, joint))))


def help_at(done: float, alone: float) -> float:
    """The helping heads' weight: all of it while the encoders learn alone, then less and less."""
    return 1.0 if done < alone else 0.3 * max(0.0, 1 - (done - alone) / (1 - alone))


def train(clips: list[Spoken], options: Options, device: torch.device, place: Path) -> ToyModel:
    """Train from seeded weights; the weights so far are written to ``place`` now and then."""
    begun = time.monotonic()
    with Supply(Chunks(clips, options.seed, options.scale), options.workers) as supply:
        learner = Learner(device, options.seed)
        stepper, progress = Stepper(learner, options), Progress(options, begun)
        alone = options.alone > 0
        for step in range(options.steps):
            if chunk := supply.take(wait=step == 0):
                stepper.take(chunk)
                progress.chunks += 1
            done = progress.done(step)
            if done >= 1:
                break
            if alone and done >= options.alone:
                progress.report(step, stepper.terms)
                alone = False
                stepper.begin_phase()
            stepper.step(options.rate * rate_at(done, options.alone), help_at(done, options.alone), alone)
            progress.pace()
            if (step + 1) % options.report_every == 0:
                progress.report(step + 1, stepper.terms)
            if progress.save_due():
                write_weights(copy.deepcopy(learner.model).cpu(), place / "so_far.safetensors")
    return learner.model


class Progress:
    """How far the run is, by steps or by the clock, and a line of it now and then."""

    def __init__(self, options: Options, begun: float) -> None:
        self.options, self.begun = options, begun
        self.saved = begun
        self.chunks = 0
        self.reported = 0
        self.queued: deque[torch.cuda.Event] = deque()

    def done(self, steps: int) -> float:
        """Share of the run after so many steps: 1 or more at its end."""
        return max(steps / self.options.steps, (time.monotonic() - self.begun) / self.options.deadline_s)

    def pace(self) -> None:
        """Run at most a few steps ahead of the device."""
        if not torch.cuda.is_available():
            return
        self.queued.append(torch.cuda.Event())
        self.queued[-1].record()
        if len(self.queued) > AHEAD:
            self.queued.popleft().synchronize()

    def save_due(self) -> bool:
        """Whether the weights so far were not written for long."""
        if time.monotonic() - self.saved < self.options.save_every_s:
            return False
        self.saved = time.monotonic()
        return True

    def report(self, step: int, terms: dict[str, Tensor]) -> None:
        """A line of the means since the last one."""
        count = max(1, step - self.reported)
        text = " ".join(f"{name} {float(value) / count:.3f}" for name, value in terms.items())
        for value in terms.values():
            value.zero_()
        self.reported = step
        past_s = time.monotonic() - self.begun
        say(f"step {step}, {past_s:.0f} s, {self.chunks} chunks made: {text}")
