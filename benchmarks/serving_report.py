"""From measured rounds to summaries and tables, for ``benchmarks.cpu`` and ``benchmarks.serving``. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

FIGURES = {
    "requests_per_s": "requests/s",
    "good_requests_per_s": "of them good",
    "median_ttft_ms": "TTFT, ms",
    "p99_ttft_ms": "TTFT p99, ms",
    "median_tpot_ms": "TPOT, ms",
    "p99_itl_ms": "gap p99, ms",
    "text_median_ttft_ms": "TTFT of text, ms",
    "text_p99_itl_ms": "gap p99 of text, ms",
}
"""What a round's figures are called in a table; the last two are a mixture's alone."""

Round = dict[str, Any]
Summary = dict[str, dict[str, dict[str, Any]]]


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


def summarise(rounds: Iterable[Round]) -> Summary:
    """By case and server: each figure's spread over the rounds, processor time, idle servers' cores."""
    return {
        case: {server: _server(entries) for server, entries in of.items()}
        for case, of in _by_case(rounds).items()
    }


def _by_case(rounds: Iterable[Round]) -> dict[str, dict[str, list[Round]]]:
    by_case: dict[str, dict[str, list[Round]]] = {}
    for entry in rounds:
        by_case.setdefault(entry["case"], {}).setdefault(entry["server"], []).append(entry)
    return by_case


def _server(entries: list[Round]) -> dict[str, Any]:
    parts = sorted({part for entry in entries for part in entry["cpu_ms_per_request"]})
    return {
        "figures": {
            figure: spread([entry[figure] for entry in entries])
            for figure in FIGURES
            if all(figure in entry for entry in entries)
        },
        "cpu_ms_per_request": {
            part: median([entry["cpu_ms_per_request"].get(part, 0.0) for entry in entries]) for part in parts
        },
        "idle_cores_of_the_others": median([sum(entry["idle_cores"].values()) for entry in entries]),
    }


@dataclass(frozen=True)
class Target:
    """What was aimed at: a figure of ``ours`` against the best of ``others`` in one round of a case.

    One of the bounds is set: on the ratio, or on how much more ``ours`` is.
    """

    case: str
    figure: str
    ours: str
    others: tuple[str, ...]
    at_least: float | None = None
    at_most: float | None = None
    at_most_more: float | None = None

    def reached(self, rounds: Iterable[Round]) -> list[float]:
        """The ratio, or the difference, of each round that measured everyone."""
        pairs = compared(rounds, self.case, self.figure, self.ours, self.others)
        if self.at_most_more is not None:
            return [ours - best for ours, best in pairs]
        return [ours / best for ours, best in pairs]

    def met(self, value: float) -> bool:
        """Whether a ratio or difference keeps to the bound."""
        if self.at_least is not None:
            return value >= self.at_least
        bound = self.at_most if self.at_most is not None else self.at_most_more
        return bound is not None and value <= bound

    @property
    def bound(self) -> str:
        """For tables."""
        if self.at_most_more is not None:
            return f"at most {self.at_most_more:g} more"
        return f">= {self.at_least:g}" if self.at_least is not None else f"<= {self.at_most:g}"


def compared(
    rounds: Iterable[Round], case: str, figure: str, ours: str, others: Sequence[str]
) -> list[tuple[float, float]]:
    """The figure of ``ours`` and the best of ``others``, of each round that measured them all.

    The best is the largest where more is better (a rate of requests), and the least otherwise.
    """
    best = max if figure.endswith("requests_per_s") else min
    of_round: dict[int, dict[str, float]] = {}
    for entry in rounds:
        if entry["case"] == case and figure in entry:
            of_round.setdefault(entry["round"], {})[entry["server"]] = entry[figure]
    pairs = [
        (values[ours], best(values[other] for other in others))
        for _, values in sorted(of_round.items())
        if {ours, *others} <= set(values)
    ]
    return [pair for pair in pairs if pair[1]]


def ratios(rounds: Iterable[Round], case: str, figure: str, ours: str, others: Sequence[str]) -> list[float]:
    """``ours`` over the best of ``others``, round by round."""
    return [mine / best for mine, best in compared(rounds, case, figure, ours, others)]


def figures_table(summary: Summary, figures: Iterable[str] = FIGURES) -> str:
    """One line per case and server."""
    shown = [f for f in figures if any(f in s["figures"] for of in summary.values() for s in of.values())]
    lines = [
        f"| load | server | rounds | {' | '.join(FIGURES[f] for f in shown)} | CPU, ms a request |",
        "|---" * (len(shown) + 4) + "|",
    ]
    for case, of in summary.items():
        for server, values in of.items():
            cells = [ranged(values["figures"][f]) if f in values["figures"] else "" for f in shown]
            rounds = next(iter(values["figures"].values()))["count"]
            cpu = sum(values["cpu_ms_per_request"].values())
            lines.append(f"| {case} | {server} | {rounds} | {' | '.join(cells)} | {cpu:.0f} |")
    return "\n".join(lines)


def ratios_table(rounds: Sequence[Round], cases: Iterable[str], ours: str, others: Sequence[str]) -> str:
    """``ours`` over the best of ``others`` in every case, for each figure that was measured."""
    lines = [f"| load | figure | {ours} / {' or '.join(others)} |", "|---|---|---|"]
    for case in cases:
        for figure, title in FIGURES.items():
            if found := ratios(rounds, case, figure, ours, others):
                lines.append(f"| {case} | {title} | {ranged(spread(found), 2)} |")
    return "\n".join(lines)


def targets_table(rounds: Sequence[Round], targets: Iterable[Target]) -> str:
    """What was aimed at, and what came."""
    lines = ["| load | figure | of | against | target | reached | |", "|---|---|---|---|---|---|---|"]
    for target in targets:
        if found := target.reached(rounds):
            reached = spread(found)
            verdict = "met" if target.met(reached["median"]) else "**missed**"
            lines.append(
                f"| {target.case} | {FIGURES[target.figure]} | {target.ours} | {' or '.join(target.others)} "
                f"| {target.bound} | {ranged(reached, 2)} | {verdict} |"
            )
    return "\n".join(lines)


def spent_table(rounds: Iterable[Round]) -> str:
    """Means of the stages of a request under load, by the servers' own metrics; medians of the rounds."""
    noted = [entry for entry in rounds if "spent_ms_per_request" in entry]
    parts = list(dict.fromkeys(part for entry in noted for part in entry["spent_ms_per_request"]))
    if not noted:
        return ""
    lines = [f"| load | server | {', ms | '.join(parts)}, ms |", "|---" * (len(parts) + 2) + "|"]
    for case, of in _by_case(noted).items():
        for server, entries in of.items():
            spent = [entry["spent_ms_per_request"] for entry in entries]
            cells = [f"{median([s[part] for s in spent]):.1f}" if part in spent[0] else "" for part in parts]
            lines.append(f"| {case} | {server} | {' | '.join(cells)} |")
    return "\n".join(lines)


