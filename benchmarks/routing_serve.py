"""Checks the routing simulation on a real Serve: four replicas, capture replaced by a counter, no GPU.

The replicas follow the same rules of capture as the simulated ones and hold their one "device" for a
fixed time per call; routing, reports, queues and handles are Serve's own. Open-loop arrivals, seeded.

    python -m benchmarks.routing_serve [--requests N] [--trace NAME] [--json PATH]
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.serve.config import RequestRouterConfig

from benchmarks.routing_sim import GAIN_TARGETS, Server, Setup, shares

EAGER_S = 0.030
GRAPH_S = 0.020
SETUP = Setup(load=0.5, eager_s=EAGER_S, graph_s=GRAPH_S)
ROUTERS: dict[str, dict[str, Any]] = {
    "pow2": {},
    "ours": {
        "request_router_class": "deployments.shape_router:ShapeRouter",
        "request_router_kwargs": {"bound": SETUP.bound, "max_graphs": SETUP.max_graphs},
    },
}


class CountingEncoder:
    """One replica whose graphs are counts."""

    def __init__(self) -> None:
        self.graphs = Server("", SETUP.max_graphs, SETUP.min_capture_calls, set(), OrderedDict())
        self.device = asyncio.Lock()

    async def encode(self, shape_key: str) -> tuple[bool, float]:
        """Whether it hit, and how long it waited for the device, in seconds."""
        came_s = time.monotonic()
        async with self.device:
            waited_s = time.monotonic() - came_s
            hit = self.graphs.call(shape_key)
            await asyncio.sleep(GRAPH_S if hit else EAGER_S)
        return hit, waited_s

    def record_routing_stats(self) -> dict[str, Any]:
        """The same facts that an encoder replica reports."""
        captured = sorted(self.graphs.captured)
        return {"state": "ready", "captured": captured, "free_slots": SETUP.max_graphs - len(captured)}


async def offer(handle: Any, trace: str, requests: int) -> list[tuple[bool, float]]:
    """Send the requests at their times, whatever became of those before."""
    source = random.Random(SETUP.seed)
    weights = shares(trace, SETUP.shapes, 0)
    calls, at_s, began_s = [], 0.0, time.monotonic()
    for _ in range(requests):
        at_s += source.expovariate(SETUP.arrivals_per_s)
        await asyncio.sleep(max(0.0, at_s - (time.monotonic() - began_s)))
        key = source.choices([f"s{i}" for i in range(SETUP.shapes)], weights)[0]
        calls.append(handle.encode.remote(shape_key=key))
    return list(await asyncio.gather(*calls))


def measure(router: str, trace: str, requests: int) -> dict[str, float]:
    """Hit rate and queue delay of one router under one trace, after the first quarter."""
    config = RequestRouterConfig(request_routing_stats_period_s=1.0, **ROUTERS[router])
    app = (
        serve.deployment(CountingEncoder)
        .options(
            num_replicas=SETUP.replicas,
            ray_actor_options={"num_cpus": 0},
            max_ongoing_requests=100,
            request_router_config=config,
        )
        .bind()
    )
    name = f"{router}-{trace}"
    handle = serve.run(app, name=name, route_prefix=None)
    answers = asyncio.run(offer(handle, trace, requests))[requests // 4 :]
    serve.delete(name)
    waits_s = sorted(waited_s for _, waited_s in answers)
    return {
        "hit_rate": sum(hit for hit, _ in answers) / len(answers),
        "p99_delay_ms": 1e3 * waits_s[int(0.99 * len(waits_s))],
    }


def main() -> int:
    """Print the table; 1 when a gain falls short of its target."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--requests", type=int, default=1200, help="per router and trace (default 1200)")
    parser.add_argument("--trace", choices=GAIN_TARGETS, action="append", help="default: all")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    serve.start(proxy_location="Disabled")
    rows: list[dict[str, Any]] = []
    try:
        for trace in options.trace or GAIN_TARGETS:
            row: dict[str, Any] = {"trace": trace}
            row |= {router: measure(router, trace, options.requests) for router in ROUTERS}
            row["gain"] = row["ours"]["hit_rate"] / row["pow2"]["hit_rate"]
            rows.append(row)
            print(
                f"{trace:8} hit rate pow2 {row['pow2']['hit_rate']:.3f} ours {row['ours']['hit_rate']:.3f} "
                f"gain {row['gain']:.2f} (target {GAIN_TARGETS[trace]})  p99 delay ms pow2 "
                f"{row['pow2']['p99_delay_ms']:.0f} ours {row['ours']['p99_delay_ms']:.0f}",
                flush=True,
            )
    finally:
        serve.shutdown()
        ray.shutdown()
    if options.json:
        options.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n")
    return 0 if all(row["gain"] >= GAIN_TARGETS[row["trace"]] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
