"""How many encoder replicas to have, and Serve's side of it. Needs no Ray running."""

import pickle
import subprocess
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.autoscaling import QueuedWorkScaling, encoder_load
from policies.autoscaling import EncoderLoad, Pace, ScalingPolicy, desired_replicas

POLICY = ScalingPolicy(target_s=0.5, up_above_s=1.0, down_below_s=0.1, max_busy_share=0.7)

CASES = {
    "no reports: nothing moves": (EncoderLoad(0, 0.0, 0.0), 3, 3),
    "between the marks: nothing moves": (EncoderLoad(2, 1.9, 2.0), 2, 2),
    "above: as far as the work asks": (EncoderLoad(2, 4.0, 2.0), 2, 8),
    "above, but more are already on their way": (EncoderLoad(2, 2.2, 2.0), 9, 9),
    "idle: one fewer": (EncoderLoad(4, 0.0, 0.0), 4, 3),
    "idle: never below one": (EncoderLoad(1, 0.0, 0.0), 1, 1),
    "no queue but busy: nothing moves": (EncoderLoad(4, 0.0, 2.5), 4, 4),
    "some still start: no step down": (EncoderLoad(2, 0.0, 0.0), 4, 4),
    "idle after a step down under way": (EncoderLoad(4, 0.0, 0.0), 3, 2),
}


@pytest.mark.parametrize(("load", "target", "expected"), CASES.values(), ids=CASES.keys())
def test_desired_replicas(load: EncoderLoad, target: int, expected: int) -> None:
    """Queued work above the upper mark adds replicas, idleness takes one away, between nothing moves."""
    assert desired_replicas(load, target, POLICY) == expected


@given(queued_s=st.floats(0.0, 50.0), busy=st.floats(0.0, 50.0), start=st.integers(1, 100))
def test_a_steady_load_settles(queued_s: float, busy: float, start: int) -> None:
    """Under a load that does not change the number reaches one value and stays; it never swings."""
    target, directions = start, []
    for _ in range(200):
        wished = desired_replicas(EncoderLoad(target, queued_s, min(busy, target)), target, POLICY)
        if wished == target:
            break
        directions.append(wished > target)
        target = wished
    else:
        pytest.fail("it never settles")
    assert len(set(directions)) <= 1


@pytest.mark.parametrize(
    "wrong", [{"target_s": 2.0}, {"down_below_s": 0.5}, {"max_busy_share": 0.0}, {"down_below_s": -1.0}]
)
def test_marks_that_cross_are_errors(wrong: dict[str, float]) -> None:
    """Marks without a band between them are refused when the policy is made."""
    with pytest.raises(ValueError):
        ScalingPolicy(**wrong)


def test_load_is_read_from_the_replicas_stats() -> None:
    """Queued seconds are summed, and a replica with any work in hand is one busy replica."""
    metrics = {"queued_s": {"a": 1.0, "b": 0.0}, "pending_items": {"a": 7.0, "b": 0.5}}
    assert encoder_load(metrics) == EncoderLoad(2, 1.0, 1.5)
    assert encoder_load({}) == EncoderLoad(0, 0.0, 0.0)


def paced(workers: int, items: int, tokens: int, prepare_s: float, encode_s: float) -> Pace:
    pace = Pace(workers)
    for _ in range(items):
        pace = pace.after(tokens, prepare_s, encode_s)
    return pace


@pytest.mark.parametrize(
    ("workers", "prepare_s", "encode_s", "seconds"),
    [(1, 0.2, 0.1, 0.2), (4, 0.2, 0.1, 0.1), (4, 0.8, 0.1, 0.2), (1, 0.0, 0.3, 0.3)],
)
def test_the_slower_stage_sets_the_pace(
    workers: int, prepare_s: float, encode_s: float, seconds: float
) -> None:
    """An item costs the replica the time of its preparing workers or of its GPU thread, whichever is more."""
    pace = paced(workers, 200, 64, prepare_s, encode_s)
    assert pace.seconds_per_token * 64 == pytest.approx(seconds)
    assert pace.tokens_per_item == pytest.approx(64)


def test_the_pace_follows_a_change() -> None:
    """After two hundred items of another kind the old ones count for less than two in a hundred."""
    pace = paced(1, 500, 64, 0.1, 0.0)
    for _ in range(200):
        pace = pace.after(64, 0.5, 0.0)
    assert pace.seconds_per_token * 64 == pytest.approx(0.5, rel=0.02)
    assert Pace(1).seconds_per_token == Pace(1).tokens_per_item == 0.0


def test_the_wish_stays_within_the_deployments_bounds() -> None:
    """Serve's own minimum and maximum hold, whatever the work asks for."""
    policy = QueuedWorkScaling()
    ctx = SimpleNamespace(
        aggregated_metrics={"queued_s": {"a": 99.0}, "pending_items": {"a": 9.0}},
        target_num_replicas=1,
        capacity_adjusted_min_replicas=1,
        capacity_adjusted_max_replicas=4,
    )
    assert policy(ctx) == (4, {})
    ctx.aggregated_metrics = None
    ctx.capacity_adjusted_min_replicas = 2
    assert policy(ctx) == (2, {})


def test_serves_controller_can_run_it_without_this_project() -> None:
    """What Serve pickles of the policy loads and runs in a process that cannot import this project."""
    from ray.serve.config import AutoscalingPolicy

    config = AutoscalingPolicy(
        policy_function="deployments.autoscaling:QueuedWorkScaling",
        policy_kwargs={"target_s": 0.25},
    )
    program = (
        "import pickle, sys\n"
        "from types import SimpleNamespace\n"
        "policy = pickle.loads(sys.stdin.buffer.read())()\n"
        "ctx = SimpleNamespace(aggregated_metrics={'queued_s': {'a': 2.0}}, target_num_replicas=1,\n"
        "    capacity_adjusted_min_replicas=1, capacity_adjusted_max_replicas=9)\n"
        "print(policy(ctx)[0], 'policies' in sys.modules)\n"
    )
    pickled = config.get_serialized_policy_def()
    assert pickle.loads(pickled) is not None
    done = subprocess.run(
        [sys.executable, "-I", "-c", program], input=pickled, capture_output=True, check=True, cwd="/"
    )
    assert done.stdout.decode().split() == ["4", "False"]
