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

from benchmarks import hops, load, machine, rounds, serving_report
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
            with load.quiet():
                measured = measure_rounds(options, model, servers)
            say("measuring hops")
            samples = hops.over_http(ours.base_url, undivided.base_url, MODEL_NAME, options.hop_samples)
    say("starting the application once more for the stages of an encode")
    samples.update(hops.encode_stages(model, options.encodes, options.image_side))
    result = {
        "facts": described,
        "rounds": measured,
        "summary": serving_report.summarise(measured),
        "hops": {name: serving_report.spread(values) for name, values in samples.items()},
    }
    block = markdown(result)
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
    lengths = load.Lengths(options.input_tokens, options.output_tokens)
    kinds = (load.Kind("text"), load.Kind("image", image_px=(options.image_side, options.image_side)))
    cases = [
        load.Case(kind, options.num_prompts, at_once) for kind in kinds for at_once in options.concurrency
    ]
    for number in range(options.repeats + 1):
        for index, case in enumerate(cases):
            seed = options.seed * 10_000 + number * 100 + index  # new to both servers, equal for both
            requests = load.make_requests(model, case.kind, case.requests, lengths, seed)
            for name in servers if number % 2 else reversed(servers):
                entry = rounds.measure(servers, name, model, MODEL_NAME, case, requests, lengths, seed)
                if number:
                    kept.append({"round": number, **entry})
                say(f"round {number}, {case.name}, {name}: {entry['requests_per_s']:.2f} requests/s")
    return kept


def markdown(result: dict[str, Any]) -> str:
    """The block for docs/numbers.md."""
    facts, options = result["facts"], result["facts"]["options"]
    head = (
        f"### Against vLLM's undivided server on CPUs, {facts['date']}\n\n"
        f"`{facts['command']}` at {facts['commit'] or 'no commit'} (load average before "
        f"{facts['load_average'][0]}); {serving_report.versions_line(facts)}; embedded model, float32, one "
        f"thread.\n{options['repeats']} rounds of {options['num_prompts']} requests by server and case, in "
        f"turns: {options['input_tokens']} random tokens in, {options['output_tokens']} out, pictures of "
        f"{options['image_side']} x {options['image_side']} new noise. Medians of the rounds with least and "
        "largest; a ratio compares the two servers within a round."
    )
    parts = [
        head,
        serving_report.figures_table(result["summary"]),
        serving_report.ratios_table(result["rounds"], result["summary"], OURS, [UNDIVIDED]),
        serving_report.processor_table(result["summary"]),
        hops.table(result["hops"]),
    ]
    return "\n\n".join(parts) + "\n"


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
