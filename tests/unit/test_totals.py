"""Cluster totals and the public report. Needs nothing."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.recycling import Refusal
from policies.recycling_history import RecyclingHistory
from policies.stats import COUNTERS, GraphStats, ReplicaReport
from policies.totals import KEEP_GONE_S, ClusterState, Totals, cluster_report

REPORT = ReplicaReport(
    replica_id="r1",
    start_id="s1",
    deployment="VisionEncoder",
    encoder="vision",
    device="cuda:0",
    node_id="n1",
    state="ready",
    graphs_enabled=True,
    taken_at_s=50.0,
    captured=("32x32",),
    captured_media=("32x32",),
    modules_loaded=("vpm", "resampler"),
    preprocessing="fast",
    hits_by_graph=(("32x32", 3),),
    calls_by_media_key=(("32x32", 4), ("64x16", 1)),
    hits_by_media_key=(("32x32", 3),),
    stats=GraphStats(graph_hits=3, graph_misses=1, warmup_misses=1, num_graphs=1),
)
EMPTY = Totals.begin(100.0, {"vision": "calls", "audio": "calls"})


@pytest.mark.rule("C3")
def test_a_restarted_replica_adds_to_what_it_counted_before() -> None:
    """A new start of the same replica begins at zero and the totals keep the old start's counts."""
    totals = EMPTY.with_report(REPORT, 101.0)
    again = replace(REPORT, start_id="s2", taken_at_s=60.0, stats=GraphStats(graph_hits=5, num_graphs=1))
    totals = totals.with_report(again, 110.0).with_alive({"r1"}, 111.0)
    assert totals.per_encoder()["vision"].graph_hits == 8
    assert [seen.report.start_id for seen in totals.living()] == ["s2"]


@pytest.mark.rule("C3")
def test_a_replica_that_left_still_counts() -> None:
    """What a replica counted stays in the totals when it goes, at once and after it is folded away."""
    totals = EMPTY.with_report(REPORT, 101.0)
    for now_s in (102.0, 103.0 + KEEP_GONE_S, 104.0 + 2 * KEEP_GONE_S):
        totals = totals.with_alive(set(), now_s)
        assert totals.living() == ()
        assert totals.per_encoder()["vision"].graph_hits == 3
    assert not totals.starts, "a start that is long gone is still remembered one by one"


def test_a_late_report_changes_nothing() -> None:
    """A report that was overtaken by a newer one of its start is dropped."""
    totals = EMPTY.with_report(REPORT, 101.0)
    late = replace(REPORT, taken_at_s=49.0, stats=GraphStats(graph_hits=1))
    assert totals.with_report(late, 102.0) == totals


def test_a_replica_that_was_given_up_and_speaks_again_counts_once() -> None:
    """A replica thought gone that reports again is the same start, not a second one."""
    totals = EMPTY.with_report(REPORT, 101.0).with_alive(set(), 102.0)
    totals = totals.with_report(replace(REPORT, taken_at_s=70.0), 120.0).with_alive({"r1"}, 121.0)
    assert totals.per_encoder()["vision"].graph_hits == 3
    assert len(totals.living()) == 1


def test_a_report_in_another_unit_is_refused() -> None:
    """Calls are never added to items."""
    with pytest.raises(ValueError, match="counted in calls"):
        EMPTY.with_report(replace(REPORT, stats=GraphStats(unit="items")), 101.0)
    unnamed = Totals.begin(0.0, {}).with_report(REPORT, 101.0)
    with pytest.raises(ValueError, match="counted in calls"):
        unnamed.with_report(replace(REPORT, start_id="s2", stats=GraphStats(unit="items")), 102.0)


def test_usage_is_summed_per_deployment() -> None:
    """The media keys asked for are summed over a deployment's replicas, those recently gone included."""
    other = replace(REPORT, replica_id="r2", start_id="s2", calls_by_media_key=(("64x16", 5),))
    audio = replace(REPORT, replica_id="r3", start_id="s3", deployment="AudioEncoder")
    totals = EMPTY
    for report in (REPORT, other, audio):
        totals = totals.with_report(report, 101.0)
    totals = totals.with_alive({"r2", "r3"}, 102.0)
    assert totals.calls_by_media_key("VisionEncoder") == {"32x32": 4, "64x16": 6}


