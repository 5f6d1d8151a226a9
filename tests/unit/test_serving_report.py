"""The tables of the serving benchmarks, and which process counts as what. Needs nothing."""

import pytest

from benchmarks import hops, serving_report
from benchmarks.process_time import part_of
from benchmarks.time_spent import TimeSpent, engine_sums

CASE = "text, 1 at once"


def _round(server: str, speed: float, number: int) -> serving_report.Round:
    return {
        "case": CASE,
        "round": number,
        "server": server,
        "requests_per_s": speed,
        "median_ttft_ms": 100 / speed,
        "p99_ttft_ms": 200 / speed,
        "median_tpot_ms": 10 / speed,
        "good_requests_per_s": speed,
        "p99_itl_ms": 20 / speed,
        "cpu_ms_per_request": {"engine": 50 / speed},
        "idle_cores": {"another": 0.02},
    }


def test_ratios_compare_within_a_round() -> None:
    """A machine that is slower in one round makes both servers slower and leaves the ratio alone."""
    rounds = [_round("a", 8, 1), _round("b", 10, 1), _round("a", 4, 2), _round("b", 5, 2)]
    assert serving_report.ratios(rounds, CASE, "requests_per_s", "a", ["b"]) == [0.8, 0.8]
    assert serving_report.summarise(rounds)[CASE]["a"]["figures"]["requests_per_s"]["median"] == 6


def test_a_ratio_is_over_the_best_of_the_others() -> None:
    """The best of several is the fastest: the most requests a second, the fewest milliseconds."""
    rounds = [_round("a", 8, 1), _round("b", 10, 1), _round("c", 16, 1)]
    assert serving_report.ratios(rounds, CASE, "requests_per_s", "a", ["b", "c"]) == [0.5]
    assert serving_report.ratios(rounds, CASE, "median_ttft_ms", "a", ["b", "c"]) == [2.0]


def test_a_round_without_one_of_the_servers_has_no_ratio() -> None:
    """A run that stopped in the middle of a round adds nothing to the ratios of that round."""
    rounds = [_round("a", 8, 1), _round("b", 10, 1), _round("a", 4, 2)]
    assert serving_report.ratios(rounds, CASE, "requests_per_s", "a", ["b"]) == [0.8]


def test_a_missed_target_is_said_to_be_missed() -> None:
    """The verdict goes by the median ratio and the bound's direction."""
    rounds = [_round("a", 8, 1), _round("b", 10, 1)]
    much = serving_report.Target(CASE, "requests_per_s", "a", ("b",), at_least=1.0)
    fast = serving_report.Target(CASE, "median_ttft_ms", "a", ("b",), at_most=1.3)
    near = serving_report.Target(CASE, "median_ttft_ms", "a", ("b",), at_most_more=2.0)
    table = serving_report.targets_table(rounds, [much, fast, near]).splitlines()
    assert table[-3].endswith("| >= 1 | 0.80 | **missed** |")
    assert table[-2].endswith("| <= 1.3 | 1.25 | met |")
    assert table[-1].endswith("| at most 2 more | 2.50 | **missed** |")


def test_what_graphs_save_bounds_the_ratios() -> None:
    """15 ms saved of 50 to the first token allow a TTFT ratio of 0.7; of 150 in all, 1.11 requests/s."""
    rounds = [
        {**_round("off", 5, 1), "median_ttft_ms": 50.0, "median_e2el_ms": 150.0},
        {**_round("on", 6, 1), "median_ttft_ms": 40.0, "median_e2el_ms": 125.0},
    ]
    stages = {
        server: {"encode of text: queue": {"median": 9.0}, "encode of text: encoder": {"median": ms}}
        for server, ms in (("off", 20.0), ("on", 5.0))
    }
    lines = serving_report.savings_table(rounds, stages, "on", "off").splitlines()
    assert lines[2:] == [f"| {CASE} | 20.0 | 5.0 | 50.0 | 0.70 | 0.80 | 1.11 | 1.20 |"]


def test_rows_without_the_graphs_that_were_asked_for_are_named() -> None:
    """A server that holds none is said to have run eagerly; another is given with what it held and hit."""
    found = {"a": {"held": 0, "hits": 0}, "b": {"held": 7, "hits": None}, "c": {"held": 25, "hits": 9}}
    assert serving_report.encoder_graphs_lines(found).splitlines() == [
        "- a: asked for encoder graphs and held none, so that these rows ran eagerly.",
        "- b: 7 encoder graphs held.",
        "- c: 25 encoder graphs held, 9 hits.",
    ]


