"""Simulates routing encoder requests by shape: cluster hit rate and queue delay, without Ray.

Compares the router's own ranking (``policies.routing.rank``) with power-of-two choices and with an
oracle that knows every popularity, places the graphs beforehand and routes under the same load bound.
A replica is one server with one queue; it captures a shape at its ``min_capture_calls``-th call while it
has slots. Routers see captured shapes as of the last stats period and queue lengths as Serve's routers
do. Seeded: the same arguments give the same numbers.

    python -m benchmarks.routing_sim [--quick] [--seeds N] [--json PATH]
"""

import argparse
import heapq
import json
import random
import sys
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from policies.routing import Homes, RoutedReplica, rank, route

POLICIES = ("pow2", "ours", "oracle")
TRACES = ("uniform", "zipf", "drifting")
GAIN_TARGETS = {"uniform": 3.0, "zipf": 1.4}
OF_ORACLE_TARGET = 0.9
P99_RATIO_TARGET = 1.2


@dataclass(frozen=True, slots=True)
class Setup:
    """One simulated situation. Service times are those of one image slice measured on an H200."""

    replicas: int = 4
    shapes: int = 16
    max_graphs: int = 4
    min_capture_calls: int = 2
    trace: str = "uniform"
    policy: str = "ours"
    bound: int = 2
    routers: int = 1
    load: float = 0.7  # of what the replicas could do eagerly
    eager_s: float = 7.06e-3
    graph_s: float = 4.69e-3
    stats_period_s: float = 1.0
    requests: int = 40_000
    steady_from: float = 0.25  # share of the requests that is left out of the figures
    drift_every_s: float = 5.0
    seed: int = 1

    @property
    def arrivals_per_s(self) -> float:
        return self.load * self.replicas / self.eager_s


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run gave, over its steady part."""

    hit_rate: float
    mean_delay_ms: float
    p99_delay_ms: float
    shapes_held: int
    duplicates: int


@dataclass(slots=True)
class Server:
    """One replica: its queue's end, its graphs, and what was last said of it."""

    name: str
    max_graphs: int
    min_capture_calls: int
    captured: set[str]
    seen: OrderedDict[str, int]
    free_at_s: float = 0.0
    queue_len: int = 0
    reported: frozenset[str] = frozenset()

    def call(self, key: str) -> bool:
        """Run one call; True when it ran in a graph. The capturing call is a hit."""
        if key in self.captured:
            return True
        if len(self.captured) >= self.max_graphs:
            return False
        calls = self.seen.pop(key, 0) + 1
        if calls >= self.min_capture_calls:
            self.captured.add(key)
            return True
        self.seen[key] = calls
        if len(self.seen) > 4 * self.max_graphs:
            self.seen.popitem(last=False)
        return False


@lru_cache(maxsize=256)
def shares(trace: str, shapes: int, turn: int) -> tuple[float, ...]:
    """The share of each shape; a drifting trace is Zipf's with its ranks moved on by ``turn``."""
    weights = [1.0 if trace == "uniform" else (place + 1) ** -1.1 for place in range(shapes)]
    turn = turn % shapes if trace == "drifting" else 0
    weights = weights[shapes - turn :] + weights[: shapes - turn]
    return tuple(weight / sum(weights) for weight in weights)