def processor_table(summary: Summary) -> str:
    """Processor time by request and process; what idle servers kept busy meanwhile."""
    lines = ["| load | server | CPU by request, ms, by process |", "|---|---|---|"]
    for case, of in summary.items():
        for server, values in of.items():
            parts = {part: ms for part, ms in values["cpu_ms_per_request"].items() if ms >= 0.05}
            each = ", ".join(f"{part} {ms:.1f}" for part, ms in sorted(parts.items(), key=lambda kv: -kv[1]))
            lines.append(f"| {case} | {server} | {sum(parts.values()):.1f} ({each}) |")
    idle = [values["idle_cores_of_the_others"] for of in summary.values() for values in of.values()] or [0.0]
    lines += ["", f"All servers that were not asked kept {median(idle):.2f} cores busy together (median)."]
    return "\n".join(lines)


def versions_line(facts: Mapping[str, Any]) -> str:
    """Machine and versions."""
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    card = f"one {facts['card']}, " if facts.get("card") else ""
    return (
        f"{card}{facts['cores']} cores of {facts['cpu']}, {facts['memory_gib']} GiB; {versions}, "
        f"Python {facts['python']}"
    )


def ranged(of: Mapping[str, float], digits: int | None = None) -> str:
    """Median, and least to largest where there were several."""
    if digits is None:
        digits = 2 if of["median"] < 10 else 1 if of["median"] < 100 else 0
    if of["count"] == 1:
        return f"{of['median']:.{digits}f}"
    return f"{of['median']:.{digits}f} ({of['min']:.{digits}f} to {of['max']:.{digits}f})"


