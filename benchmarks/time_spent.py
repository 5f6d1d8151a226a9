"""Where requests spent their time under load, from what a server's own metrics grew by.

Of ours an exact sum for each stage, of undivided vLLM its engine's. Our engine's own are left out: Ray
rebuilds histograms with the middle of a bucket for each value, and vLLM's first bucket ends at 0.3 s.
"""

import time
from collections.abc import Mapping
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.contenders import Contender
from tests.scrape import scrape, total
from tests.servers import Server

SETTLED_S = 5.0
"""After a load, until every replica's metrics have come through Ray's agent (it reports every 2 s)."""
STAGES = "fetch", "preprocess", "queue", "encode", "transfer", "handover", "first_token"
STAGE_SUM = "ray_graphserve_stage_time_seconds_total"
OF_ENGINE = {"engine queue": "request_queue_time_seconds", "engine prefill": "request_prefill_time_seconds"}

Sums = dict[str, float]


class TimeSpent:
    """Reads each server's sums between its loads, when it is idle, and charges a load with their growth."""

    def __init__(self, servers: Mapping[str, Server], contenders: Mapping[str, Contender]) -> None:
        self.servers = servers
        self.contenders = contenders
        self.before: dict[str, Sums] = {}
        self.open: dict[str, tuple[dict[str, Any], int, float]] = {}

    def settle(self, name: str) -> None:
        """Before a load on the server: read its sums, and close the entry of the load before."""
        entry, requests, ended_s = self.open.pop(name, (None, 0, 0.0))
        time.sleep(max(0.0, ended_s + SETTLED_S - time.monotonic()))
        now = self.sums(name)
        if entry is not None and now and (before := self.before[name]):
            entry["spent_ms_per_request"] = {
                part: 1e3 * (now[part] - before[part]) / requests for part in now
            }
        self.before[name] = now

    def charge(self, name: str, entry: dict[str, Any], requests: int) -> None:
        """After a load: this entry gets what it spent as soon as that can be read."""
        self.open[name] = entry, requests, time.monotonic()

    def close(self) -> None:
        """After the last load."""
        for name in list(self.open):
            self.settle(name)

    def sums(self, name: str) -> Sums:
        """Seconds so far: by stage of ours, in the engine of undivided vLLM. Empty while none is exported."""
        server = self.servers[name]
        if self.contenders[name].config is None:
            return engine_sums(httpx.get(f"{server.base_url}/metrics", timeout=20, trust_env=False).text)
        samples = scrape(server)
        if STAGE_SUM not in samples:  # Ray's agent does not run, or has heard of no request yet
            return {}
        return {stage: total(samples, STAGE_SUM, stage=stage) for stage in STAGES}


def engine_sums(text: str) -> Sums:
    """From what vLLM's own server exports: the sums of two histograms, over all its API servers."""
    part_of = {f"vllm:{histogram}_sum": part for part, histogram in OF_ENGINE.items()}
    sums = dict.fromkeys(OF_ENGINE, 0.0)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name in part_of:
                sums[part_of[sample.name]] += sample.value
    return sums
