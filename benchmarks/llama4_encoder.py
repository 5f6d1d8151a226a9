"""Measures Llama 4's vision encoder in its Serve replicas on one GPU, budget graphs off and on side by side.

``python -m benchmarks.llama4_encoder [--json FILE] [--rounds 50]``. Real dimensions, random weights, pictures
of new noise, one at a time, every picture through each replica in turn. ``--small`` tries it without a GPU.
"""

import argparse
import asyncio
import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks import llama4_replicas, machine
from benchmarks.encode_call import noise, timed_encode
from benchmarks.serving_report import percentiles
from deployments.families.llama4 import Llama4, tiles_key
from deployments.messages import EncodedMedia, EncodeReceipt, MediaItem, message_to_embedding
from policies.stats import GraphStats

EAGER = "eager"
TILES = (1, 4, 8, 17)
UNCOUNTED = 3
"""Rounds before the first that counts."""

FETCH = "fetch by the caller"


def kinds(tile_tokens: int) -> dict[str, dict[str, Any]]:
    """The replicas: graphs off, every default budget, and four budgets, so that one tile is padded."""
    few = [tile_tokens * count for count in (2, 4, 8, 17)]
    return {EAGER: {"enabled": False}, "default budgets": {}, "four budgets": {"token_budgets": few}}


@dataclass
class Samples:
    """What was seen of one replica at one number of tiles."""

    stages_ms: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    differences: list[float] = field(default_factory=list)  # from eager, norm over norm, of each picture
    counted: dict[str, int] = field(default_factory=dict)  # by the replica's graphs, for one picture

    def row(self, kind: str, tiles: int) -> dict[str, Any]:
        """The sample as figures: medians with the 10th and 90th percentile."""
        return {
            "replica": kind,
            "tiles": tiles,
            "stages_ms": {name: percentiles(values) for name, values in self.stages_ms.items()},
            "pictures": len(self.differences),
            "equal_to_eager": sum(difference == 0 for difference in self.differences),
            "largest_difference": max(self.differences),
            "one_picture": self.counted,
        }


@dataclass(frozen=True)
class Encoded:
    """One picture's way through one replica."""

    stages_s: dict[str, float]
    receipt: EncodeReceipt
    embedding: torch.Tensor  # (tokens, hidden)


def picture(family: Llama4, tiles: int, seed: int) -> MediaItem:
    """New noise of that many tiles."""
    width, height = llama4_replicas.size_of(tiles, tile_side=family.tile_side, max_tiles=family.max_tiles)
    data = noise(seed, width, height)
    key = family.media_key("vision", data)
    if key != tiles_key(tiles):
        raise ValueError(f"{width} x {height} is {key}, not {tiles} tiles")
    return MediaItem(data, key, uuid=f"bench-{tiles}-{seed}")


async def encode(handle: Any, item: MediaItem) -> Encoded:
    """Encode and fetch, as the Ingress asks and the Decoder takes."""
    stages, receipt, reference = await timed_encode(handle.options(stream=True, _by_reference=True), item)
    begun = asyncio.get_running_loop().time()
    message: EncodedMedia = await reference
    fetched_s = asyncio.get_running_loop().time() - begun
    return Encoded({**stages, FETCH: fetched_s}, receipt, message_to_embedding(message))


async def counts(handle: Any, item: MediaItem) -> dict[str, int]:
    """What the replica's graphs count of one picture."""
    before: GraphStats = (await handle.graph_report.remote()).stats
    await encode(handle, item)
    after: GraphStats = (await handle.graph_report.remote()).stats
    names = ("graph_hits", "graph_misses", "tokens_replayed", "tokens_padded")
    return {name: getattr(after, name) - getattr(before, name) for name in names}


def difference(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Norm over norm; infinite where a value is not a number. Raises ValueError for other shapes."""
    if found.shape != expected.shape:
        raise ValueError(f"{tuple(found.shape)} instead of {tuple(expected.shape)}")
    relative = float((found.double() - expected.double()).norm() / expected.double().norm())
    return relative if relative == relative else float("inf")


async def measure(
    family: Llama4,
    handles: dict[str, Any],
    tiles: tuple[int, ...],
    rounds: int,
    keep: Callable[[dict[tuple[str, int], Samples]], None] = lambda samples: None,
) -> dict[tuple[str, int], Samples]:
    """Every picture through each replica, the order turning from picture to picture.

    ``keep`` is given the samples so far every ten rounds, so that a run that is cut short is not lost.
    """
    samples = {(kind, count): Samples() for count in tiles for kind in handles}
    names = list(handles)
    for (kind, count), seen in samples.items():
        seen.counted = await counts(handles[kind], picture(family, count, seed=count))
    for number in range(rounds + UNCOUNTED):
        for count in tiles:
            item = picture(family, count, seed=1000 * number + count)
            order = names[number % len(names) :] + names[: number % len(names)]
            found = {kind: await encode(handles[kind], item) for kind in order}
            for kind in names if number >= UNCOUNTED else ():
                seen = samples[kind, count]
                seen.differences.append(difference(found[kind].embedding, found[EAGER].embedding))
                for stage, seconds in found[kind].stages_s.items():
                    seen.stages_ms[stage].append(seconds * 1e3)
        if number % 10 == UNCOUNTED:
            print(f"round {number} of {rounds + UNCOUNTED}", flush=True)
            keep(samples)
    keep(samples)
    return samples


def figures(samples: dict[tuple[str, int], Samples]) -> list[dict[str, Any]]:
    """Every sample as a row."""
    return [seen.row(kind, count) for (kind, count), seen in samples.items()]


def table(rows: list[dict[str, Any]]) -> str:
    """One line for each number of tiles and replica."""
    lines = [
        "| tiles | replica | preprocessing | encoder (p10 to p90) | hop and hand-over | fetch "
        "| whole call (p10 to p90) | hit | tokens replayed | padded | equal to eager |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        stages, counted = row["stages_ms"], row["one_picture"]
        cells = [
            str(row["tiles"]),
            row["replica"],
            f"{stages['preprocessing'][0]:.1f}",
            _range(stages["encoder"]),
            f"{stages['hop and hand-over'][0]:.1f}",
            f"{stages[FETCH][0]:.1f}",
            _range(stages["whole call"]),
            str(counted["graph_hits"]),
            str(counted["tokens_replayed"]),
            str(counted["tokens_padded"]),
            f"{row['equal_to_eager']} of {row['pictures']} ({row['largest_difference']:.1g})",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _range(figures: tuple[float, float, float]) -> str:
    return f"{figures[0]:.1f} ({figures[1]:.1f} to {figures[2]:.1f})"


def main() -> None:
    """Start, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json")
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--small", action="store_true", help="the tiny checkpoint's dimensions")
    options = parser.parse_args()
    facts = {**machine.facts("benchmarks.llama4_encoder"), "card": machine.card(), "rounds": options.rounds}
    tile_tokens = 16 if options.small else 144

    def keep(samples: dict[tuple[str, int], Samples]) -> None:
        if options.json:
            with open(options.json, "w", encoding="utf-8") as file:
                json.dump({"facts": facts, "rows": figures(samples)}, file, indent=1)

    with llama4_replicas.running(kinds(tile_tokens), small=options.small) as (family, handles):
        samples = asyncio.run(measure(family, handles, TILES, options.rounds, keep))
        print(table(figures(samples)), flush=True)


if __name__ == "__main__":
    main()
