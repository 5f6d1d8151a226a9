"""What a batch costs: the answers' cross entropy, and helping heads that read the encoders' embeddings."""

from collections.abc import Sequence
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from toy_model import configs as c
from toy_model import vocabulary
from training import mel
from training.batches import IGNORED, PICTURE_MARKS, Batch
from training.model import ToyModel
from training.tasks import MARKS

QUIET_BY = 6.0
"""Logits of blanks stay this far below the mean of all, so that constrained decoding takes them last."""
QUERIES_OF_A_MARK = c.QUERIES // len(PICTURE_MARKS)


class Helpers(nn.Module):
    """Linear readings of what is in a picture or a sound from its embeddings; not kept.

    Each mark of a picture is read from queries of its own, so the decoder finds it in one place.
    """

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({name: nn.Linear(c.HIDDEN, len(values)) for name, values in MARKS.items()})

    def readings(
        self, batches: Sequence[Batch], seen: list[Tensor], heard: list[Tensor]
    ) -> dict[str, tuple[Tensor, Tensor]]:
        """Logits and truths of each mark, of each row's first picture and sound."""
        read = {}
        groups = torch.cat(
            [s[:, 0].unflatten(1, (-1, QUERIES_OF_A_MARK)).mean(2) for s in seen if s.shape[1]]
        )
        marks = torch.cat([b.picture_marks for b in batches if b.patches.shape[1]])
        for number, name in enumerate(PICTURE_MARKS):
            read[name] = (self.heads[name](groups[:, number]).float(), marks[:, number])
        means = torch.cat([_mean(h, b) for h, b in zip(heard, batches, strict=True) if h.shape[1]])
        marks = torch.cat([b.sound_marks for b in batches if b.frames.shape[1]])
        read["word"] = (self.heads["word"](means).float(), marks)
        return read


def _mean(heard: Tensor, batch: Batch) -> Tensor:
    """The mean embedding of each row's first sound."""
    number = torch.arange(heard.shape[2], device=heard.device)
    there = (number < mel.tokens_of(batch.frames[:, :1]))[..., None]
    return (heard[:, 0] * there).sum(1) / there.sum(1).clamp(min=1)


class Learner(nn.Module):
    """The model, its helpers and what a batch costs."""

    def __init__(self, device: torch.device, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.model = ToyModel()
        self.model.start(seed)
        self.helpers = Helpers()
        self.to(device)
        self.device = device

    @cached_property
    def blanks(self) -> Tensor:
        """Ids of tokens that print as nothing but white space."""
        signs = {vocabulary.spell(blank) for blank in (" ", "\t", "\n", "\r")}
        ids = [number for token, number in vocabulary.vocabulary().items() if set(token) <= signs]
        return torch.tensor(ids, device=self.device)

    def forward(self, batches: Sequence[Batch], alone: bool) -> dict[str, Tensor]:
        """Mean losses and shares of what is right, of each mark and, unless ``alone``, of the answers."""
        terms: dict[str, Tensor] = {}
        if alone:
            seen, heard = self.model.encode(batches)
        else:
            logits, seen, heard = self.model(batches)
            labels = torch.cat([batch.labels for batch in batches])
            terms = self._answers(logits.flatten(0, 1).float(), labels.flatten())
        for name, (logits, marks) in self.helpers.readings(batches, seen, heard).items():
            terms[f"{name} loss"], terms[f"{name} right"] = _loss(logits, marks)
        return terms

    def _answers(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        known = labels != IGNORED
        above = logits.index_select(1, self.blanks) - logits.mean(1, keepdim=True).detach()
        quiet = (F.relu(above + QUIET_BY).mean(1) * known).sum() / known.sum()
        loss, right = _loss(logits, labels)
        return {"answer loss": loss, "answer right": right, "quiet": quiet}


def _loss(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Mean cross entropy and share of right ones, among labels that are known."""
    known = labels != IGNORED
    count = known.sum().clamp(min=1)
    loss = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
    return loss / count, ((logits.argmax(1) == labels) & known).sum() / count
