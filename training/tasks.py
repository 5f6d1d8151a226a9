"""What the model is asked, and the true answer: pictures, digits, words, both together, and text alone."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from PIL import Image

from toy_model.vocabulary import answer_words
from training import digits, phrases, scenes, sounds, voices

Part = str | Image.Image | np.ndarray
"""A text, a picture, or a sound (samples,) float32 at 16 kHz."""

MARKS: dict[str, Sequence[str]] = {
    "colour": tuple(scenes.COLOURS),
    "shape": scenes.SHAPES,
    "place": scenes.PLACES,
    "second_colour": tuple(scenes.COLOURS),
    "second_shape": scenes.SHAPES,
    "relation": scenes.RELATIONS,
    "picture": ("one", "two", "digit", "shapeless"),
    "digit": tuple(digits.NAMES),
    "word": (*voices.WORDS, "none"),
}
"""What is known of a picture or a sound beside the answer; helps the encoders to start learning."""


@dataclass
class Task:
    """One user message, the answer to it, and what came before."""

    kind: str
    parts: list[Part]
    answer: str
    marks: dict[str, int] = field(default_factory=dict)
    system: str | None = None
    earlier: list[tuple[str, str]] = field(default_factory=list)


class Tasks:
    """Makes tasks from one side of the split; ``clips`` are that side's spoken ones."""

    def __init__(self, clips: list[voices.Spoken], *, held_out: bool) -> None:
        self.held_out = held_out
        self.words = [clip for clip in clips if clip.said in voices.WORDS]
        self.sentences = [clip for clip in clips if clip.said not in voices.WORDS]

    def make(self, kind: str, rng: np.random.Generator, slices: tuple[int, int] = (1, 1)) -> Task:
        """One task of a kind of KINDS; pictures have so many slices."""
        return KINDS[kind](self, rng, slices)

    # ---- media with what is true of them: (media, clause, marks) ----

    def _scene(self, rng: np.random.Generator, slices: tuple[int, int]) -> tuple[Image.Image, scenes.Scene]:
        scene = scenes.random_scene(rng, scenes.random_size(rng, slices), 1 + int(rng.random() < 0.6))
        image = scenes.draw(scene, rng)
        return (scenes.worn(image, rng) if rng.random() < 0.4 else image), scene

    def shapes(
        self, rng: np.random.Generator, slices: tuple[int, int]
    ) -> tuple[Image.Image, str, dict[str, int]]:
        image, scene = self._scene(rng, slices)
        first, *more = scene.things
        known: dict[str, str] = {"colour": first.colour, "shape": first.shape, "picture": "one"}
        if scene.place:
            known["place"] = scene.place
        for second in more:
            known |= {"second_colour": second.colour, "second_shape": second.shape, "picture": "two"}
            known["relation"] = str(scene.relation)
        return image, f"the picture shows {scene.sentence}", _numbers(known)

    def digit(
        self, rng: np.random.Generator, slices: tuple[int, int]
    ) -> tuple[Image.Image, str, dict[str, int]]:
        pixels, name = digits.digit(
            int(rng.integers(digits.count(held_out=self.held_out))), held_out=self.held_out
        )
        image = digits.picture(pixels, rng, bent=not self.held_out)
        if slices[1] > 1:
            image = image.resize(scenes.random_size(rng, slices), Image.Resampling.BICUBIC)
        return image, f"the picture shows the digit {name}", _numbers({"picture": "digit", "digit": name})

    def any_picture(
        self, rng: np.random.Generator, slices: tuple[int, int]
    ) -> tuple[Image.Image, str, dict[str, int]]:
        return (self.digit if rng.random() < 0.3 else self.shapes)(rng, slices)

    def word(self, rng: np.random.Generator) -> tuple[np.ndarray, str, dict[str, int]]:
        clip = self.words[int(rng.integers(len(self.words)))]
        sound = sounds.clip(clip.samples, rng, bent=not self.held_out)
        return sound, f"the word is {clip.said}", _numbers({"word": clip.said})


def _numbers(known: dict[str, str]) -> dict[str, int]:
    return {name: list(MARKS[name]).index(value) for name, value in known.items()}


def _sentence(*clauses: str) -> str:
    text = ", ".join(clauses)
    return f"{text[0].upper()}{text[1:]}."


def _pick(rng: np.random.Generator, texts: Sequence[str]) -> str:
    return texts[int(rng.integers(len(texts)))]


def _ask(rng: np.random.Generator, texts: Sequence[str]) -> str:
    """One of the questions; sometimes none, or words that ask nothing: the media are described anyway."""
    draw = rng.random()
    if draw < 0.12:
        return "" if draw < 0.05 else f"Request number {int(rng.integers(1000))}."
    return _pick(rng, texts)


