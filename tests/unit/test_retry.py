"""Trying an encode again. Needs nothing."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.retry import ErrorKind, Failure, GiveUp, Retry, RetryPolicy, next_step

K = ErrorKind
POLICY = RetryPolicy(max_attempts=4, first_backoff_s=0.1, backoff_growth=3.0, max_backoff_s=0.5)
FIRST = Failure(K.TRANSIENT, attempts=1, deadline_s=100.0, replica_id="a")

CASES = {
    "transient waits": (FIRST, Retry(0.1, frozenset("a"))),
    "transient waits longer": (replace(FIRST, attempts=2), Retry(0.3, frozenset("a"))),
    "waits are bounded": (replace(FIRST, attempts=3), Retry(0.5, frozenset("a"))),
    "terminal goes elsewhere at once": (replace(FIRST, kind=K.TERMINAL), Retry(0.0, frozenset("a"))),
    "died goes elsewhere at once": (replace(FIRST, kind=K.DIED), Retry(0.0, frozenset("a"))),
    "died again waits": (replace(FIRST, kind=K.DIED, attempts=2), Retry(0.1, frozenset("a"))),
    "exclusions gather": (replace(FIRST, excluded=frozenset("bc")), Retry(0.1, frozenset("abc"))),
    "an unknown replica excludes nobody": (replace(FIRST, replica_id=None), Retry(0.1, frozenset())),
}


@pytest.mark.parametrize(("failure", "expected"), CASES.values(), ids=CASES.keys())
def test_when_it_is_tried_again(failure: Failure, expected: Retry) -> None:
    """An attempt that may succeed elsewhere is repeated with growing waits, away from where it failed."""
    step = next_step(failure, 10.0, jitter=0.0, policy=POLICY)
    assert isinstance(step, Retry)
    assert step.after_s == pytest.approx(expected.after_s)
    assert step.exclude == expected.exclude


GIVEN_UP = {
    "the client's fault": (replace(FIRST, kind=K.CLIENT, client_status=413), 413, "at fault"),
    "queues are full": (replace(FIRST, kind=K.FULL), 429, "try again shortly"),
    "past the deadline": (replace(FIRST, deadline_s=10.0), 504, "deadline has passed"),
    "no time for another": (replace(FIRST, deadline_s=10.05), 503, "no time for another"),
    "out of attempts": (replace(FIRST, kind=K.DIED, attempts=4), 503, "4 attempts failed"),
    "in mid-stream": (replace(FIRST, kind=K.DIED, streamed=True), 503, "had been sent"),
}


@pytest.mark.parametrize(("failure", "status", "reason"), GIVEN_UP.values(), ids=GIVEN_UP.keys())
def test_when_it_is_given_up(failure: Failure, status: int, reason: str) -> None:
    """A request ends with a status and a reason when another attempt is useless, late or one too many."""
    step = next_step(failure, 10.0, jitter=0.0, policy=POLICY)
    assert isinstance(step, GiveUp)
    assert step.status == status
    assert reason in step.reason


@given(
    kinds=st.lists(st.sampled_from([K.TRANSIENT, K.TERMINAL, K.DIED]), min_size=20, max_size=20),
    jitter=st.floats(0.0, 1.0, exclude_max=True),
    deadline_s=st.floats(0.1, 60.0),
)
def test_every_request_ends_within_its_bounds(kinds: list[K], jitter: float, deadline_s: float) -> None:
    """Whatever fails, a request ends after at most ``max_attempts`` and never waits past its deadline."""
    now_s, excluded = 0.0, frozenset[str]()
    for attempt, kind in enumerate(kinds, start=1):
        failure = Failure(kind, attempt, deadline_s, f"r{attempt}", excluded)
        step = next_step(failure, now_s, jitter=jitter, policy=POLICY)
        if isinstance(step, GiveUp):
            return
        assert attempt < POLICY.max_attempts
        assert 0.0 <= step.after_s <= POLICY.max_backoff_s
        now_s, excluded = now_s + step.after_s, step.exclude
        assert now_s < deadline_s
        assert f"r{attempt}" in excluded
    pytest.fail("a request that never ends")


def test_jitter_shortens_a_wait_by_at_most_half() -> None:
    """Jitter spreads the waits between half and all of the stated one."""
    waits_s = [POLICY.backoff_s(1, jitter) for jitter in (0.0, 0.5, 0.999)]
    assert waits_s == pytest.approx([0.1, 0.075, 0.05], abs=1e-3)


@pytest.mark.parametrize("wrong", [{"max_attempts": 0}, {"backoff_growth": 0.9}, {"first_backoff_s": 9.0}])
def test_bounds_that_make_no_sense_are_errors(wrong: dict[str, float]) -> None:
    """A policy without sense is refused when it is made."""
    with pytest.raises(ValueError):
        RetryPolicy(**wrong)  # type: ignore[arg-type]


def test_an_unforeseen_error_is_tried_once_more() -> None:
    """A fault of our own is not repeated six times with all of its encodes."""
    first = Failure(ErrorKind.FAULT, attempts=1, deadline_s=100.0)
    assert isinstance(next_step(first, 0.0, jitter=0.0), Retry)
    assert isinstance(next_step(replace(first, attempts=2), 0.0, jitter=0.0), GiveUp)
