"""The questions by which a mix-up is seen: no two alike, and the same every time."""

from collections import Counter
from itertools import islice
from types import SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests import truth
from tests.asking import Said
from toy_model import write
from training import voices


def test_no_two_of_a_crowd_have_one_truth() -> None:
    """Two hundred questions of every kind have two hundred answers, and come the same every time."""
    crowd, again = (list(islice(truth.crowd(seed=1), 200)) for _ in range(2))
    assert crowd == again
    assert len({question.truth for question in crowd}) == len(crowd)
    kinds = Counter(question.name.split()[0] for question in crowd)
    assert kinds.keys() == {"shapes", "both", "word", "digit"}
    assert min(kinds.values()) >= 8


def test_pictures_have_the_sizes_and_words_are_all_there() -> None:
    """Drawn pictures differ in their truth; one clip stands for every word."""
    drawn = list(islice(truth.pictures(((90, 70), (70, 90)), seed=1), 40))
    assert len({question.truth for question in drawn}) == 40
    assert len({question.truth for question in truth.words(seed=1)}) == len(voices.WORDS)


def test_no_true_answer_is_longer_than_asked_for() -> None:
    """The longest sentence of a word and two things fits, its end included."""
    tokenizer = Tokenizer.from_str(write.contents()["tokenizer.json"].decode())
    longest = "The word is seven, the picture shows an orange triangle left of an orange diamond."
    assert len(tokenizer.encode(longest, add_special_tokens=False).ids) + 1 <= truth.LONGEST
    for question in islice(truth.crowd(seed=2), 40):
        assert len(tokenizer.encode(question.truth, add_special_tokens=False).ids) < truth.LONGEST


def test_spoken_clips_are_of_held_out_voices() -> None:
    """Every word twice, by two voices, none of which training hears."""
    clips = truth.spoken()
    assert Counter(clip.said for clip in clips) == dict.fromkeys(voices.WORDS, 2)
    assert len({(clip.said, clip.voice) for clip in clips}) == len(clips)
    assert all(clip.voice.split("+")[1] in voices.HELD_OUT_VARIANTS for clip in clips)
    assert all(clip.speed in voices.HELD_OUT_SPEEDS for clip in clips)


def said(words: str) -> Said:
    return Said(words, tuple(words.split()), 9, "stop")


def known(number: int) -> truth.Known:
    return truth.Known(truth.Question(f"word {number}", [], f"It is {number}."), said(f"It is {number}."))


def test_a_mix_up_names_both() -> None:
    """Another's answer is a fault that names whose it is; a wrong one names what was right."""
    one, two = known(1), known(2)
    assert truth.fault(one, one.said, [one, two]) is None
    mixed = truth.fault(one, two.said, [one, two])
    assert mixed is not None
    assert "word 1 ('It is 1.')" in mixed
    assert "the answer to word 2" in mixed
    assert "It is 1." in str(truth.fault(one, said("no"), [one, two]))


def test_questions_that_are_answered_wrong_alone_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first right ones are taken; a model that is mostly wrong is an error."""
    questions = [known(number).question for number in range(12)]
    answers: dict[str, str] = {question.name: question.truth for question in questions}

    def ask(_: Any, messages: Any, __: int) -> Said:
        return said(answers[messages])

    named = [truth.Question(q.name, q.name, q.truth) for q in questions]  # type: ignore[arg-type]
    monkeypatch.setattr(truth, "ask", ask)
    monkeypatch.setattr(truth, "client", lambda server: server)
    answers["word 0"] = answers["word 3"] = "no"
    server: Any = SimpleNamespace()
    found = truth.right_alone(server, named, 4)
    assert [each.question.name for each in found] == ["word 1", "word 2", "word 4", "word 5"]
    answers.update(dict.fromkeys(answers, "no"))
    with pytest.raises(AssertionError, match="wrong alone"):
        truth.right_alone(server, named, 4)
