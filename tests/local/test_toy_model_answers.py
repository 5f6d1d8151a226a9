"""What the embedded default model answers under undivided vLLM. Needs vLLM; one engine, no Ray."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from tests import media, truth
from tests.asking import text, user
from toy_model import write
from training import phrases
from training.batches import Batch, Collector
from training.evaluate import TARGETS, held_out_tasks, part_of_message
from training.model import ToyModel
from training.tasks import KINDS, Task, Tasks
from training.voices import SENTENCES, Spoken

# The engine takes half a minute on two idle cores, and several on busy ones.
pytestmark = pytest.mark.timeout(900)

MAX_TOKENS = 96
EACH = 40
"""Held-out questions of each kind."""
LEAST_MARGIN = 0.1
"""In log probability, far above float32's rounding, which is 1e-4 here at most."""


@cache
def talk() -> list[truth.Question]:
    """Texts alone: what it says of itself, that it cannot do the rest, and that nothing was sent."""
    pairs = [(question, answer) for answer, questions in phrases.TALK.items() for question in questions[:3]]
    pairs += [(question, phrases.CANNOT) for question in phrases.UNKNOWN_QUESTIONS[:6]]
    pairs += [(phrases.ABOUT_PICTURE[0], phrases.NO_PICTURE), (phrases.ABOUT_SOUND[0], phrases.NO_SOUND)]
    return [truth.Question("talk", user(text(asked)), answer) for asked, answer in pairs]


@cache
def strange() -> list[truth.Question]:
    """Photographs, plain colours and sentences."""
    seen = [media.image_bytes(media.photo(name).resize((240, 180))) for name in media.PHOTOS]
    seen += [media.image_bytes(Image.new("RGB", (140, 140), colour)) for colour in ("white", "grey", "black")]
    parts = [(media.image_part(data), phrases.NO_SHAPE) for data in seen]
    for name in media.SPEECH:
        part = media.input_audio_part(media.speech_bytes(name), name.rpartition(".")[2])
        parts.append((part, phrases.NO_WORD))
    return [truth.Question("strange", user(dict(part), text("?")), answer) for part, answer in parts]


@cache
def questions() -> list[truth.Question]:
    """Those, and held-out ones of every kind as ``training.evaluate`` asks them; those with a sound last."""
    held_out = [
        truth.Question(kind, user(*_content(task)), task.answer)
        for kind in TARGETS
        for task in held_out_tasks(truth.spoken(), kind, EACH, seed=45)
    ]
    return sorted([*talk(), *strange(), *held_out], key=_sounds)


def _sounds(question: truth.Question) -> bool:
    return any(part["type"] == "input_audio" for part in question.messages[0]["content"])


@cache
def training_tasks() -> list[Task]:
    """One of every kind that training asks, media before the question, as the engine puts them."""
    words = [
        Spoken(_speech(seconds), said, "", 0, 0) for seconds in (0.6, 1.3) for said in ("one", SENTENCES[0])
    ]
    tasks, rng = Tasks(words, held_out=True), np.random.default_rng(3)
    sizes = {"shapes": (2, 6), "both": (2, 4)}
    made = [tasks.make(kind, rng, sizes.get(kind, (1, 1))) for kind in KINDS if kind != "long_sound"]
    for task in made:
        task.parts.sort(key=lambda part: isinstance(part, str))
    return made


def _speech(seconds: float) -> np.ndarray:
    return np.asarray(np.round(media.speech(seconds) * 32767), dtype=np.int16)


def _content(task: Task) -> list[dict[str, Any]]:
    return list(map(part_of_message, task.parts))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write.ensure(tmp_path_factory.mktemp("toy") / "checkpoint")


@pytest.fixture(scope="module")
def said(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The answers to the questions, then those to training's tasks."""
    place = tmp_path_factory.mktemp("undivided")
    request = {
        "folder": str(folder),
        "dtype": "float32",
        "max_tokens": MAX_TOKENS,
        "conversations": [question.messages for question in questions() if not _sounds(question)],
        # Sounds that the engine encodes together see a little of each other's padding.
        "alone": [question.messages for question in questions() if _sounds(question)]
        + [user(*_content(task)) for task in training_tasks()],
    }
    (place / "requests.json").write_text(json.dumps(request))
    script = Path(__file__).parent / "undivided.py"
    command = [sys.executable, str(script), str(place / "requests.json"), str(place / "answers.json")]
    run = subprocess.run(command, check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    return list(json.loads((place / "answers.json").read_text()))


Answered = list[tuple[truth.Question, dict[str, Any]]]


@pytest.fixture(scope="module")
def answered(said: list[dict[str, Any]]) -> Answered:
    return list(zip(questions(), said, strict=False))


def wrong(answered: Answered, name: str) -> list[tuple[str, str]]:
    """True answers and the other ones given, of the questions of this name."""
    return [(q.truth, a["text"]) for q, a in answered if q.name == name and a["text"] != q.truth]


def test_it_talks_about_itself(answered: Answered) -> None:
    """Every text gets its answer: what it can do, that it cannot do the rest, that there is no picture."""
    assert wrong(answered, "talk") == []


def test_it_says_what_it_does_not_know(answered: Answered) -> None:
    """Photographs, plain colours and sentences hold no shape and no word that it knows."""
    assert wrong(answered, "strange") == []


def test_it_sees_and_hears(answered: Answered) -> None:
    """Of held-out pictures, digits and words, alone and together, as many are right as training promises."""
    shares = {kind: 1 - len(wrong(answered, kind)) / EACH for kind in TARGETS}
    assert all(shares[kind] >= least for kind, least in TARGETS.items()), shares


def test_every_answer_ends_by_itself(answered: Answered) -> None:
    """No answer is cut off, and those about media are no longer than the tests of a crowd ask for."""
    assert {answer["finish"] for _, answer in answered} == {"stop"}
    assert all(len(a["ids"]) <= truth.LONGEST for q, a in answered if q.name not in ("talk", "text"))


def test_the_best_token_stands_clear_of_the_second(answered: Answered) -> None:
    """Rounding never decides: every step's best token leads by a log probability of over 0.1."""
    assert min(margin for _, answer in answered for margin in answer["margins"]) > LEAST_MARGIN


def _with_answer(task: Task, ids: list[int]) -> Batch:
    """The task's batch with these tokens as its answer."""
    collector = Collector()
    made = collector.prepare(task)
    made.answer = ids
    return collector.fill([made], made.needs).to(torch.device("cpu"))


def test_trainings_model_answers_what_the_engine_does(folder: Path, said: list[dict[str, Any]]) -> None:
    """With the same weights, training's model gives each task the engine's tokens, by nearly its margins."""
    model = ToyModel()
    model.load_state_dict(load_file(folder / "model.safetensors"))
    for task, expected in zip(training_tasks(), said[len(questions()) :], strict=True):
        with torch.no_grad():
            logits = model([_with_answer(task, expected["ids"])])[0][0]
        assert logits.argmax(1).tolist() == expected["ids"], task.kind
        best = logits.topk(2, dim=1).values
        assert (best[:, 0] - best[:, 1]).numpy() == pytest.approx(expected["margins"], abs=5e-3), task.kind
