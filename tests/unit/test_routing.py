"""Ranking replicas for a shape. Needs nothing."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.lifecycle import ReplicaState as S
from policies.routing import Homes, RoutedReplica, rank, route


def holder(name: str, queue_len: int = 0, *keys: str) -> RoutedReplica:
    return RoutedReplica(name, queue_len, captured=frozenset(keys or ("k",)), free_slots=0)


def free(name: str, queue_len: int = 0, slots: int = 2) -> RoutedReplica:
    return RoutedReplica(name, queue_len, free_slots=slots)


def full(name: str, queue_len: int = 0) -> RoutedReplica:
    return holder(name, queue_len, "other")


CASES = {
    "a holder first, then those that cannot capture it, then those that can": (
        [free("f"), full("x"), holder("h")],
        [["h"], ["x"], ["f"]],
    ),
    "a new key: a free slot first": ([full("x"), free("f")], [["f"], ["x"]]),
    "several holders are one rank, the freest first": (
        [holder("h1", 2), holder("h2", 1), full("x")],
        [["h2", "h1"], ["x"]],
    ),
    "a holder at the bound is still first": ([holder("h", 2), full("x", 0)], [["h"], ["x"]]),
    "a holder beyond the bound is passed over": ([holder("h", 3), full("x", 0)], [["x"], ["h"]]),
    "a free replica beyond the bound is passed over": ([free("f", 3), full("x", 0)], [["x"], ["f"]]),
    "a failed replica is left out": ([replace(holder("h"), state=S.FAILED), full("x")], [["x"]]),
    "a draining replica is left out": ([replace(holder("h"), state=S.DRAINING), full("x")], [["x"]]),
    "a replica that still warms may be asked": ([replace(holder("h"), state=S.WARMING)], [["h"]]),
    "a leaving replica's short queue bounds nobody": (
        [replace(full("x", 0), state=S.FAILED), holder("h", 9), full("y", 8)],
        [["h"], ["y"]],
    ),
    "graphs disabled: neither holder nor home": (
        [replace(holder("h"), graphs_enabled=False), replace(free("f"), graphs_enabled=False), free("g")],
        [["g"], ["h", "f"]],
    ),
    "nobody": ([], []),
    "nobody that stays": ([replace(free("f"), state=S.STOPPED)], []),
}


@pytest.mark.parametrize(("replicas", "ranks"), CASES.values(), ids=CASES.keys())
def test_ranks(replicas: list[RoutedReplica], ranks: list[list[str]]) -> None:
    """Who holds a graph comes first, within the load bound; who is leaving does not come at all."""
    assert rank(replicas, "k", bound=2) == ranks


def test_an_unknown_key_goes_by_load() -> None:
    """Without a shape there is no affinity: one rank, the shortest queue first."""
    replicas = [holder("h", 2, "unknown"), free("f", 1), full("x", 0)]
    assert rank(replicas, "unknown", bound=5) == [["x", "f", "h"]]


def test_avoided_replicas_come_last() -> None:
    """A replica where the request failed is asked only when there is no other."""
    replicas = [holder("h"), full("x", 9)]
    assert rank(replicas, "k", bound=2, avoid=frozenset({"h"})) == [["x"], ["h"]]
    assert rank(replicas[:1], "k", bound=2, avoid=frozenset({"h"})) == [["h"]]


def test_a_new_key_has_one_home_on_which_all_agree() -> None:
    """Every router names the same home whatever the order of its list, and keys spread over replicas."""
    replicas = [free(f"r{i}") for i in range(4)]
    homes = {f"k{n}": rank(replicas, f"k{n}", bound=2)[0] for n in range(400)}
    assert homes == {key: rank(replicas[::-1], key, bound=2)[0] for key in homes}
    assert all(len(home) == 1 for home in homes.values())
    assert all(60 < count < 140 for count in Counter(home[0] for home in homes.values()).values())


def test_a_replica_that_leaves_moves_only_its_own_keys() -> None:
    """Keys whose home stays keep it when another replica goes."""
    replicas = [free(f"r{i}") for i in range(4)]
    for n in range(100):
        before = rank(replicas, f"k{n}", bound=2)[0]
        after = rank(replicas[:3], f"k{n}", bound=2)[0]
        assert before in (after, ["r3"])


def test_slots_promised_to_other_keys_are_not_free() -> None:
    """A replica whose last slots are promised comes after one with a slot to spare."""
    replicas = [free("a", slots=1), free("b", slots=1)]
    first, second = (name for [name] in rank(replicas, "k", bound=2))
    assert rank(replicas, "k", bound=2, homes={"other": first}) == [[second], [first]]
    captured = replace(replicas[0 if first == "a" else 1], captured=frozenset({"other"}))
    others = [r for r in replicas if r.replica_id == second]
    assert rank([captured, *others], "k", bound=2, homes={"other": first}) == [[first], [second]]


def test_a_home_counts_as_holder_until_reports_say_more() -> None:
    """What overflows from an unreported home goes to replicas that cannot capture it."""
    replicas = [free("home", 3), free("f", 0), full("x", 0)]
    assert rank(replicas, "k", bound=2, homes={"k": "home"}) == [["x"], ["f"], ["home"]]
    assert rank(replicas, "k", bound=3, homes={"k": "home"}) == [["home"], ["x"], ["f"]]
    full_home = [replace(replicas[0], free_slots=0), *replicas[1:]]
    assert rank(full_home, "k", bound=3, homes={"k": "home"})[0] == ["f"], "a full replica is no home"


def test_new_keys_fill_the_cluster_exactly_before_any_report() -> None:
    """Sixteen new keys on four replicas of four slots get four each, though no report came between."""
    replicas, homes, given = [free(f"r{i}", slots=4) for i in range(4)], Homes(), Counter[str]()
    for n in range(16):
        ranks, homes = route(replicas, f"k{n}", homes, 0.0, bound=2)
        given[ranks[0][0]] += 1
        assert route(replicas, f"k{n}", homes, 0.1, bound=2)[0][0] == ranks[0], "a home moved"
    assert set(given.values()) == {4}


def test_a_home_is_forgotten() -> None:
    """A key that came once reserves a slot for ``ttl_s``, no longer."""
    replicas = [free("a", slots=1)]
    _, homes = route(replicas, "k", Homes(ttl_s=3.0), 10.0, bound=2)
    assert homes.at(12.9) == {"k": "a"}
    assert homes.at(13.0) == {}
    _, homes = route(replicas, "new", homes, 14.0, bound=2)
    assert set(homes.given) == {"new"}


def test_only_a_home_that_can_capture_is_remembered() -> None:
    """Neither held keys, nor unknown ones, nor full replicas make a home."""
    for replicas, key in (([holder("h")], "k"), ([full("x")], "k"), ([free("f")], "unknown"), ([], "k")):
        assert route(replicas, key, Homes(), 0.0, bound=2)[1].given == {}


views = st.builds(
    RoutedReplica,
    replica_id=st.sampled_from([f"r{i}" for i in range(8)]),
    queue_len=st.integers(0, 20),
    state=st.sampled_from(S),
    graphs_enabled=st.booleans(),
    captured=st.frozensets(st.sampled_from("kxyz"), max_size=3),
    free_slots=st.integers(0, 3),
)
clusters = st.lists(views, max_size=8, unique_by=lambda r: r.replica_id)


@given(
    replicas=clusters,
    key=st.sampled_from(["k", "new", "unknown"]),
    bound=st.integers(0, 5),
    homes=st.dictionaries(st.sampled_from("kxyz"), st.sampled_from([f"r{i}" for i in range(9)])),
    avoid=st.frozensets(st.sampled_from([f"r{i}" for i in range(9)]), max_size=3),
)
def test_affinity_never_costs_more_than_the_bound(
    replicas: list[RoutedReplica],
    key: str,
    bound: int,
    homes: dict[str, str],
    avoid: frozenset[str],
) -> None:
    """Whatever replicas hold, every one that stays is ranked once and the first choice waits at most
    ``bound`` requests longer than the freest.
    """
    ranks = rank(replicas, key, bound=bound, homes=homes, avoid=avoid)
    by_id = {r.replica_id: r for r in replicas}
    staying = {r.replica_id for r in replicas if not r.state.is_leaving}
    listed = [name for names in ranks for name in names]
    assert sorted(listed) == sorted(staying)
    fresh = staying - avoid
    if fresh:
        shortest = min(by_id[name].queue_len for name in fresh)
        assert all(by_id[name].queue_len <= shortest + bound for name in ranks[0])
