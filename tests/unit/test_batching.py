"""Which waiting items run together. Needs nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.batching import BatchingPolicy, Take, WaitFor, Waiting, next_batch

POLICY = BatchingPolicy(max_batch_size=3, max_wait_s=0.004, prefer_graphs=True)


def queue(*keys: str, since_s: float = 0.0) -> list[Waiting]:
    return [Waiting(key, since_s) for key in keys]


CASES = {
    "alone: at once": (queue("a"), 0.0, {}, Take((0,))),
    "company of another shape: waits": (queue("a", "b"), 0.001, {}, WaitFor(0.003)),
    "company of its shape: waits for more": (queue("a", "b", "a"), 0.001, {}, WaitFor(0.003)),
    "waited enough": (queue("a", "b", "a"), 0.004, {}, Take((0, 2))),
    "full": (queue("a", "b", "a", "a", "a"), 0.0, {}, Take((0, 2, 3))),
    "a graph at 1: one at once": (queue("a", "a", "a"), 0.0, {"a": [1]}, Take((0,))),
    "graphs at 1 and 2: two": (queue("a", "b", "a", "a"), 0.0, {"a": [1, 2]}, Take((0, 2))),
    "a graph at 8 only: no use": (queue("a", "a"), 0.001, {"a": [8]}, WaitFor(0.003)),
    "another shape's graph": (queue("a", "b"), 0.001, {"b": [1]}, WaitFor(0.003)),
}


@pytest.mark.parametrize(("waiting", "now_s", "graph_sizes", "expected"), CASES.values(), ids=CASES.keys())
def test_next_batch(
    waiting: list[Waiting], now_s: float, graph_sizes: dict[str, list[int]], expected: Take | WaitFor
) -> None:
    """Only one exact shape runs together, graphs are preferred, and waiting is bounded."""
    step = next_batch(waiting, now_s, policy=POLICY, graph_sizes=graph_sizes)
    if isinstance(expected, WaitFor):
        assert isinstance(step, WaitFor)
        assert step.seconds == pytest.approx(expected.seconds)
    else:
        assert step == expected


@pytest.mark.parametrize(
    ("item_s", "taken"),
    [(0.0, 3), (0.009, 3), (0.011, 2), (0.022, 1), (5.0, 1)],
    ids=["not known", "short: all that may run", "two fit", "one fills the device", "longer than the bound"],
)
def test_a_batch_of_several_is_as_long_as_it_may_be(item_s: float, taken: int) -> None:
    """What an item took before bounds how many run together, and a batch that is full by that waits not."""
    step = next_batch(queue(*"aaaa"), 0.0, policy=POLICY, graph_sizes={}, item_s={"a": item_s, "b": 9.0})
    assert step == Take(tuple(range(taken)))


@pytest.mark.parametrize(("sizes", "taken"), [([2, 3], 2), ([1, 3], 1), ([3], 3), ([8], 1)])
def test_time_keeps_no_shape_from_its_graph(sizes: list[int], taken: int) -> None:
    """A shape that is slow eagerly still runs at the least size that may be captured; else in time."""
    step = next_batch(queue(*"aaaa"), 0.0, policy=POLICY, graph_sizes={"a": sizes}, item_s={"a": 0.022})
    assert step == Take(tuple(range(taken)))


@given(items=st.integers(1, 64), max_batch_s=st.floats(1e-6, 10.0))
def test_what_an_item_may_take_is_what_lets_so_many_run(items: int, max_batch_s: float) -> None:
    """With it exactly so many run together; with no time for any but lone items they stay alone."""
    policy = BatchingPolicy(64, max_batch_s=max_batch_s)
    assert policy.limit(policy.item_s_for(items)) == items
    never = BatchingPolicy(64, max_batch_s=0.0)
    assert never.limit(never.item_s_for(items)) == 1


def test_throughput_may_be_preferred_to_graphs() -> None:
    """With ``prefer_graphs`` off the largest batch of one shape runs, graph or not."""
    policy = BatchingPolicy(max_batch_size=3, prefer_graphs=False)
    assert next_batch(queue("a", "a", "a"), 0.0, policy=policy, graph_sizes={"a": [1]}) == Take((0, 1, 2))


@pytest.mark.rule("C5")
@given(
    keys=st.lists(st.sampled_from("abc"), min_size=1, max_size=12),
    now_s=st.floats(0.0, 0.01),
    graph_sizes=st.dictionaries(st.sampled_from("abc"), st.lists(st.integers(1, 8), max_size=3)),
    prefer=st.booleans(),
    item_s=st.dictionaries(st.sampled_from("abc"), st.floats(0.0, 1.0)),
)
def test_every_batch_is_of_one_shape_and_has_the_oldest(
    keys: list[str],
    now_s: float,
    graph_sizes: dict[str, list[int]],
    prefer: bool,
    item_s: dict[str, float],
) -> None:
    """No batch mixes shapes or exceeds the limit, the oldest item is in it, and nobody waits too long."""
    policy = BatchingPolicy(max_batch_size=4, max_wait_s=0.005, prefer_graphs=prefer)
    step = next_batch(queue(*keys), now_s, policy=policy, graph_sizes=graph_sizes, item_s=item_s)
    if isinstance(step, WaitFor):
        assert 0 < step.seconds <= policy.max_wait_s
        assert now_s + step.seconds <= policy.max_wait_s + 1e-9
        return
    assert step.indices[0] == 0
    assert list(step.indices) == sorted(set(step.indices))
    assert len({keys[i] for i in step.indices}) == 1
    assert len(step.indices) <= policy.max_batch_size
    for_a_graph = prefer and len(step.indices) in graph_sizes.get(keys[0], ())
    in_time = len(step.indices) * item_s.get(keys[0], 0.0) <= policy.max_batch_s
    assert len(step.indices) == 1 or in_time or for_a_graph


def test_an_empty_queue_is_the_callers_error() -> None:
    """There is no batch of nothing."""
    with pytest.raises(ValueError):
        next_batch([], 0.0, policy=POLICY, graph_sizes={})
