"""What benchmarks/serving.py measures next, and how its runs add up. Needs nothing."""

from pathlib import Path
from typing import Any

import pytest

from benchmarks import real_model, serving_plan
from benchmarks.load import Case, Kind, Lengths
from benchmarks.serving_plan import MIXED, Results, Sizes

LENGTHS = Lengths(100, 64)
SERVERS = ["a", "b"]
CASES = [Case(Kind("text"), 4, 1), Case(Kind("text"), 4, 32)]


def done(number: int, case: Case, server: str) -> dict[str, Any]:
    return {"round": number, "case": case.name, "server": server}


def test_an_interrupted_run_goes_on_where_it_stopped() -> None:
    """What was measured is not measured again, down to one server of one case."""
    have = [done(1, CASES[0], "a"), done(1, CASES[0], "b"), done(1, CASES[1], "b")]
    steps = list(serving_plan.to_do(CASES, SERVERS, 2, have))
    assert [(number, case.name, names) for number, case, names in steps] == [
        (1, "text, 32 at once", ["a"]),
        (2, "text, 1 at once", ["a", "b"]),
        (2, "text, 32 at once", ["a", "b"]),
    ]


def test_a_case_at_a_rate_is_done_once_whatever_the_rate() -> None:
    """It is planned before its rate is known, and bears the same name afterwards."""
    planned, measured = Case(Kind("text"), 4), Case(Kind("text"), 4, rate_per_s=3.0)
    assert list(serving_plan.to_do([planned], ["a"], 1, [done(1, measured, "a")])) == []


def test_another_comes_first_in_every_round() -> None:
    """Over as many rounds as there are servers each is first once."""
    firsts = [serving_plan.in_turn(["a", "b", "c", "d"], number)[0] for number in range(4)]
    assert sorted(firsts) == ["a", "b", "c", "d"]


def test_runs_of_one_version_add_to_each_other(tmp_path: Path) -> None:
    """The file of an earlier run is continued."""
    path, identity = tmp_path / "r.json", {"card": "one", "code": "1"}
    first = Results.open(path, identity)
    first.rounds.append(done(1, CASES[0], "a"))
    first.save()
    assert Results.open(path, identity).rounds == first.rounds


def test_runs_of_different_versions_are_not_mixed(tmp_path: Path) -> None:
    """A file of other code, or of another card, is an error that names what differs."""
    path = tmp_path / "r.json"
    Results.open(path, {"card": "one", "code": "1"}).save()
    with pytest.raises(ValueError, match="another code"):
        Results.open(path, {"card": "one", "code": "2"})


def test_the_offered_rate_comes_from_the_better_peer() -> None:
    """0.8 of the median that the better of the peers sustains; nothing as long as none was measured."""
    name = Case(Kind(MIXED), 4, 32).name
    rounds = [
        {"server": server, "case": name, "requests_per_s": speed}
        for server, speed in (("a", 5.0), ("b", 9.0), ("b", 11.0), ("ours", 50.0))
    ]
    assert serving_plan.offered_rate(rounds, SERVERS) == pytest.approx(8.0)
    assert serving_plan.offered_rate([], SERVERS) is None


def test_every_target_is_of_a_case_that_is_measured() -> None:
    """No target names a case that the core does not have."""
    plan = serving_plan.minicpmo(LENGTHS, Sizes())
    assert {target.case for target in plan.targets} <= {case.name for case in plan.core}


def test_named_cases_alone_are_measured() -> None:
    """A name brings its case from the core or the rest, in the plan's order; an unknown one is an error."""
    plan = serving_plan.minicpmo(LENGTHS, Sizes())
    names = ["audio 30 s, 32 at once", "large image, 1 at once"]
    assert [case.name for case in plan.chosen(False, names)] == names[::-1]
    assert plan.chosen(False, None) == plan.core
    assert plan.chosen(True, None) == plan.core + plan.more
    with pytest.raises(ValueError, match="no case 'audio'; there are: large image, 1 at once;"):
        plan.chosen(False, ["audio"])


def test_only_what_is_measured_is_warmed() -> None:
    """Each kind of the chosen cases, alone and at once; of a mixture the text and the picture."""
    picture = Kind("picture", (8, 8))
    mixture = Case(Kind(MIXED, (8, 8), every_second_text=True), 48, 32)
    warm = serving_plan.warming([Case(picture, 6, 1), Case(picture, 2, 8), mixture])
    assert [(case.kind.image_px, case.requests, case.at_once) for case in warm] == [
        ((8, 8), 4, 1),
        ((8, 8), 6, 32),
        (None, 4, 1),
        (None, 48, 32),
        ((8, 8), 4, 1),
        ((8, 8), 48, 32),
    ]


def test_the_random_checkpoint_has_the_real_vocabulary() -> None:
    """As many texts as logits, each id once, and the special tokens where the config says they are."""
    table = real_model.tokenizer_json()["model"]["vocab"]
    config = real_model.model_config()
    assert sorted(table.values()) == list(range(config["vocab_size"]))
    assert table["<|im_end|>"] == config["eos_token_id"]
