"""Questions about media of which is known what is true, no two of them alike in it.

Pictures are drawn, digits come from the held-out part of scikit-learn's, words from tests/data/spoken.npz:
the trained model saw and heard none of them. A mix-up of two questions is seen in the words of their answers.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import cycle
from typing import Any

import numpy as np

from tests.asking import Said, ask, text, user
from tests.media import DATA
from tests.servers import Server, client
from training import scenes, voices
from training.evaluate import part_of_message
from training.tasks import Tasks

LONGEST = 24
"""Tokens of the longest answer to a picture and a word, its end included: 19, and room."""
MIXED = (("shapes", (1, 1)), ("both", (1, 1)), ("word", (1, 1)), ("shapes", (2, 4)), ("digit", (1, 1)))
"""Kinds of a crowd, in turn; a kind whose truths are used up gives way to the others."""
DRAWS = 60


@dataclass(frozen=True)
class Question:
    """A message, a name for a report, and the one true answer."""

    name: str
    messages: list[dict[str, Any]]
    truth: str


@cache
def spoken() -> list[voices.Spoken]:
    """Every word twice, by two voices."""
    return voices.load(DATA / "spoken.npz")


def crowd(seed: int) -> Iterator[Question]:
    """Pictures of one slice and of several, digits, words, and pictures with words, without end."""
    tasks, rng = Tasks(spoken(), held_out=True), np.random.default_rng(seed)
    told: set[str] = set()
    for number, (kind, slices) in enumerate(cycle(MIXED)):
        for _ in range(DRAWS):
            task = tasks.make(kind, rng, slices)
            if task.answer not in told:
                told.add(task.answer)
                parts = [part_of_message(part) for part in task.parts]
                yield Question(f"{kind} {number}", user(*parts), task.answer)
                break


def pictures(sizes: Sequence[tuple[int, int]], seed: int) -> Iterator[Question]:
    """Pictures of these sizes (width, height) in turn, without end."""
    rng, told = np.random.default_rng(seed), set[str]()
    for number, size in enumerate(cycle(sizes)):
        scene = scenes.random_scene(rng, size, 1 + number % 2)
        image = part_of_message(scenes.draw(scene, rng))
        truth = f"The picture shows {scene.sentence}."
        if truth not in told:
            told.add(truth)
            yield Question(f"picture {number}", user(image, text("What is in the picture?")), truth)


def words(seed: int) -> Iterator[Question]:
    """One clip of every word, in some order."""
    tasks, rng = Tasks(spoken(), held_out=True), np.random.default_rng(seed)
    told: set[str] = set()
    while len(told) < len(voices.WORDS):
        task = tasks.make("word", rng)
        if task.answer not in told:
            told.add(task.answer)
            yield Question(f"word {len(told)}", user(*map(part_of_message, task.parts)), task.answer)


@dataclass(frozen=True)
class Known:
    """A question whose answer, asked alone, was the true one."""

    question: Question
    said: Said


def right_alone(reference: Server, questions: Iterable[Question], count: int) -> list[Known]:
    """The first so many questions that a trusted server answers truly, asked one at a time.

    The model is not right in every case, so what holds is: right alone is right in the crowd. Raises where
    fewer than three of four are right.
    """
    found: list[Known] = []
    wrong: list[str] = []
    for question in questions:
        said = ask(client(reference), question.messages, LONGEST)
        if said.text == question.truth:
            found.append(Known(question, said))
        else:
            wrong.append(f"{question.name}: {said.text!r} instead of {question.truth!r}")
        if len(found) == count:
            return found
        assert len(wrong) <= 4 + count // 4, f"{len(found)} of {count} found, wrong alone: {wrong}"
    raise AssertionError(f"only {len(found)} of {count}, wrong alone: {wrong}")


def fault(known: Known, said: Said, others: Iterable[Known]) -> str | None:
    """What is wrong with an answer, naming whose it is where it is another's; None where nothing is."""
    if said == known.said:
        return None
    named = f"{known.question.name} ({known.question.truth!r}) was answered {said.text!r}"
    for other in others:
        if said.text == other.question.truth and other != known:
            return f"{named}, the answer to {other.question.name}"
    return f"{named}, as {said} and not {known.said}"
