"""GraphServe beside undivided vLLM on one card, MiniCPM-o 4.5's dimensions: ``python -m benchmarks.serving``.

All servers are up all the time, on the same card and cores, and one at a time is under load, in turns whose
order changes every round; the client is ``vllm bench serve``'s own code and every medium is new noise. Stops
by itself before ``--time-limit-s``; called again it goes on where it stopped.
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
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks import contenders, load, machine, memory_use, rounds, serving_plan, serving_report, stages
from benchmarks.contenders import DEFAULTS, GRAPHS_OFF, GRAPHS_ON, TUNED, Contender, Setup
from benchmarks.serving_plan import Results
from tests.servers import ROOT, Server

LENGTHS = load.Lengths(tokens_in=100, tokens_out=64)
TOY = (load.Lengths(tokens_in=16, tokens_out=8), serving_plan.Sizes(140, 420, 0.05))
REAL = (LENGTHS, serving_plan.Sizes())
BEGUN_S = time.monotonic()


def main() -> int:
    """Start everyone, measure in turns, write the results; or check everyone's configuration."""
    options = parse()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # servers start in threads, which may not
    if options.report:
        print(markdown(json.loads(options.json.read_text(encoding="utf-8"))))
        return 0
    folder = options.work or Path(tempfile.mkdtemp(prefix="bench-serving-"))
    real = options.card == "gpu" or options.model == "real"
    setup = contenders.on_gpu(folder, contenders.cores()) if real else contenders.on_cpu()
    chosen = contenders.contenders(setup, options.gpus)
    if options.only:
        chosen = {name: chosen[name] for name in options.only}
    if options.dry_run:
        for contender in chosen.values():
            print(contender.check())
        return 0
    results = Results.open(options.json, identity(setup, options))
    load.prepare(folder / "client.log")
    try:
        with load.quiet(), everyone(chosen, folder / "servers", options.start_timeout_s) as servers:
            Bench(options, setup, results, servers, *(REAL if real else TOY)).run()
    finally:
        results.save()
        options.json.with_suffix(".md").write_text(markdown(results.kept), encoding="utf-8")
    print(markdown(results.kept))
    return 0


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serving", description=__doc__)
    parser.add_argument(
        "--card", choices=["gpu", "cpu"], default="gpu", help="cpu: the toy, to try the program"
    )
    parser.add_argument("--model", choices=["real", "toy"], help="default: real on the GPU, toy on the CPU")
    parser.add_argument("--gpus", type=int, choices=[1, 2], default=1, help="2: the layouts over two GPUs")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these servers alone, to try something")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of every case and server")
    parser.add_argument("--more", action="store_true", help="30 s of audio and 8 at once too")
    parser.add_argument("--time-limit-s", type=float, default=1e9, help="of the whole program")
    parser.add_argument("--start-timeout-s", type=float, default=400.0)
    parser.add_argument("--encodes", type=int, default=12, help="single encodes of each kind, for the stages")
    parser.add_argument("--json", type=Path, default=ROOT / "benchmarks" / "results" / "serving_h200.json")
    parser.add_argument("--work", type=Path, help="folder for the checkpoint, logs and compile caches")
    parser.add_argument("--dry-run", action="store_true", help="resolve every configuration, start nothing")
    parser.add_argument("--report", action="store_true", help="print the tables of what there is")
    return parser.parse_args()


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
    }


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
        setup: Setup,
        results: Results,
        servers: dict[str, Server],
        lengths: load.Lengths,
        sizes: serving_plan.Sizes,
    ) -> None:
        self.options = options
        self.setup = setup
        self.results = results
        self.servers = servers
        self.lengths = lengths
        self.sizes = sizes
        self.took_s: dict[str, float] = {}  # by case, all servers

    def run(self) -> None:
        """Warm, note memory and stages, then measure until all is done or the time is up."""
        self.results.kept["runs"].append({**about_run(), "lengths": vars(self.lengths)})
        self.warm()
        self.note_stages()
        planned = serving_plan.cases(self.sizes, core_only=not self.options.more)
        for number, case, names in serving_plan.to_do(
            planned, list(self.servers), self.options.rounds, self.results.rounds
        ):
            if self.left_s() < self.took_s.get(case.name, 20.0):
                say(f"no time left for {case.name} of round {number}")
                break
            self.measure(number, case, names)
        self.note_memory()

    def left_s(self) -> float:
        """Until the limit, less what stopping takes."""
        return float(self.options.time_limit_s) - (time.monotonic() - BEGUN_S) - 25.0

    def warm(self) -> None:
        """A few requests of every kind to everyone at once, so that nothing is compiled or captured later."""
        kinds = [k for k in serving_plan.kinds(self.sizes).values() if not k.every_second_text]
        cases = [
            load.Case(kind, count, at_once)
            for kind in kinds
            for count, at_once in ((4, 1), (self.sizes.count(12), 12))
        ]
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
            entry = rounds.measure(
                self.servers, name, setup.model, setup.served_name, case, requests, self.lengths, seed
            )
            self.results.rounds.append({"round": number, "rate_per_s": case.rate_per_s, **entry})
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
            self.results.kept["offered_rate_per_s"] = serving_plan.offered_rate(self.results.rounds, peers)
        return float(self.results.kept["offered_rate_per_s"])

    def note_memory(self) -> None:
        """Memory of every process after the load, and what our encoders say of their graphs."""
        self.results.kept["memory"] = {n: memory_use.memory_mib(s) for n, s in self.servers.items()}
        self.results.kept["graphs"] = {
            name: httpx.get(f"{server.base_url}/v1/graphs", timeout=20, trust_env=False).json()["replicas"]
            for name, server in self.servers.items()
            if name not in (DEFAULTS, TUNED, contenders.TWO_REPLICAS)
        }
        self.results.kept["gpu_used_mib"] = memory_use.used_mib()

    def note_stages(self) -> None:
        """Stage times of single encodes of our servers."""
        of = serving_plan.kinds(self.sizes)
        wanted = [of[name] for name in (serving_plan.SMALL, serving_plan.LARGE, serving_plan.AUDIO_5)]
        for name, server in self.servers.items():
            if name in (GRAPHS_OFF, GRAPHS_ON) and name not in self.results.kept["stages"]:
                samples = stages.of_server(server, self.setup.model, wanted, self.options.encodes)
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


def markdown(kept: Mapping[str, Any]) -> str:
    """The tables for docs/numbers.md."""
    measured = kept["rounds"]
    summary = serving_report.summarise(measured)
    of = kept["identity"]
    parts = [
        f"Card {of['card']}, {of['cores']} cores, code {of['code']}, "
        f"runs: {', '.join(run['date'] for run in kept['runs'])}; mixture offered at "
        f"{kept.get('offered_rate_per_s') or 0:.2f} requests/s.",
        serving_report.figures_table(summary),
        serving_report.targets_table(measured, serving_plan.targets()),
        serving_report.ratios_table(measured, summary, GRAPHS_ON, [GRAPHS_OFF]),
        serving_report.processor_table(summary),
        serving_report.stages_table(kept["stages"]),
        serving_report.memory_table(kept["memory"]),
    ]
    return "\n\n".join(parts) + "\n"


def say(text: str) -> None:
    """Progress, apart from the report."""
    print(f"bench {time.monotonic() - BEGUN_S:5.0f} s: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
