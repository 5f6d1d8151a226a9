"""Measures GraphServe against vLLM's own undivided server on this machine: ``python -m benchmarks.cpu``.

Same checkpoint, engine arguments, environment and client (``vllm bench serve``'s own code). Both servers are
up all the time and only one is under load, in turns that change order every round, so that what the machine
does meanwhile falls on both. What the other one costs while idle is measured too.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import hops, load, machine, serving_report
from benchmarks.process_time import CpuTimes
from tests.servers import ENGINE, ENVIRONMENT, ROOT, Server, running_app, running_undivided
from toy_model.write import ensure

OURS, UNDIVIDED = "graphserve", "undivided"
MODEL_NAME = "graphserve-toy"
START_TIMEOUT_S = 600.0


def main() -> int:
    """Start both servers, load them in turns, measure the hops, print and write the report."""
    options = parse()
    described = facts(options)
    model = str(ensure())
    load.prepare(options.output.with_suffix(".log"))
    with tempfile.TemporaryDirectory(prefix="bench-cpu-") as name:
        folder = Path(name)
        say("starting both servers")
        with (
            running_app(folder, timeout_s=START_TIMEOUT_S) as ours,
            running_undivided(folder, model, timeout_s=START_TIMEOUT_S) as undivided,
        ):
            servers = {OURS: ours, UNDIVIDED: undivided}
            rounds = measure_rounds(options, model, servers)
            say("measuring hops")
            samples = hops.over_http(ours.base_url, undivided.base_url, MODEL_NAME, options.hop_samples)
    say("starting the application once more for the stages of an encode")
    samples.update(hops.encode_stages(model, options.encodes, options.image_side))
    result = {
        "facts": described,
        "rounds": rounds,
        "summary": serving_report.summarise(rounds, OURS, UNDIVIDED),
        "hops": {name: serving_report.spread(values) for name, values in samples.items()},
    }
    block = serving_report.markdown(result)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    options.output.with_suffix(".md").write_text(block, encoding="utf-8")
    print(block)
    say(f"written: {options.output} and {options.output.with_suffix('.md').name}")
    return 0


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cpu", description=__doc__.split("\n\n")[0])
    parser.add_argument("--num-prompts", type=int, default=48, help="requests of one round")
    parser.add_argument("--repeats", type=int, default=5, help="rounds of each case and server")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--input-tokens", type=int, default=64)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--image-side", type=int, default=256, help="pixels; every picture is new noise")
    parser.add_argument("--hop-samples", type=int, default=300, help="requests of each kind for the hops")
    parser.add_argument("--encodes", type=int, default=40, help="pictures for the stages of an encode")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--output", type=Path, default=ROOT / ".cache" / "bench-cpu.json")
    return parser.parse_args()


def measure_rounds(
    options: argparse.Namespace, model: str, servers: dict[str, Server]
) -> list[dict[str, Any]]:
    """Every case on both servers, ``repeats`` times; round 0 warms them and is not kept."""
    kept = []
    cases = [load.Case(kind, at_once) for kind in ("text", "image") for at_once in options.concurrency]
    for number in range(options.repeats + 1):
        order = list(servers) if number % 2 else list(reversed(servers))
        for index, case in enumerate(cases):
            seed = options.seed * 10_000 + number * 100 + index  # new to both servers, equal for both
            for name in order:
                times = {other: CpuTimes(server) for other, server in servers.items()}
                figures = load.run(servers[name].base_url, model, MODEL_NAME, case, options, seed)
                entry = {"round": number, "case": case.name, "server": name, **figures}
                entry["cpu_ms_per_request"] = times[name].ms_per(options.num_prompts)
                entry["idle_cores"] = {
                    other: cpu.cores_used() for other, cpu in times.items() if other != name
                }
                if number:
                    kept.append(entry)
                say(f"round {number}, {case.name}, {name}: {figures['requests_per_s']:.2f} requests/s")
    return kept


def facts(options: argparse.Namespace) -> dict[str, Any]:
    """What a reader must know to run it again."""
    return {
        **machine.facts("benchmarks.cpu"),
        "engine": ENGINE,
        "environment": ENVIRONMENT,
        "options": {k: v for k, v in vars(options).items() if k != "output"},
    }


def say(text: str) -> None:
    """Progress, apart from the report."""
    print(f"bench-cpu: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
