"""What ``benchmarks.serving`` measures, in which order, and what of it is still to do. Pure but for files."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.contenders import DEFAULTS, GRAPHS_OFF, GRAPHS_ON, TUNED, WITH_MPS
from benchmarks.load import Case, Kind, Lengths
from benchmarks.serving_report import Target

TEXT, SMALL, LARGE, AUDIO_5, AUDIO_30, MIXED = (
    "text", "small image", "large image", "audio 5 s", "audio 30 s", "half text, half large images"
)  # fmt: skip
SHARE_OF_CAPACITY = 0.8
WARMING, WARMED_AT_ONCE = 64, 32


@dataclass(frozen=True)
class Plan:
    """What a run on one model measures, and what it is held against."""

    core: list[Case]
    more: list[Case]
    lengths: Lengths
    targets: list[Target]
    staged: list[Kind]  # single encodes of them are timed by stage
    pairs: list[tuple[str, str]]  # servers whose ratio is shown

    def chosen(self, more: bool, names: Sequence[str] | None) -> list[Case]:
        """The cases to measure: the core, or all, or those named. Raises ValueError for an unknown name."""
        every = {case.name: case for case in self.core + self.more}
        if names is None:
            return self.core + (self.more if more else [])
        if unknown := [name for name in names if name not in every]:
            raise ValueError(f"no case {', '.join(map(repr, unknown))}; there are: {'; '.join(every)}")
        return [case for name, case in every.items() if name in names]


@dataclass(frozen=True)
class Sizes:
    """Pixels of the two pictures, and how much of the full numbers of requests is sent."""

    small_px: int = 448
    large_px: int = 1344  # nine slices of 448 and the overview
    share: float = 1.0

    def count(self, requests: int) -> int:
        """At least two, for a mixture has two kinds."""
        return max(2, round(requests * self.share))


def kinds(sizes: Sizes) -> dict[str, Kind]:
    """Every kind of request by name."""
    small, large = (sizes.small_px, sizes.small_px), (sizes.large_px, sizes.large_px)
    every = (
        Kind(TEXT), Kind(SMALL, small), Kind(LARGE, large), Kind(AUDIO_5, audio_s=5.0),
        Kind(AUDIO_30, audio_s=30.0), Kind(MIXED, large, every_second_text=True),
    )  # fmt: skip
    return {kind.name: kind for kind in every}


def minicpmo(lengths: Lengths, sizes: Sizes) -> Plan:
    """MiniCPM-o 4.5; the worth of a case decides its place; one without ``at_once`` has a rate set later."""
    of = kinds(sizes)

    def case(name: str, requests: int, at_once: int | None) -> Case:
        return Case(of[name], sizes.count(requests), at_once)

    core = [
        case(LARGE, 6, 1), case(LARGE, 48, 32), case(MIXED, 48, 32), case(MIXED, 64, None),
        case(TEXT, 6, 1), case(TEXT, 96, 32), case(SMALL, 6, 1), case(SMALL, 96, 32),
        case(AUDIO_5, 6, 1), case(AUDIO_5, 96, 32),
    ]  # fmt: skip
    more = [
        case(AUDIO_30, 6, 1), case(AUDIO_30, 64, 32), case(LARGE, 24, 8), case(TEXT, 32, 8),
        case(SMALL, 32, 8), case(AUDIO_5, 32, 8), case(AUDIO_30, 32, 8),
    ]  # fmt: skip
    return Plan(
        core=core,
        more=more,
        lengths=lengths,
        targets=targets() + targets(WITH_MPS),
        staged=[of[name] for name in (SMALL, LARGE, AUDIO_5)],
        pairs=[(GRAPHS_ON, GRAPHS_OFF), (WITH_MPS, GRAPHS_ON)],
    )


def targets(ours: str = GRAPHS_ON) -> list[Target]:
    """What was aimed at before anything was measured."""
    either, fast, good = (DEFAULTS, TUNED), "median_ttft_ms", "requests_per_s"

    def alone(name: str, figure: str, others: tuple[str, ...], **bound: float) -> Target:
        return Target(f"{name}, 1 at once", figure, ours, others, **bound)

    def crowd(name: str, figure: str, others: tuple[str, ...], **bound: float) -> Target:
        return Target(f"{name}, 32 at once", figure, ours, others, **bound)

    found = [
        alone(LARGE, fast, either, at_most=0.6),
        crowd(LARGE, good, (DEFAULTS,), at_least=3.0),
        crowd(LARGE, good, (TUNED,), at_least=1.1),
        crowd(LARGE, fast, (DEFAULTS,), at_most=0.5),
    ]
    for name in (SMALL, AUDIO_5):
        found += [
            alone(name, fast, either, at_most=1.0),
            crowd(name, good, (DEFAULTS,), at_least=1.15),
            crowd(name, good, (TUNED,), at_least=1.0),
        ]
    at_a_rate = f"{MIXED}, at a rate"
    return [
        *found,
        Target(at_a_rate, "text_p99_itl_ms", ours, either, at_most=0.6),
        Target(at_a_rate, "text_median_ttft_ms", ours, either, at_most=1.0),
        crowd(TEXT, good, either, at_least=0.95),
        alone(TEXT, fast, either, at_most_more=5.0),
    ]


def warming(planned: Sequence[Case]) -> list[Case]:
    """Requests of every kind in ``planned``, alone and at once; of a mixture its two parts.

    As many at once as are measured, so that the batches come that the encoders have to capture.
    """
    most: dict[Kind, int] = {}
    for case in planned:
        kind = case.kind
        parts = [kind]
        if kind.every_second_text:
            parts = [Kind(TEXT), Kind(LARGE, kind.image_px, kind.audio_s)]
        for part in parts:
            most[part] = max(most.get(part, 0), min(WARMING, case.requests))
    return [
        case for kind, count in most.items() for case in (Case(kind, 4, 1), Case(kind, count, WARMED_AT_ONCE))
    ]


def offered_rate(rounds: Sequence[Mapping[str, Any]], servers: Sequence[str]) -> float | None:
    """0.8 of the mixture that the better of these servers sustains, once one of them was measured."""
    sustained = [
        median(speeds)
        for server in servers
        if (
            speeds := [
                entry["requests_per_s"]
                for entry in rounds
                if entry["server"] == server and entry["case"] == f"{MIXED}, 32 at once"
            ]
        )
    ]
    return SHARE_OF_CAPACITY * max(sustained) if sustained else None


def in_turn(servers: Sequence[str], number: int) -> list[str]:
    """Who comes first changes every round."""
    start = number % len(servers)
    return [*servers[start:], *servers[:start]]


def to_do(
    planned: Sequence[Case], servers: Sequence[str], rounds: int, done: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[int, Case, list[str]]]:
    """Round by round the cases that are not measured, with the servers that lack them."""
    have = {(entry["round"], entry["case"], entry["server"]) for entry in done}
    for number in range(1, rounds + 1):
        for case in planned:
            missing = [s for s in in_turn(servers, number) if (number, case.name, s) not in have]
            if missing:
                yield number, case, missing


@dataclass
class Results:
    """The JSON file: runs of one card, version and setup add to each other, others begin anew."""

    path: Path
    identity: dict[str, Any]
    kept: dict[str, Any]

    @classmethod
    def open(cls, path: Path, identity: dict[str, Any]) -> "Results":
        """Continue the file where it is of the same identity. Raises ValueError where it is not."""
        fresh = {"identity": identity, "runs": [], "rounds": [], "memory": {}, "stages": {}}
        if path.is_file():
            kept = json.loads(path.read_text(encoding="utf-8"))
            if kept["identity"] != identity:
                changed = [k for k in identity if kept["identity"].get(k) != identity[k]]
                raise ValueError(f"{path} is of another {', '.join(changed)}: move it away")
            return cls(path, identity, kept)
        return cls(path, identity, fresh)

    @property
    def rounds(self) -> list[dict[str, Any]]:
        """What was measured so far."""
        rounds: list[dict[str, Any]] = self.kept["rounds"]
        return rounds

    def save(self) -> None:
        """Write, so that an end at any moment loses nothing."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_suffix(".part")
        beside.write_text(json.dumps(self.kept, indent=1) + "\n", encoding="utf-8")
        beside.replace(self.path)