counts = st.integers(0, 5)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("report"), st.integers(0, 3), st.integers(0, 3), counts),
        st.tuples(st.just("alive"), st.sets(st.integers(0, 3))),
        st.tuples(st.just("wait"), st.sampled_from([1.0, KEEP_GONE_S])),
    ),
    max_size=40,
)


@pytest.mark.rule("C3")
@given(steps)
def test_totals_never_go_backwards(sequence: list[tuple[object, ...]]) -> None:
    """However replicas report, restart, go and come back, no total ever falls."""
    totals, now_s = EMPTY, 100.0
    for step in sequence:
        before = totals.per_encoder()["vision"]
        now_s += 1.0
        if step[0] == "report":
            _, replica, start, number = step
            report = replace(
                REPORT,
                replica_id=f"r{replica}",
                start_id=f"s{replica}-{start}",
                taken_at_s=now_s,
                stats=GraphStats(**dict.fromkeys(COUNTERS, number)),  # type: ignore[arg-type]
            )
            totals = totals.with_report(report, now_s)
        elif step[0] == "alive":
            totals = totals.with_alive({f"r{i}" for i in step[1]}, now_s)  # type: ignore[attr-defined]
        else:
            now_s += step[1]  # type: ignore[operator]
        after = totals.per_encoder()["vision"]
        assert all(getattr(after, name) >= getattr(before, name) for name in COUNTERS)


@pytest.mark.rule("C3")
@given(st.permutations(range(5)))
def test_the_order_of_replicas_does_not_matter(order: list[int]) -> None:
    """Reports merge by addition: their order changes no sum."""
    totals = EMPTY
    for i in order:
        stats = GraphStats(graph_hits=10**i, graph_misses=i, capacity_misses=i)
        totals = totals.with_report(replace(REPORT, replica_id=f"r{i}", start_id=f"s{i}", stats=stats), 101.0)
    assert totals.per_encoder()["vision"].graph_hits == 11111


def test_the_report_is_the_public_schema() -> None:
    """The report has the documented keys, is plain JSON, and shows every encoder from the start."""
    history = RecyclingHistory().with_recycle("r0", "VisionEncoder", "failed for good: x", 90.0)
    state = ClusterState(EMPTY.with_report(REPORT, 101.0), history, ((Refusal("r9", "no such"), 95.0),))
    report = json.loads(json.dumps(cluster_report(state, 103.5)))
    assert list(report) == ["totals", "counting_since", "replicas", "recycles", "refusals"]
    assert list(report["totals"]) == ["vision", "audio"]
    assert set(report["totals"]["audio"]) == {*COUNTERS, "hit_rate", "unit"}
    assert report["totals"]["vision"]["hit_rate"] == 0.75
    assert report["counting_since"] == 100.0
    assert report["replicas"] == [
        {
            "replica_id": "r1",
            "start_id": "s1",
            "deployment": "VisionEncoder",
            "encoder": "vision",
            "device": "cuda:0",
            "node_id": "n1",
            "state": "ready",
            "graphs_enabled": True,
            "captured": ["32x32"],
            "age_s": 2.5,
            "stale": False,
            "modules_loaded": ["vpm", "resampler"],
            "preprocessing": "fast",
            "hits_by_graph": {"32x32": 3},
            "shapes": [
                {"shape": "32x32", "calls": 4, "hits": 3, "captured": True},
                {"shape": "64x16", "calls": 1, "hits": 0, "captured": False},
            ],
            "leaked_bytes": 0,
            "queued_s": 0.0,
            "seconds_per_token": 0.0,
            "stats": REPORT.stats.as_dict(),
        }
    ]
    assert report["recycles"] == [
        {
            "replica_id": "r0",
            "replacement": None,
            "reason": "failed for good: x",
            "requested_at": 90.0,
            "ready_at": None,
        }
    ]
    assert report["refusals"] == [{"replica_id": "r9", "reason": "no such", "at": 95.0}]


def test_a_silent_replica_shows_as_stale_by_the_controllers_clock() -> None:
    """Age is counted from when a report came, whatever the replica's own clock says."""
    state = ClusterState(EMPTY.with_report(replace(REPORT, taken_at_s=9e9), 101.0))
    (line,) = cluster_report(state, 108.0, stale_after_s=5.0)["replicas"]
    assert (line["age_s"], line["stale"]) == (7.0, True)