def turn_at(setup: Setup, at_s: float) -> int:
    """How far the popularity has drifted by then."""
    return int(at_s / setup.drift_every_s) * max(1, setup.shapes // 5)


def mean_shares(setup: Setup) -> list[float]:
    """The shares over the whole trace, which only the oracle knows."""
    end_s = setup.requests / setup.arrivals_per_s
    samples = [shares(setup.trace, setup.shapes, turn_at(setup, end_s * i / 200)) for i in range(200)]
    return [sum(column) / len(samples) for column in zip(*samples, strict=True)]


def oracle_placement(setup: Setup) -> list[set[str]]:
    """Greedy: the next slot goes to the shape whose traffic it serves most of, where most time is left.

    A replica serves what it can in graphs at four fifths of its time, so that a shape too popular for
    one replica gets copies.
    """
    mean = mean_shares(setup)
    unserved, copies = list(mean), [0] * setup.shapes
    placed: list[set[str]] = [set() for _ in range(setup.replicas)]
    left = [0.8 / (setup.arrivals_per_s * setup.graph_s)] * setup.replicas
    for _ in range(setup.replicas * setup.max_graphs):
        open_to = [i for i, held in enumerate(placed) if len(held) < setup.max_graphs]
        target = max(open_to, key=lambda i: left[i])
        new = [shape for shape in range(setup.shapes) if f"s{shape}" not in placed[target]]
        if not new:
            break
        shape = max(new, key=lambda shape: (unserved[shape], mean[shape] / (copies[shape] + 1)))
        served = min(unserved[shape], max(left[target], 0.0))
        placed[target].add(f"s{shape}")
        copies[shape] += 1
        unserved[shape] -= served
        left[target] -= served
    return placed


class Simulation:
    """One run of one set-up."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.random = random.Random(setup.seed)
        placed = (
            oracle_placement(setup) if setup.policy == "oracle" else [set() for _ in range(setup.replicas)]
        )
        self.servers = [
            Server(f"replica-{i}", setup.max_graphs, setup.min_capture_calls, held, OrderedDict())
            for i, held in enumerate(placed)
        ]
        self.known = [[0] * setup.replicas for _ in range(setup.routers)]
        self.homes = [Homes()] * setup.routers
        self.index = {server.name: i for i, server in enumerate(self.servers)}

    def run(self) -> Outcome:
        setup, at_s, next_report_s = self.setup, 0.0, 0.0
        names = [f"s{i}" for i in range(setup.shapes)]
        running: list[tuple[float, int, int]] = []
        hits, delays_s = 0, []
        first = int(setup.requests * setup.steady_from)
        for number in range(setup.requests):
            at_s += self.random.expovariate(setup.arrivals_per_s)
            while running and running[0][0] <= at_s:
                self.finish(*heapq.heappop(running)[1:])
            while next_report_s <= at_s:
                self.report()
                next_report_s += setup.stats_period_s
            weights = shares(setup.trace, setup.shapes, turn_at(setup, at_s))
            key = self.random.choices(names, weights)[0]
            router = self.random.randrange(setup.routers)
            chosen = self.choose(key, router, at_s)
            server = self.servers[chosen]
            hit = server.call(key)
            start_s = max(at_s, server.free_at_s)
            server.free_at_s = start_s + (setup.graph_s if hit else setup.eager_s)
            server.queue_len += 1
            self.known[router][chosen] = server.queue_len
            heapq.heappush(running, (server.free_at_s, router, chosen))
            if number >= first:
                hits += hit
                delays_s.append(start_s - at_s)
        return self.outcome(hits, delays_s)

    def finish(self, router: int, chosen: int) -> None:
        self.servers[chosen].queue_len -= 1
        self.known[router][chosen] = max(0, self.known[router][chosen] - 1)

    def report(self) -> None:
        for server in self.servers:
            server.reported = frozenset(server.captured)

    def choose(self, key: str, router: int, now_s: float) -> int:
        known = self.known[router]
        if self.setup.policy == "pow2":
            pair = self.random.sample(range(len(known)), min(2, len(known)))
            return min(pair, key=lambda i: known[i])
        views = [
            RoutedReplica(
                server.name,
                known[i],
                captured=server.reported,
                free_slots=server.max_graphs - len(server.reported),
            )
            for i, server in enumerate(self.servers)
        ]
        if self.setup.policy == "oracle":
            ranks = rank(views, key, bound=self.setup.bound)
        else:
            homes = self.homes[router]
            ranks, self.homes[router] = route(views, key, homes, now_s, bound=self.setup.bound)
        return self.index[ranks[0][0]]

    def outcome(self, hits: int, delays_s: list[float]) -> Outcome:
        delays_s = sorted(delays_s)
        held = [key for server in self.servers for key in server.captured]
        return Outcome(
            hits / len(delays_s),
            1e3 * sum(delays_s) / len(delays_s),
            1e3 * delays_s[int(0.99 * len(delays_s))],
            len(set(held)),
            len(held) - len(set(held)),
        )


def average(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Mean over seeds."""
    rows = [asdict(outcome) for outcome in outcomes]
    return {name: sum(row[name] for row in rows) / len(rows) for name in rows[0]}


def compare(setup: Setup, seeds: int) -> dict[str, Any]:
    """All policies on the same situation, with the ratios that the targets speak of."""
    row: dict[str, Any] = {"replicas": setup.replicas, "shapes": setup.shapes, "trace": setup.trace}
    row["service"] = "measured" if setup.graph_s < setup.eager_s else "equal"
    row["routers"] = setup.routers
    for policy in POLICIES:
        runs = [Simulation(replace(setup, policy=policy, seed=seed)).run() for seed in range(1, seeds + 1)]
        row[policy] = average(runs)
    ours, pow2, oracle = row["ours"], row["pow2"], row["oracle"]
    row["of_oracle"] = ours["hit_rate"] / oracle["hit_rate"]
    row["gain"] = ours["hit_rate"] / pow2["hit_rate"]
    row["p99_ratio"] = ours["p99_delay_ms"] / max(pow2["p99_delay_ms"], 1e-9)
    return row


def verdicts(rows: Iterable[dict[str, Any]]) -> dict[str, bool]:
    """The targets, which are set for 4 replicas, 16 shapes, one router and steady popularity."""
    met = {}
    for row in rows:
        standard = (row["replicas"], row["service"], row["routers"]) == (4, "measured", 1)
        if standard and row["trace"] in GAIN_TARGETS:
            met[f"{row['trace']}: of the oracle's hit rate"] = row["of_oracle"] >= OF_ORACLE_TARGET
            met[f"{row['trace']}: gain over pow2"] = row["gain"] >= GAIN_TARGETS[row["trace"]]
            met[f"{row['trace']}: p99 queue delay"] = row["p99_ratio"] <= P99_RATIO_TARGET
    return met


def situations(quick: bool) -> Iterable[Setup]:
    """Sizes with exactly as many shapes as the cluster has slots, then harder variants of 4 replicas."""
    for replicas in (4,) if quick else (1, 2, 4, 8, 16, 32, 64):
        for trace in TRACES:
            yield Setup(replicas=replicas, shapes=4 * replicas, trace=trace)
    if not quick:
        for trace in TRACES:
            yield Setup(trace=trace, routers=3)
            yield Setup(trace=trace, graph_s=Setup().eager_s)


HEADER = (
    f"{'trace':9}{'replicas':>9}{'shapes':>7}{'routers':>8}{'service':>9} |"
    f"{'pow2':>6}{'ours':>6}{'oracle':>7}{'gain':>6}{'of oracle':>10} |"
    f"{'p99 ms pow2':>12}{'ours':>6}{'ratio':>6}"
)


def line(row: dict[str, Any]) -> str:
    """One row of the table."""
    pow2, ours, oracle = row["pow2"], row["ours"], row["oracle"]
    return (
        f"{row['trace']:9}{row['replicas']:9}{row['shapes']:7}{row['routers']:8}{row['service']:>9} |"
        f"{pow2['hit_rate']:6.3f}{ours['hit_rate']:6.3f}{oracle['hit_rate']:7.3f}{row['gain']:6.2f}"
        f"{row['of_oracle']:10.3f} |{pow2['p99_delay_ms']:12.1f}{ours['p99_delay_ms']:6.1f}"
        f"{row['p99_ratio']:6.2f}"
    )


def main() -> int:
    """Print the table and the verdicts; 1 when a target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="only the situation of the targets")
    parser.add_argument("--seeds", type=int, default=3, help="runs per situation (default 3)")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    print(f"bound {Setup().bound}, load {Setup().load} of the eager capacity, {options.seeds} seeds")
    print(HEADER)
    rows = []
    for setup in situations(options.quick):
        rows.append(compare(setup, options.seeds))
        print(line(rows[-1]), flush=True)
    met = verdicts(rows)
    for target, ok in met.items():
        print(f"{'met' if ok else 'MISSED':7}{target}")
    if options.json:
        options.json.write_text(json.dumps({"rows": rows, "targets": met}, indent=1) + "\n")
    return 0 if all(met.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
