"""The moving window of requests and its durations."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.traffic import BOUNDS_S, Durations, Traffic, TrafficWindow

seconds = st.lists(st.floats(0, 200), max_size=50)


@given(seconds, seconds)
def test_durations_merge_by_addition(one: list[float], other: list[float]) -> None:
    """The sum of two histograms is the histogram of both."""
    merged, both = Durations.of(one).merge(Durations.of(other)), Durations.of([*one, *other])
    assert merged.counts == both.counts
    assert merged.sum_s == pytest.approx(both.sum_s)


@given(st.lists(st.floats(0.001, 120), min_size=1, max_size=200), st.sampled_from([0.5, 0.95]))
def test_a_quantile_lies_in_the_right_bucket(values: list[float], share: float) -> None:
    """It is between the bounds of the bucket that holds the value of that rank."""
    drawn = Durations.of(values).quantile_s(share)
    rank = max(1, -(-len(values) * share // 1))
    true = sorted(values)[int(rank) - 1]
    place = next(i for i, bound in enumerate(BOUNDS_S) if true <= bound)
    low = BOUNDS_S[place - 1] if place else 0.0
    assert drawn is not None
    assert low <= drawn <= BOUNDS_S[place]


def test_nothing_counted_has_no_quantile() -> None:
    """An idle server shows no latency instead of 0; one beyond the last bound shows that bound."""
    assert Durations().summary() == {"mean": None, "p50": None, "p95": None}
    assert Durations.of([500.0]).quantile_s(0.5) == BOUNDS_S[-1]


def test_only_the_last_minute_counts() -> None:
    """A request leaves the window after its time; refused and failed ones are apart and have no latency."""
    window = TrafficWindow(60.0)
    window.add(0.0, 200, 9.0, None)
    for status in (200, 429, 499, 503):
        window.add(50.0, status, 1.0, 0.3)
    now = window.traffic(100.0, in_hand=2)
    assert (now.in_hand, now.ok, now.refused, now.failed) == (2, 1, 2, 1)
    assert (now.latency, now.first_token) == (Durations.of([1.0]), Durations.of([0.3]))
    assert window.traffic(200.0, 0) == Traffic()


def test_the_traffic_of_several_ingresses_adds_up() -> None:
    """Rates and latencies are those of one Ingress that had all the requests."""
    one, two, all_of_it = TrafficWindow(), TrafficWindow(), TrafficWindow()
    for n in range(40):
        for window in (all_of_it, one if n % 3 else two):
            window.add(n / 10, 200 if n % 7 else 503, n / 20, n / 80)
    merged = one.traffic(5.0, 1).merge(two.traffic(5.0, 2)).summary()
    assert merged == {**all_of_it.traffic(5.0, 3).summary(), "latency_s": pytest.approx(merged["latency_s"])}
    assert merged["requests_per_s"] == pytest.approx(40 / 60)
