"""What the embedded default model answers under undivided vLLM. Needs vLLM; one engine, no Ray."""

import base64
import io
import json
import subprocess
import sys
import wave
from collections.abc import Iterable
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from safetensors.torch import load_file

from tests import media
from toy_model import write
from training.batches import Batch, Collector
from training.model import ToyModel
from training.tasks import KINDS, Task, Tasks
from training.voices import SENTENCES, Spoken

# The engine takes half a minute on two idle cores, and several on busy ones.
pytestmark = pytest.mark.timeout(900)

MAX_TOKENS = 48
LEAST_TOKENS = 8
# A margin in log probability far above float32's rounding, which is 1e-4 here at most (README of toy_model).
CLEAR_MARGIN, LEAST_MARGIN = 0.1, 1e-3
RATE = 16_000
QUESTION = "What do you see and hear?"


def text(value: str = QUESTION) -> dict[str, Any]:
    return {"type": "text", "text": value}


def picture(image: Image.Image) -> dict[str, Any]:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    data = base64.b64encode(buffer.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def drawn(kind: str, colour: str, size: tuple[int, int] = (120, 100)) -> dict[str, Any]:
    image = Image.new("RGB", size, "white")
    width, height = size
    box = (width * 0.2, height * 0.2, width * 0.8, height * 0.8)
    draw = ImageDraw.Draw(image)
    if kind == "circle":
        draw.ellipse(box, fill=colour)
    elif kind == "square":
        draw.rectangle(box, fill=colour)
    else:
        draw.polygon([(width / 2, box[1]), (box[0], box[3]), (box[2], box[3])], fill=colour)
    return picture(image)


def sound(samples: np.ndarray) -> dict[str, Any]:
    return wav((samples * 32767).astype("<i2"))


def wav(samples: np.ndarray) -> dict[str, Any]:
    buffer = io.BytesIO()
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(samples.tobytes())
    data = base64.b64encode(buffer.getvalue()).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


def sweep(start_hz: float, end_hz: float, seconds: float = 1.5) -> dict[str, Any]:
    times = np.arange(int(RATE * seconds)) / RATE
    phase = start_hz * times + (end_hz - start_hz) * times**2 / (2 * seconds)
    return sound(0.5 * np.sin(2 * np.pi * phase))


def conversations() -> dict[str, list[dict[str, Any]]]:
    """The content of one user message for each case."""
    circle, tone = drawn("circle", "red"), sweep(440, 440)
    cases = {
        f"{colour} {kind}": [drawn(kind, colour), text()]
        for kind in ("circle", "square", "triangle")
        for colour in ("red", "green", "blue", "black")
    }
    for colour in ("white", "grey", "black", "red"):
        cases[f"plain {colour}"] = [picture(Image.new("RGB", (140, 140), colour)), text()]
    for size in ((60, 60), (300, 200), (640, 480), (900, 100), (1300, 900)):
        cases[f"circle of {size}"] = [drawn("circle", "red", size), text()]
    for pitch in (220, 440, 880, 3000):
        cases[f"tone of {pitch} Hz"] = [sweep(pitch, pitch), text()]
    for seconds in (0.2, 0.5, 5, 30, 35):
        cases[f"tone of {seconds} s"] = [sweep(440, 440, seconds), text()]
    cases["rising"] = [sweep(200, 2000), text()]
    cases["falling"] = [sweep(2000, 200), text()]
    cases["silence"] = [sound(np.zeros(RATE)), text()]
    cases["noise"] = [sound(np.random.RandomState(0).uniform(-0.3, 0.3, RATE)), text()]
    cases["picture, sound"] = [circle, tone, text()]
    cases["sound, picture"] = [tone, circle, text()]
    cases["two pictures"] = [circle, drawn("square", "blue"), text()]
    for words in (QUESTION, "What do you see?", "Hello", "hello", "Name the colour.", "Count to ten.", "a"):
        cases[f"text: {words}"] = [text(words)]
    return cases


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
    """A task's message; samples are rounded to 16 bits as training rounds them."""
    return [
        text(part)
        if isinstance(part, str)
        else picture(part)
        if isinstance(part, Image.Image)
        else wav(np.round(part * 32767).astype("<i2"))
        for part in task.parts
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write.ensure(tmp_path_factory.mktemp("toy") / "checkpoint")


@pytest.fixture(scope="module")
def said(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The answers to the cases, then those to training's tasks."""
    place = tmp_path_factory.mktemp("undivided")

    def messages(contents: Iterable[Any]) -> list[Any]:
        return [[{"role": "user", "content": content}] for content in contents]

    request = {
        "folder": str(folder),
        "dtype": "float32",
        "max_tokens": MAX_TOKENS,
        "conversations": messages(conversations().values()),
        # Sounds that the engine encodes together see a little of each other's padding.
        "alone": messages(map(_content, training_tasks())),
    }
    (place / "requests.json").write_text(json.dumps(request))
    script = Path(__file__).parent / "undivided.py"
    command = [sys.executable, str(script), str(place / "requests.json"), str(place / "answers.json")]
    run = subprocess.run(command, check=False, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr[-3000:]
    return list(json.loads((place / "answers.json").read_text()))


@pytest.fixture(scope="module")
def answers(said: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return dict(zip(conversations(), said, strict=False))


def test_no_answer_is_empty(answers: dict[str, dict[str, Any]]) -> None:
    """Every answer has at least eight tokens and is made of words."""
    short = {name: a["text"] for name, a in answers.items() if len(a["ids"]) < LEAST_TOKENS}
    assert not short
    assert all(a["text"].replace(" ", "").replace(".", "").isalpha() for a in answers.values())


def test_answers_differ_pairwise(answers: dict[str, dict[str, Any]]) -> None:
    """No two inputs get the same answer: other pictures, sounds, orders or words, or no media at all."""
    starts = {name: a["ids"][:LEAST_TOKENS] for name, a in answers.items()}
    # A steady tone of 35 s begins as one of 30 s does: compared on the whole.
    same = [(a, b) for a, b in combinations(answers, 2) if answers[a]["ids"] == answers[b]["ids"]]
    alike = [(a, b) for a, b in combinations(answers, 2) if starts[a] == starts[b]]
    assert not same
    assert alike in ([], [("tone of 30 s", "tone of 35 s")])


def test_answers_do_not_repeat_one_word(answers: dict[str, dict[str, Any]]) -> None:
    """An answer goes on changing: at least half of its tokens are different ones."""
    dull = {name: a["text"] for name, a in answers.items() if len(set(a["ids"])) * 2 < len(a["ids"])}
    assert not dull


def test_some_answers_end_by_themselves(answers: dict[str, dict[str, Any]]) -> None:
    """Within the tokens asked for some answers come to their end and others are cut off."""
    assert {a["finish"] for a in answers.values()} == {"stop", "length"}


def test_the_best_token_stands_clear_of_the_second(answers: dict[str, dict[str, Any]]) -> None:
    """Rounding never decides: every margin is over 1e-3, and 95 of 100 are over 0.1."""
    margins = np.array([margin for a in answers.values() for margin in a["margins"]])
    assert margins.min() > LEAST_MARGIN
    assert (margins > CLEAR_MARGIN).mean() > 0.95


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
    for task, expected in zip(training_tasks(), said[len(conversations()) :], strict=True):
        with torch.no_grad():
            logits = model([_with_answer(task, expected["ids"])])[0][0]
        assert logits.argmax(1).tolist() == expected["ids"], task.kind
        best = logits.topk(2, dim=1).values
        assert (best[:, 0] - best[:, 1]).numpy() == pytest.approx(expected["margins"], abs=5e-3), task.kind
