"""Ask a running server held-out questions: python -m training.evaluate --base-url http://127.0.0.1:8000/v1

Every answer is compared, word for word, with what is true of the picture and the sound.
Exit status 1 where a kind stays below its target.
"""

import argparse
import asyncio
import base64
import io
import json
import re
import sys
import wave
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from openai import AsyncOpenAI
from PIL import Image

from training import voices
from training.tasks import Part, Task, Tasks

TARGETS = {"shapes": 0.95, "slices": 0.95, "digit": 0.90, "word": 0.90, "both": 0.85, "text": 0.95}
"""Least share of exact answers of each kind that is asked."""
CLAUSES = (
    r"word is (?P<word>\w+)",
    r"shows the digit (?P<digit>\w+)",
    r"shows an? (?P<colour>\w+) (?P<shape>\w+) (?P<place>(?:at|in) the [a-z ]+)",
    r"shows an? (?P<colour>\w+) (?P<shape>\w+) (?P<relation>left of|above) "
    r"an? (?P<second_colour>\w+) (?P<second_shape>\w+)",
)
"""What an answer can say of a picture and of a sound, by the name of the mark."""
LONGEST_ANSWER = 96


def held_out_tasks(clips: list[voices.Spoken], kind: str, count: int, seed: int) -> list[Task]:
    """So many tasks of a kind from the held-out side; "slices" are shapes in pictures that are cut."""
    tasks, rng = Tasks(clips, held_out=True), np.random.default_rng([seed, sorted(TARGETS).index(kind)])
    name, slices = ("shapes", (2, 9)) if kind == "slices" else (kind, (1, 1))
    return [tasks.make(name, rng, slices) for _ in range(count)]


def part_of_message(part: Part) -> dict[str, Any]:
    """A text, a picture (PNG) or a sound (WAV of 16 bits at 16 kHz) as a part of a message."""
    if isinstance(part, str):
        return {"type": "text", "text": part}
    buffer = io.BytesIO()
    if isinstance(part, Image.Image):
        part.save(buffer, "PNG")
        url = f"data:image/png;base64,{_encoded(buffer)}"
        return {"type": "image_url", "image_url": {"url": url}}
    with wave.open(buffer, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(voices.RATE)
        file.writeframes(np.round(part * 32767).astype("<i2").tobytes())
    return {"type": "input_audio", "input_audio": {"data": _encoded(buffer), "format": "wav"}}


def _encoded(buffer: io.BytesIO) -> str:
    return base64.b64encode(buffer.getvalue()).decode("ascii")


async def answers(base_url: str, model: str | None, tasks: list[Task], at_once: int) -> list[str]:
    """Greedy answers of the server. Raises openai.APIError."""
    gate = asyncio.Semaphore(at_once)
    async with AsyncOpenAI(base_url=base_url, api_key="none", timeout=300) as api:
        name = model or (await api.models.list()).data[0].id

        async def one(task: Task) -> str:
            content: Any = [part_of_message(part) for part in task.parts]
            async with gate:
                answer = await api.chat.completions.create(
                    model=name,
                    messages=[{"role": "user", "content": content}],
                    temperature=0,
                    max_tokens=LONGEST_ANSWER,
                )
            return answer.choices[0].message.content or ""

        return await asyncio.gather(*map(one, tasks))


def readings(answer: str) -> dict[str, str]:
    """The marks that an answer states."""
    found = (re.search(clause, answer) for clause in CLAUSES)
    return {name: value for match in found if match for name, value in match.groupdict().items()}


def confusion(tasks: list[Task], given: list[str]) -> dict[str, dict[str, Counter[str]]]:
    """For each mark and each true value, how often each value was read; "-" where none was stated."""
    table: dict[str, dict[str, Counter[str]]] = {}
    for task, text in zip(tasks, given, strict=True):
        read = readings(text)
        for name, truth in readings(task.answer).items():
            table.setdefault(name, {}).setdefault(truth, Counter())[read.get(name, "-")] += 1
    return table


def measure(ask: Callable[[list[Task]], list[str]], kinds: dict[str, list[Task]]) -> dict[str, Any]:
    """Exact answers, their share, a few wrong ones and the confusions, for each kind."""
    results: dict[str, Any] = {}
    for kind, tasks in kinds.items():
        given = ask(tasks)
        right = sum(task.answer == text for task, text in zip(tasks, given, strict=True))
        wrong = [(task.answer, text) for task, text in zip(tasks, given, strict=True) if task.answer != text]
        results[kind] = {
            "right": right,
            "asked": len(tasks),
            "share": right / len(tasks),
            "wrong": wrong[:10],
            "confusion": confusion(tasks, given),
        }
    return results


def main() -> None:
    """Measure, print a line for each kind, write all of it where --json says."""
    parser = argparse.ArgumentParser(prog="python -m training.evaluate", description=__doc__)
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--model", help="default: the first that the server lists")
    parser.add_argument("--count", type=int, default=200, help="questions of each kind")
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--seed", type=int, default=45)
    parser.add_argument("--spoken", type=Path, default=Path(".cache/training"))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    _, clips = voices.ensure(options.spoken, options.seed)
    kinds = {kind: held_out_tasks(clips, kind, options.count, options.seed) for kind in TARGETS}

    def ask(tasks: list[Task]) -> list[str]:
        return asyncio.run(answers(options.base_url, options.model, tasks, options.at_once))

    results = measure(ask, kinds)
    for kind, result in results.items():
        sys.stdout.write(
            f"{kind}: {result['right']} of {result['asked']} exact, target {TARGETS[kind]:.0%}\n"
        )
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    sys.exit(any(result["share"] < TARGETS[kind] for kind, result in results.items()))


if __name__ == "__main__":
    main()
