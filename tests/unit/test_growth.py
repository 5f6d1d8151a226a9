"""What reports have more than the reports before them, and the bounded names of shapes."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from policies.growth import OTHER, ShapeNames, growth
from policies.stats import GraphStats, ReplicaReport, miss_reason

REPORT = ReplicaReport("r1", "s1", "VisionEncoder", "vision", "cuda:0", "n1", "ready", True, 1.0)


def test_the_first_report_counts_whole_and_the_next_by_what_is_more() -> None:
    """Growth of all reports of a start adds up to its last report."""
    first = replace(
        REPORT,
        stats=GraphStats(graph_hits=3, graph_misses=1, warmup_misses=1),
        calls_by_media_key=(("a", 4),),
        hits_by_media_key=(("a", 3),),
    )
    then = replace(
        first,
        stats=GraphStats(graph_hits=5, graph_misses=2, warmup_misses=1, capacity_misses=1),
        calls_by_media_key=(("a", 6), ("b", 1)),
        hits_by_media_key=(("a", 5),),
    )
    assert growth(None, first).stats == {"graph_hits": 3, "graph_misses": 1, "warmup_misses": 1}
    assert growth(None, first).items == {("a", True): 3, ("a", False): 1}
    assert growth(first, then).stats == {"graph_hits": 2, "graph_misses": 1, "capacity_misses": 1}
    assert growth(first, then).items == {("a", True): 2, ("b", False): 1}
    assert growth(then, then) == growth(first, first)
    assert growth(then, then).stats == {}


def test_a_key_that_was_forgotten_begins_anew() -> None:
    """Replicas forget the least used keys; what comes back is counted from its new beginning."""
    before = replace(REPORT, calls_by_media_key=(("a", 9), ("b", 2)), hits_by_media_key=(("a", 8),))
    after = replace(REPORT, calls_by_media_key=(("b", 1), ("a", 10)), hits_by_media_key=(("a", 9),))
    assert growth(before, after).items == {("a", True): 1, ("b", False): 1}


counts = st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 50))


@given(counts, counts, counts, counts)
def test_growth_is_never_negative(
    calls: dict[str, int], hits: dict[str, int], more: dict[str, int], more_hits: dict[str, int]
) -> None:
    """Whatever two reports say, no counter is asked to fall."""
    before = replace(REPORT, calls_by_media_key=tuple(calls.items()), hits_by_media_key=tuple(hits.items()))
    after = replace(
        REPORT, calls_by_media_key=tuple(more.items()), hits_by_media_key=tuple(more_hits.items())
    )
    assert all(count > 0 for count in growth(before, after).items.values())


@given(st.lists(st.integers(0, 400), max_size=600))
def test_names_are_few_and_stay(keys: list[int]) -> None:
    """Any traffic names at most four times as many shapes as asked for, and a name once given stays."""
    names = ShapeNames(most=3)
    given_names: set[str] = set()
    for key in keys:
        names.add({(str(key), False): 1})
        assert given_names <= names.named
        given_names = set(names.named)
    assert len(names.named) <= 12
    assert len(names.uses) <= 3 * 64
    assert {names.name(str(key)) for key in keys} <= names.named | {OTHER}


def test_the_most_used_have_names() -> None:
    """A shape that comes often is named, however many rare ones came before it."""
    names = ShapeNames(most=2)
    for n in range(7):
        names.add({(f"rare{n}", False): 1})
    names.add({("often", True): 50, ("rare9", False): 1})
    assert names.name("often") == "often"
    assert names.name("rare9") == OTHER


def test_reasons_of_misses() -> None:
    """The reasons are those that grew between two looks, in the order in which they are tried."""
    before = GraphStats(graph_misses=2, ineligible_misses=1, memory_misses=1)
    assert miss_reason(before, before) == ""
    assert miss_reason(before, replace(before, memory_misses=2)) == "memory"
    assert miss_reason(GraphStats(), replace(before, capacity_misses=1)) == "ineligible+capacity+memory"
