"""GraphServe beside undivided vLLM on one card, at real dimensions: ``python -m benchmarks.serving``.

All servers are up all the time, on the same card and cores, and one at a time is under load, in turns whose
order changes every round; the client is ``vllm bench serve``'s own code and every medium is new noise. Stops
by itself before ``--time-limit-s``; called again it goes on where it stopped. ``--model llama4`` compares the
encoder's graphs off and on, in vLLM and in GraphServe.
"""

import argparse
import contextlib
import datetime
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import psutil

from app import haproxy
from benchmarks import (
    load,
    machine,
    memory_use,
    mps,
    rounds,
    serving_options,
    serving_plan,
    serving_report,
    stages,
)
from benchmarks.contenders import DEFAULTS, GRAPHS_OFF, GRAPHS_ON, TUNED, WITH_MPS, Contender, Setup
from benchmarks.serving_plan import Plan, Results
from benchmarks.time_spent import TimeSpent
from tests.servers import Server, app_config

BEGUN_S = time.monotonic()


def main() -> int:
    """Start everyone, measure in turns, write the results; or check everyone's configuration."""
    options = serving_options.parse(__doc__)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # servers start in threads, which may not
    plan = serving_options.plan_of(options)
    planned = plan.chosen(options.more, options.cases)
    if options.report:
        print(markdown(json.loads(options.json.read_text(encoding="utf-8")), plan))
        return 0
    folder = options.work or Path(tempfile.mkdtemp(prefix="bench-serving-"))
    setup, chosen = serving_options.servers_of(options, folder)
    if options.dry_run:
        for contender in chosen.values():
            print(contender.check())
        return 0
    results = Results.open(options.json, identity(setup, options))
    load.prepare(folder / "client.log")
    try:
        with (
            load.quiet(),
            sharing(chosen) as found,
            everyone(found, folder / "servers", options.start_timeout_s) as servers,
        ):
            Bench(options, found, results, servers, plan, planned).run()
    finally:
        results.save()
        options.json.with_suffix(".md").write_text(markdown(results.kept, plan), encoding="utf-8")
    print(markdown(results.kept, plan))
    return 0


def identity(setup: Setup, options: argparse.Namespace) -> dict[str, Any]:
    """What must be equal for two runs to add to each other."""
    about = machine.describe()
    return {
        "card": machine.card() or "no GPU",
        "gpus": options.gpus,
        **{key: about[key] for key in ("cpu", "cores", "versions", "python")},
        "code": machine.code_version(),
        "engine": setup.engine,
        "api_servers_tuned": setup.api_servers,
        "mps": options.mps,
        "haproxy": haproxy.installed() and haproxy.wanted(app_config(0, source=setup.config)),
        **setup.about,
    }


@contextlib.contextmanager
def sharing(chosen: Mapping[str, Contender]) -> Iterator[dict[str, Contender]]:
    """The contenders, those with MPS told where its daemon is, which runs meanwhile."""
    with contextlib.ExitStack() as stack:
        found = dict(chosen)
        if theirs := {name: of for name, of in chosen.items() if of.mps}:
            variables = stack.enter_context(mps.running())
            found |= {name: replace(of, env={**of.env, **variables}) for name, of in theirs.items()}
        yield found


@contextlib.contextmanager
def everyone(chosen: Mapping[str, Contender], folder: Path, timeout_s: float) -> Iterator[dict[str, Server]]:
    """All servers, started and ended at the same time. Raises when one does not come up."""
    contexts: dict[str, contextlib.AbstractContextManager[Server]] = {}

    def start(contender: Contender) -> Server:
        time.sleep(contender.start_after_s)
        begun = time.monotonic()
        contexts[contender.name] = context = contender.running(folder, timeout_s)
        server = context.__enter__()
        say(f"{contender.name} is up after {time.monotonic() - begun:.0f} s")
        return server

    with ThreadPoolExecutor(len(chosen)) as pool:
        started = {name: pool.submit(start, contender) for name, contender in chosen.items()}
        try:
            ended = wait(started.values(), return_when=FIRST_EXCEPTION)
            if ended.not_done:
                end_children()  # so that those that still start give up at once
            yield {name: future.result() for name, future in started.items()}
        finally:
            wait(started.values())
            say("stopping everyone")
            up = [contexts[name] for name, future in started.items() if future.exception() is None]
            list(pool.map(lambda context: context.__exit__(None, None, None), up))