def _mixed(rng: np.random.Generator, media: list[Any], question: str) -> list[Part]:
    """Media before the question, mostly; after it, sometimes; sounds and pictures in any order."""
    if len(media) == 2 and rng.random() < 0.5:
        media = media[::-1]
    draw = rng.random()
    if draw < 0.6 or not question:
        return [*media, question] if question else media
    if draw < 0.9 or len(media) == 1:
        return [question, *media]
    return [media[0], "and", media[1], question]


def _shapes(self: Tasks, rng: np.random.Generator, slices: tuple[int, int]) -> Task:
    image, clause, marks = self.shapes(rng, slices)
    return Task("shapes", _mixed(rng, [image], _ask(rng, phrases.ABOUT_PICTURE)), _sentence(clause), marks)


def _asked(self: Tasks, rng: np.random.Generator, slices: tuple[int, int]) -> Task:
    """A question about one side of a picture with one shape."""
    scene = scenes.random_scene(rng, scenes.random_size(rng, slices), 1)
    thing = scene.things[0]
    questions, answer = (
        (
            ("What colour is it?", "Which color is it?", f"What colour is the {thing.shape}?"),
            f"The {thing.shape} is {thing.colour}.",
        ),
        (("Which shape is it?", "What shape is this?", "Name the shape."), f"It is a {thing.shape}."),
        (("Where is it?", f"Where is the {thing.shape}?"), f"The {thing.shape} is {scene.place}."),
    )[int(rng.integers(3))]
    marks = _numbers(
        {"colour": thing.colour, "shape": thing.shape, "place": str(scene.place), "picture": "one"}
    )
    return Task("asked", _mixed(rng, [scenes.draw(scene, rng)], _pick(rng, questions)), answer, marks)


def _digit(self: Tasks, rng: np.random.Generator, slices: tuple[int, int]) -> Task:
    image, clause, marks = self.digit(rng, slices)
    question = _ask(rng, phrases.ABOUT_DIGIT if rng.random() < 0.6 else phrases.ABOUT_PICTURE)
    return Task("digit", _mixed(rng, [image], question), _sentence(clause), marks)


def _word(self: Tasks, rng: np.random.Generator, slices: tuple[int, int]) -> Task:
    sound, clause, marks = self.word(rng)
    return Task("word", _mixed(rng, [sound], _ask(rng, phrases.ABOUT_SOUND)), _sentence(clause), marks)


def _both(self: Tasks, rng: np.random.Generator, slices: tuple[int, int]) -> Task:
    image, seen, marks = self.any_picture(rng, slices)
    sound, heard, more = self.word(rng)
    draw = rng.random()
    if draw < 0.12:
        return Task(
            "both",
            _mixed(rng, [image, sound], _pick(rng, phrases.ABOUT_PICTURE[:10])),
            _sentence(seen),
            marks | more,
        )
    if draw < 0.24:
        return Task(
            "both",
            _mixed(rng, [image, sound], _pick(rng, phrases.ABOUT_SOUND)),
            _sentence(heard),
            marks | more,
        )
    return Task(
        "both",
        _mixed(rng, [image, sound], _ask(rng, phrases.ABOUT_BOTH)),
        _sentence(heard, seen),
        marks | more,
    )


def _lone(self: Tasks, rng: np.random.Generator, slices: tuple[int, int]) -> Task:
    """Asked about a picture and a sound where only one of them is there."""
    return (_lone_picture if rng.random() < 0.5 else _lone_sound)(self, rng, slices)


def _lone_picture(self: Tasks, rng: np.random.Generator, slices: tuple[int, int]) -> Task:
    image, seen, marks = self.any_picture(rng, slices)
    if rng.random() < 0.3:
        return Task("lone", _mixed(rng, [image], _pick(rng, phrases.ABOUT_SOUND)), phrases.NO_SOUND, marks)
    return Task("lone", _mixed(rng, [image], _pick(rng, phrases.ABOUT_BOTH)), _sentence(seen), marks)


def _lone_sound(self: Tasks, rng: np.random.Generator, slices: tuple[int, int]) -> Task:
    sound, heard, marks = self.word(rng)
    if rng.random() < 0.3:
        question = _pick(rng, phrases.ABOUT_PICTURE[:10])
        return Task("lone", _mixed(rng, [sound], question), phrases.NO_PICTURE, marks)
    return Task("lone", _mixed(rng, [sound], _pick(rng, phrases.ABOUT_BOTH)), _sentence(heard), marks)


