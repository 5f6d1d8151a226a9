"""The report of benchmarks/cpu.py, and which process counts as what. Needs nothing."""

import pytest

from benchmarks import serving_report
from benchmarks.process_time import part_of


def _round(server: str, speed: float) -> serving_report.Round:
    return {
        "case": "text, 1 at once",
        "server": server,
        "requests_per_s": speed,
        "median_ttft_ms": 100 / speed,
        "p99_ttft_ms": 200 / speed,
        "median_tpot_ms": 10 / speed,
        "cpu_ms_per_request": {"engine": 50 / speed},
        "idle_cores": {"another": 0.02},
    }


def test_ratios_compare_within_a_round() -> None:
    """A machine that is slower in one round makes both servers slower and leaves the ratio alone."""
    rounds = [_round("a", 8), _round("b", 10), _round("a", 4), _round("b", 5)]
    summary = serving_report.summarise(rounds, "a", "b")["text, 1 at once"]
    ratio = summary["ratios"]["requests_per_s"]
    assert (ratio["min"], ratio["max"]) == (0.8, 0.8)
    assert summary["ours"]["figures"]["requests_per_s"]["median"] == 6


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
    found = serving_report.differences({name: {"median": ms} for name, ms in names.items()})
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
        (["raylet"], "Ray and the rest"),
    ],
)
def test_a_process_counts_for_its_part(command: list[str], part: str) -> None:
    """Ray's and vLLM's process titles say what a process is for."""
    assert part_of(command) == part