def end_children() -> None:
    """Kill every process that this one started."""
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            process.kill()


class Bench:
    """The rounds over servers that run."""

    def __init__(
        self,
        options: argparse.Namespace,
        chosen: dict[str, Contender],
        results: Results,
        servers: dict[str, Server],
        plan: Plan,
        planned: list[load.Case],
    ) -> None:
        self.options = options
        self.contenders = chosen
        self.setup = next(iter(chosen.values())).setup
        self.results = results
        self.servers = servers
        self.plan = plan
        self.planned = planned
        self.lengths = plan.lengths
        self.took_s: dict[str, float] = {}  # by case, all servers
        self.spent = TimeSpent(servers, chosen)

    def run(self) -> None:
        """Warm, note memory and stages, then measure until all is done or the time is up."""
        self.results.kept["runs"].append({**about_run(), "lengths": vars(self.lengths)})
        self.warm()
        self.note_mps_clients()
        self.note_stages()
        for number, case, names in serving_plan.to_do(
            self.planned, list(self.servers), self.options.rounds, self.results.rounds
        ):
            if self.left_s() < self.took_s.get(case.name, 20.0):
                say(f"no time left for {case.name} of round {number}")
                break
            self.measure(number, case, names)
        self.spent.close()
        self.note_memory()

    def left_s(self) -> float:
        """Until the limit, less what stopping takes."""
        return float(self.options.time_limit_s) - (time.monotonic() - BEGUN_S) - 25.0

    def warm(self) -> None:
        """A few requests of every kind to everyone at once, so that nothing is compiled or captured later."""
        cases = serving_plan.warming(self.planned)
        model = self.setup.model
        batches = [
            (case, load.make_requests(model, case.kind, case.requests, self.lengths, seed))
            for seed, case in enumerate(cases)
        ]

        def warm_one(name: str) -> None:
            target = load.Target(self.servers[name].base_url, self.setup.model, self.setup.served_name)
            for case, requests in batches:
                load.run(target, case, requests, self.lengths, load.Bounds(), 0)
            say(f"{name} is warm")

        with ThreadPoolExecutor(len(self.servers)) as pool:
            list(pool.map(warm_one, self.servers))

    def measure(self, number: int, case: load.Case, names: list[str]) -> None:
        """One case of one round, on everyone in turn."""
        begun = time.monotonic()
        if case.at_once is None:
            case = load.Case(case.kind, case.requests, rate_per_s=self.rate())
        seed = 100_000 * number + 1000 * sum(case.name.encode())  # new to everyone, equal for everyone
        requests = load.make_requests(self.setup.model, case.kind, case.requests, self.lengths, seed)
        for name in names:
            setup = self.setup
            self.spent.settle(name)
            entry = rounds.measure(
                self.servers, name, setup.model, setup.served_name, case, requests, self.lengths, seed
            )
            entry = {"round": number, "rate_per_s": case.rate_per_s, **entry}
            self.results.rounds.append(entry)
            self.spent.charge(name, entry, case.requests)
            say(
                f"round {number}, {case.name}, {name}: {entry['requests_per_s']:.2f} requests/s, TTFT "
                f"{entry['median_ttft_ms']:.0f} ms, TPOT {entry['median_tpot_ms']:.1f} ms, gap p99 "
                f"{entry['p99_itl_ms']:.0f} ms"
            )
        self.results.save()
        self.took_s[case.name] = time.monotonic() - begun

    def rate(self) -> float:
        """The offered rate of the mixture: set once, and kept with the results."""
        if "offered_rate_per_s" not in self.results.kept:
            peers = [n for n in self.servers if n in (DEFAULTS, TUNED)] or list(self.servers)
            sustained = serving_plan.offered_rate(self.results.rounds, peers)
            if sustained is None:
                raise ValueError(f"measure {serving_plan.MIXED}, 32 at once first: the rate comes from it")
            self.results.kept["offered_rate_per_s"] = sustained
        return float(self.results.kept["offered_rate_per_s"])

    def note_mps_clients(self) -> None:
        """How many processes found the daemon. Raises RuntimeError when some went on without it."""
        theirs = [of for of in self.contenders.values() if of.mps]
        if theirs:
            wanted = len(theirs) * (1 + len(self.setup.encoders))
            self.results.kept["mps_clients"] = found = mps.clients(theirs[0].env)
            if found < wanted:
                raise RuntimeError(f"{found} processes share the GPU by MPS where {wanted} should")

    def note_memory(self) -> None:
        """Memory of every process after the load, and what the servers say of their encoder graphs."""
        kept = self.results.kept
        for name, server in self.servers.items():
            contender = self.contenders[name]
            kept["memory"][name] = memory_use.memory_mib(server)
            if contender.config is not None:
                report = httpx.get(f"{server.base_url}/v1/graphs", timeout=20, trust_env=False).json()
                kept.setdefault("graphs", {})[name] = report["replicas"]
            if (found := contender.encoder_graphs(server)) is not None:
                kept.setdefault("encoder_graphs", {})[name] = found
        kept["gpu_used_mib"] = memory_use.used_mib()

    def note_stages(self) -> None:
        """Stage times of single encodes of our servers."""
        for name, server in self.servers.items():
            if name in (GRAPHS_OFF, GRAPHS_ON, WITH_MPS) and name not in self.results.kept["stages"]:
                samples = stages.of_server(server, self.setup.model, self.plan.staged, self.options.encodes)
                self.results.kept["stages"][name] = {
                    stage: serving_report.spread(values) for stage, values in samples.items()
                }
                say(f"stages of {name}: done")
        self.results.save()