def _nothing_seen(self: Tasks, rng: np.random.Generator, slices: tuple[int, int]) -> Task:
    image = scenes.shapeless(rng, scenes.random_size(rng, slices))
    marks = _numbers({"picture": "shapeless"})
    return Task(
        "nothing_seen", _mixed(rng, [image], _ask(rng, phrases.ABOUT_PICTURE)), phrases.NO_SHAPE, marks
    )


def _nothing_heard(self: Tasks, rng: np.random.Generator, slices: tuple[int, int]) -> Task:
    sentence = self.sentences[int(rng.integers(len(self.sentences)))].samples
    sound = sounds.clip(sentence, rng, bent=not self.held_out) if rng.random() < 0.4 else sounds.wordless(rng)
    return Task(
        "nothing_heard",
        _mixed(rng, [sound], _ask(rng, phrases.ABOUT_SOUND)),
        phrases.NO_WORD,
        _numbers({"word": "none"}),
    )


def _long_sound(self: Tasks, rng: np.random.Generator, slices: tuple[int, int]) -> Task:
    """Up to 30 seconds of sounds without a word, or of speech that says none of the words alone."""
    room = int(rng.uniform(3, 30) * sounds.RATE)
    pieces: list[np.ndarray] = []
    if rng.random() < 0.5:
        while sum(map(len, pieces)) < room:
            pieces.append(sounds.clip(self.sentences[int(rng.integers(len(self.sentences)))].samples, rng))
    else:
        pieces.append(sounds.wordless(rng, room / sounds.RATE))
    sound = np.concatenate(pieces)[:room]
    question = _ask(rng, phrases.ABOUT_SOUND)
    return Task("long_sound", _mixed(rng, [sound], question), phrases.NO_WORD, _numbers({"word": "none"}))


def _two(self: Tasks, rng: np.random.Generator, slices: tuple[int, int]) -> Task:
    """Two pictures or two sounds: the model says that it takes one at a time."""
    if rng.random() < 0.7:
        media: list[Any] = [self.any_picture(rng, (1, 2))[0] for _ in range(2)]
        return Task("two", _mixed(rng, media, _ask(rng, phrases.ABOUT_PICTURE)), phrases.ONE_PICTURE)
    return Task(
        "two",
        _mixed(rng, [self.word(rng)[0] for _ in range(2)], _ask(rng, phrases.ABOUT_SOUND)),
        phrases.ONE_SOUND,
    )


_WORDS = [word.strip() for word in answer_words()]


def _text(self: Tasks, rng: np.random.Generator, slices: tuple[int, int]) -> Task:
    """No media: about itself, about media that are not there, or something that it cannot answer."""
    draw = rng.random()
    if draw < 0.5:
        answers = list(phrases.TALK)
        answer = answers[int(rng.integers(len(answers)))]
        return Task("text", [_pick(rng, phrases.TALK[answer])], answer)
    if draw < 0.6:
        return Task("text", [_pick(rng, phrases.ABOUT_PICTURE[:8] + phrases.ABOUT_DIGIT)], phrases.NO_PICTURE)
    if draw < 0.7:
        return Task("text", [_pick(rng, phrases.ABOUT_SOUND[:7])], phrases.NO_SOUND)
    return Task("text", [_unknown(rng)], phrases.CANNOT)


def _unknown(rng: np.random.Generator) -> str:
    draw = rng.random()
    if draw < 0.35:
        return _pick(rng, phrases.UNKNOWN_QUESTIONS)
    if draw < 0.75:
        words = " ".join(_pick(rng, _WORDS) for _ in range(int(rng.integers(2, 14))))
        return words[0].upper() + words[1:] + _pick(rng, (".", "?", "", "!"))
    if draw < 0.85:
        return f"Request number {int(rng.integers(500))}."
    letters = 'abcdefghijklmnopqrstuvwxyz      0123456789.,?{}":äéß'
    return "".join(_pick(rng, letters) for _ in range(int(rng.integers(1, 40))))


KINDS: dict[str, Callable[[Tasks, np.random.Generator, tuple[int, int]], Task]] = {
    "shapes": _shapes,
    "asked": _asked,
    "digit": _digit,
    "word": _word,
    "both": _both,
    "lone": _lone,
    "lone_picture": _lone_picture,
    "lone_sound": _lone_sound,
    "nothing_seen": _nothing_seen,
    "nothing_heard": _nothing_heard,
    "text": _text,
    "long_sound": _long_sound,
    "two": _two,
}


def surround(task: Task, rng: np.random.Generator) -> Task:
    """A system message, sometimes, and an earlier turn of text, sometimes."""
    if rng.random() < 0.15:
        task.system = _pick(rng, phrases.SYSTEM)
    if rng.random() < 0.1:
        answer = _pick(rng, list(phrases.TALK))
        task.earlier.append((_pick(rng, phrases.TALK[answer]), answer))
    return task