def stages_table(by_server: Mapping[str, Mapping[str, Mapping[str, float]]]) -> str:
    """Medians of single encodes, one column per server."""
    names = list(dict.fromkeys(stage for of in by_server.values() for stage in of))
    lines = [f"| one encode at a time, ms | {' | '.join(by_server)} |", "|---" * (len(by_server) + 1) + "|"]
    for name in names:
        cells = [f"{of[name]['median']:.2f}" if name in of else "" for of in by_server.values()]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def savings_table(
    rounds: Sequence[Round], stages: Mapping[str, Mapping[str, Mapping[str, float]]], on: str, off: str
) -> str:
    """What ``on`` saves of a single encode's time in the encoder, and what ratios that alone would give.

    Only of kinds that were asked alone, too. The measured ratios beside them hold whatever else differed.
    """
    lines = [
        f"| load | encoder, ms, {off} | {on} | TTFT, ms, {off} | TTFT ratio by that alone | measured "
        "| requests/s ratio by that alone | measured |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for stage, values in stages.get(off, {}).items():
        kind, _, part = stage.removeprefix("encode of ").rpartition(": ")
        case = f"{kind}, 1 at once"
        ttft = ratios(rounds, case, "median_ttft_ms", on, [off])
        whole_ms = [r["median_e2el_ms"] for r in rounds if (r["case"], r["server"]) == (case, off)]
        if part != "encoder" or stage not in stages.get(on, {}) or not ttft:
            continue
        before_ms, after_ms = values["median"], stages[on][stage]["median"]
        first_ms = median([r["median_ttft_ms"] for r in rounds if (r["case"], r["server"]) == (case, off)])
        saved_ms = before_ms - after_ms
        lines.append(
            f"| {case} | {before_ms:.1f} | {after_ms:.1f} | {first_ms:.1f} | {1 - saved_ms / first_ms:.2f} "
            f"| {median(ttft):.2f} | {1 / (1 - saved_ms / median(whole_ms)):.2f} "
            f"| {median(ratios(rounds, case, 'requests_per_s', on, [off])):.2f} |"
        )
    return "\n".join(lines)


def encoder_graphs_lines(found: Mapping[str, Mapping[str, Any]]) -> str:
    """What servers that were asked for encoder graphs held of them."""
    lines = []
    for server, of in found.items():
        if not of["held"]:
            lines.append(
                f"- {server}: asked for encoder graphs and held none, so that these rows ran eagerly."
            )
        else:
            hits = "" if of["hits"] is None else f", {of['hits']} hits"
            lines.append(f"- {server}: {of['held']} encoder graphs held{hits}.")
    return "\n".join(lines)


def memory_table(by_server: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Processes that hold GPU memory or 200 MiB, equal parts together."""
    lines = ["| server | process | number | host, MiB each | GPU, MiB each |", "|---|---|---|---|---|"]
    for server, processes in by_server.items():
        parts: dict[str, list[Mapping[str, Any]]] = {}
        for process in processes:
            if process["gpu_mib"] or process["host_mib"] >= 200:
                parts.setdefault(process["part"], []).append(process)
        for part, those in parts.items():
            host = median([process["host_mib"] for process in those])
            gpu = [process["gpu_mib"] for process in those if process["gpu_mib"]]
            lines.append(
                f"| {server} | {part} | {len(those)} | {host:.0f} | {f'{median(gpu):.0f}' if gpu else ''} |"
            )
    return "\n".join(lines)
