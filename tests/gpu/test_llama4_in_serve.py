"""Llama 4's vision encoder at real dimensions in its Serve replicas, asked through Serve's handles.

Needs: one NVIDIA GPU with 24 GB or more, Ray, vLLM's CUDA build.
"""

import asyncio
from collections.abc import Iterator

import pytest

from benchmarks import llama4_encoder as program
from benchmarks import llama4_replicas
from benchmarks.llama4_encoder import EAGER, TILES, Samples

pytestmark = pytest.mark.gpu
TILE_TOKENS = 144
PADDED = {("four budgets", 1): TILE_TOKENS}  # one tile in the budget of two; everything else fits exactly


@pytest.fixture(scope="module")
def seen() -> Iterator[dict[tuple[str, int], Samples]]:
    """Two pictures of each number of tiles through each replica, and one more that is counted."""
    with llama4_replicas.running(program.kinds(TILE_TOKENS)) as (family, handles):
        yield asyncio.run(program.measure(family, handles, TILES, rounds=2))


def test_graphs_run_every_picture_and_count_their_padding(seen: dict[tuple[str, int], Samples]) -> None:
    """One hit for a picture of any number of tiles, its rows counted as replayed, the rest as padded."""
    for (kind, tiles), samples in seen.items():
        replayed = 0 if kind == EAGER else tiles * TILE_TOKENS
        assert samples.counted == {
            "graph_hits": int(kind != EAGER),
            "graph_misses": int(kind == EAGER),
            "tokens_replayed": replayed,
            "tokens_padded": PADDED.get((kind, tiles), 0),
        }, (kind, tiles)


def test_embeddings_equal_those_of_the_replica_without_graphs(seen: dict[tuple[str, int], Samples]) -> None:
    """Bit for bit where the budget is the picture; within a hundredth, norm over norm, where it is padded."""
    for (kind, tiles), samples in seen.items():
        bound = 0.01 if (kind, tiles) in PADDED else 0.0
        assert len(samples.differences) == 2
        assert max(samples.differences) <= bound, (kind, tiles, samples.differences)