def about_run() -> dict[str, Any]:
    """When and how this call ran."""
    return {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="minutes"),
        "command": " ".join(["python -m benchmarks.serving", *sys.argv[1:]]),
        **machine.describe(),
    }


def markdown(kept: Mapping[str, Any], plan: Plan) -> str:
    """The tables for docs/numbers.md."""
    measured = kept["rounds"]
    summary = serving_report.summarise(measured)
    of = kept["identity"]
    rate = kept.get("offered_rate_per_s")
    offered = f"; mixture offered at {rate:.2f} requests/s" if rate else ""
    parts = [
        f"Card {of['card']}, {of['cores']} cores, code {of['code']}, "
        f"HAProxy before GraphServe: {'yes' if of.get('haproxy') else 'no'}, "
        f"GraphServe with MPS: {'yes' if of.get('mps') else 'no'}, "
        f"runs: {', '.join(run['date'] for run in kept['runs'])}{offered}.",
        serving_report.figures_table(summary),
        serving_report.encoder_graphs_lines(kept.get("encoder_graphs", {})),
        serving_report.targets_table(measured, plan.targets),
        *(serving_report.ratios_table(measured, summary, on, [off]) for on, off in plan.pairs),
        serving_report.savings_table(measured, kept["stages"], GRAPHS_ON, GRAPHS_OFF),
        serving_report.spent_table(measured),
        serving_report.processor_table(summary),
        serving_report.stages_table(kept["stages"]),
        serving_report.memory_table(kept["memory"]),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def say(text: str) -> None:
    """Progress, apart from the report."""
    print(f"bench {time.monotonic() - BEGUN_S:5.0f} s: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