def test_percentile_is_the_nearest_rank() -> None:
    """The 99th of a hundred values is the 99th, and of a few the largest."""
    assert serving_report.spread([float(n) for n in range(1, 101)])["p99"] == 99
    assert serving_report.spread([1.0, 3.0, 2.0])["p99"] == 3


def test_hops_are_differences() -> None:
    """What a hop costs is the longer request less the one that is equal up to it."""
    names = {
        "GET /-/healthz (Serve's proxy)": 1.0,
        "GET /health/live (proxy, Ingress)": 4.0,
        "GET /v1/models (proxy, Ingress, Decoder)": 9.0,
        "chat, 1 token": 20.0,
        "chat, 1 token, undivided": 5.0,
        "chat, 65 tokens streamed": 20.0 + 64 * 3,
        "chat, 65 tokens streamed, undivided": 5.0 + 64 * 2,
    }
    found = hops.differences({name: {"median": ms} for name, ms in names.items()})
    assert list(found.values()) == [1.0, 3.0, 5.0, 15.0, 3.0, 2.0, 1.0]


@pytest.mark.parametrize(
    ("command", "part"),
    [
        (["ray::ServeReplica:graphserve:VisionEncoder.encode"], "VisionEncoder"),
        (["ray::ServeReplica:graphserve:Ingress"], "Ingress"),
        (["ray::ProxyActor"], "Serve's proxy"),
        (["VLLM::EngineCore"], "engine"),
        (["python", "-c", "from multiprocessing.spawn import spawn_main"], "preprocessing"),
        (["python", "-m", "vllm.entrypoints.openai.api_server"], "API server"),
        (["VLLM::APIServer_3"], "API server"),
        (["python", "-m", "benchmarks.vllm_serve", "serve"], "API server"),
        (["raylet"], "Ray and the rest"),
    ],
)
def test_a_process_counts_for_its_part(command: list[str], part: str) -> None:
    """Ray's and vLLM's process titles say what a process is for."""
    assert part_of(command) == part


def test_a_loads_stages_are_what_the_sums_grew_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 s more of encode after 8 requests are 500 ms each; what was before is no part of that."""
    found = iter([{"encode": 10.0}, {"encode": 14.0}, {"encode": 20.0}, {}])
    spent = TimeSpent({}, {})
    monkeypatch.setattr(spent, "sums", lambda name: next(found))
    monkeypatch.setattr("benchmarks.time_spent.SETTLED_S", 0.0)
    first, second = _round("a", 8, 1), _round("a", 8, 2)
    spent.settle("a")
    spent.charge("a", first, 8)
    spent.settle("a")
    spent.charge("a", second, 12)
    spent.settle("a")
    unseen = _round("a", 8, 3)  # no agent exports: that is no time of 0
    spent.charge("a", unseen, 8)
    spent.close()
    assert "spent_ms_per_request" not in unseen
    assert [entry["spent_ms_per_request"] for entry in (first, second)] == [{"encode": 500.0}] * 2
    lines = serving_report.spent_table([first, second, _round("b", 8, 1)]).splitlines()
    assert lines == ["| load | server | encode, ms |", "|---|---|---|", f"| {CASE} | a | 500.0 |"]


def test_a_load_is_not_charged_with_what_came_before_the_first_reading(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing was exported before the load, so that the warm-up's time cannot be told from the load's."""
    found = iter([{}, {"encode": 14.0}])
    spent = TimeSpent({}, {})
    monkeypatch.setattr(spent, "sums", lambda name: next(found))
    monkeypatch.setattr("benchmarks.time_spent.SETTLED_S", 0.0)
    entry = _round("a", 8, 1)
    spent.settle("a")
    spent.charge("a", entry, 8)
    spent.close()
    assert "spent_ms_per_request" not in entry


def test_an_engines_times_are_the_sums_of_its_histograms() -> None:
    """Of every API server and engine together; buckets, counts and other metrics are no part of them."""
    name = "vllm:request_queue_time_seconds"
    text = (
        f"# TYPE {name} histogram\n"
        f'{name}_bucket{{engine="0",le="0.3"}} 7\n{name}_bucket{{engine="0",le="+Inf"}} 7\n'
        f'{name}_count{{engine="0"}} 7\n{name}_sum{{engine="0"}} 1.5\n{name}_sum{{engine="1"}} 0.25\n'
        "# TYPE vllm:prompt_tokens counter\nvllm:prompt_tokens_total 99\n"
    )
    assert engine_sums(text) == {"engine queue": 1.75, "engine prefill": 0.0}
