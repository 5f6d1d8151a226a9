"""From the rounds of ``benchmarks.cpu`` to its summary and its table. Pure."""

from collections.abc import Iterable, Sequence
from statistics import median
from typing import Any

FIGURES = {
    "requests_per_s": "requests/s",
    "median_ttft_ms": "TTFT, ms",
    "p99_ttft_ms": "TTFT p99, ms",
    "median_tpot_ms": "TPOT, ms",
}
Round = dict[str, Any]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Median, least, largest and the 99th percentile (nearest rank) of a sample."""
    ordered = sorted(values)
    return {
        "median": median(ordered),
        "min": ordered[0],
        "max": ordered[-1],
        "p99": ordered[max(0, -(-99 * len(ordered) // 100) - 1)],
        "count": len(ordered),
    }


def percentiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Median, 10th and 90th percentile (nearest rank) of a sample."""
    ordered = sorted(values)
    last = len(ordered) - 1
    return median(ordered), ordered[round(0.1 * last)], ordered[round(0.9 * last)]


def summarise(rounds: Iterable[Round], ours: str, other: str) -> dict[str, Any]:
    """By case: each server's figures, the ratios ours / other of the same round, processor time."""
    by_case: dict[str, dict[str, list[Round]]] = {}
    for entry in rounds:
        by_case.setdefault(entry["case"], {}).setdefault(entry["server"], []).append(entry)
    return {
        case: {
            **{name: _server(entries) for name, entries in (("ours", of[ours]), ("other", of[other]))},
            "ratios": {
                figure: spread(
                    [a[figure] / b[figure] for a, b in zip(of[ours], of[other], strict=True) if b[figure]]
                )
                for figure in FIGURES
            },
        }
        for case, of in by_case.items()
    }


def _server(entries: list[Round]) -> dict[str, Any]:
    parts = sorted({part for entry in entries for part in entry["cpu_ms_per_request"]})
    return {
        "figures": {figure: spread([entry[figure] for entry in entries]) for figure in FIGURES},
        "cpu_ms_per_request": {
            part: median([entry["cpu_ms_per_request"].get(part, 0.0) for entry in entries]) for part in parts
        },
        "idle_cores_of_the_other": median([sum(entry["idle_cores"].values()) for entry in entries]),
    }


def markdown(result: dict[str, Any]) -> str:
    """The block for docs/numbers.md."""
    parts = [_head(result["facts"]), _cases(result), _processor_time(result["summary"]), _hops(result)]
    return "\n\n".join(parts) + "\n"


def _head(facts: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    options = facts["options"]
    return (
        f"### Against vLLM's undivided server on CPUs, {facts['date']}\n\n"
        f"`{facts['command']}` at {facts['commit'] or 'no commit'} on {facts['cores']} cores of "
        f"{facts['cpu']}, {facts['memory_gib']} GiB (load average before {facts['load_average'][0]}); "
        f"{versions}; embedded model, float32, one thread.\n"
        f"{options['repeats']} rounds of {options['num_prompts']} requests by server and case, in turns: "
        f"{options['input_tokens']} random tokens in, {options['output_tokens']} out, pictures of "
        f"{options['image_side']} x {options['image_side']} new noise. Medians of the rounds with least and "
        "largest; a ratio compares the two servers within a round."
    )


def _cases(result: dict[str, Any]) -> str:
    lines = ["| load | figure | GraphServe | undivided | ratio |", "|---|---|---|---|---|"]
    for case, of in result["summary"].items():
        for figure, title in FIGURES.items():
            ours, other = (_range(of[name]["figures"][figure]) for name in ("ours", "other"))
            lines.append(f"| {case} | {title} | {ours} | {other} | {_range(of['ratios'][figure], 2)} |")
    return "\n".join(lines)


def _processor_time(summary: dict[str, Any]) -> str:
    lines = [
        "Processor time by request, ms, by process:",
        "",
        "| load | GraphServe | undivided |",
        "|---|---|---|",
    ]
    for case, of in summary.items():
        cells = []
        for name in ("ours", "other"):
            parts = {part: ms for part, ms in of[name]["cpu_ms_per_request"].items() if ms >= 0.05}
            each = ", ".join(f"{part} {ms:.1f}" for part, ms in sorted(parts.items(), key=lambda kv: -kv[1]))
            cells.append(f"{sum(parts.values()):.1f} ({each})")
        lines.append(f"| {case} | {cells[0]} | {cells[1]} |")
    idle_ours = median([of["other"]["idle_cores_of_the_other"] for of in summary.values()])
    idle_other = median([of["ours"]["idle_cores_of_the_other"] for of in summary.values()])
    lines += [
        "",
        f"While idle GraphServe kept {idle_ours:.2f} cores busy, the undivided server {idle_other:.2f}.",
    ]
    return "\n".join(lines)


def _hops(result: dict[str, Any]) -> str:
    hops: dict[str, dict[str, float]] = result["hops"]
    lines = ["| one at a time, nothing else asked of either server | median, ms | p99, ms |", "|---|---|---|"]
    lines += [f"| {name} | {of['median']:.2f} | {of['p99']:.2f} |" for name, of in hops.items()]
    lines += ["", "Differences of medians, ms:", "", "| hop | ms |", "|---|---|"]
    lines += [f"| {name} | {ms:.2f} |" for name, ms in differences(hops).items()]
    return "\n".join(lines)


def differences(hops: dict[str, dict[str, float]]) -> dict[str, float]:
    """What each hop adds, from requests that are equal up to it."""
    ms = {name: of["median"] for name, of in hops.items()}
    long_name = next(name for name in ms if name.endswith("tokens streamed"))
    more = int(long_name.split()[1]) - 1
    ours = (ms[long_name] - ms["chat, 1 token"]) / more
    other = (ms[f"{long_name}, undivided"] - ms["chat, 1 token, undivided"]) / more
    proxy, live = ms["GET /-/healthz (Serve's proxy)"], ms["GET /health/live (proxy, Ingress)"]
    return {
        "client to Serve's proxy and back": proxy,
        "proxy to Ingress and back": live - proxy,
        "Ingress to Decoder and back": ms["GET /v1/models (proxy, Ingress, Decoder)"] - live,
        "a chat of one token, more than undivided": ms["chat, 1 token"] - ms["chat, 1 token, undivided"],
        "one more streamed token": ours,
        "one more streamed token, undivided": other,
        "one more streamed token, more than undivided": ours - other,
    }


def _range(of: dict[str, float], digits: int | None = None) -> str:
    digits = digits if digits is not None else (2 if of["median"] < 10 else 1)
    return f"{of['median']:.{digits}f} ({of['min']:.{digits}f} to {of['max']:.{digits}f})"
