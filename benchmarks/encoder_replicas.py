"""Throughput of 1, 2 and 4 encoder replicas, with a stand-in that burns a core where the GPU would work.

The replicas are the product's own shells behind Serve's handles and the shape router; an item needs no
preparation and then a fixed number of hashes (no sleep), on the thread where an encoder runs. More replicas
than cores cannot be faster than the cores, so both ratios are printed: to linear, and to the cores.

    python -m benchmarks.encoder_replicas [--seconds S] [--json PATH]
"""

import argparse
import asyncio
import hashlib
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray import serve
from ray.serve.config import RequestRouterConfig

from benchmarks.encode_call import timed_encode
from benchmarks.machine import describe
from deployments.encoders.options import DEPLOYMENT, EncoderOptions
from deployments.encoders.preprocess_pool import PoolOptions
from deployments.encoders.shell import EncoderShell
from deployments.families.base import EncoderInputs, Family
from deployments.families.registry import load_family
from deployments.messages import MediaItem
from deployments.upstream.encoder_model import EncoderModelSpec
from policies.graph_options import GraphOptions
from policies.limits import MediaLimits
from policies.stats import GraphStats
from toy_model.write import ensure

COUNTS = (1, 2, 4)
HASHED = bytes(8 << 20)
HASHES = 10
"""Of these bytes for every item: some 40 ms, as a large picture's encode takes on a GPU. Hashing leaves
Python's lock, as waiting for a GPU does."""
TOKENS, HIDDEN = 64, 1024
SHAPES = 8
IN_HAND = 4
"""Items in hand per replica."""


def burn() -> None:
    """The work of one item."""
    for _ in range(HASHES):
        hashlib.sha256(HASHED).digest()


class BurningEngine:
    """In the place of ``GpuThread``."""

    device = "cpu"
    failure: str | None = None
    leaked_bytes = 0

    def __init__(self, *_: Any, **__: Any) -> None:
        self.warmed: list[str] = []

    def load(self) -> tuple[str, ...]:
        """Nothing is loaded."""
        return ()

    def warm(self, keys: Sequence[str]) -> None:
        """Nothing is captured."""

    def encode(self, batch: Sequence[EncoderInputs]) -> tuple[list[Any], bool]:
        """Burn for each item; embeddings of zeros."""
        import torch

        for _ in batch:
            burn()
        return [torch.zeros((TOKENS, HIDDEN), dtype=torch.bfloat16) for _ in batch], False

    def stats(self) -> GraphStats:
        """None were counted."""
        return GraphStats()

    def captured_keys(self) -> tuple[str, ...]:
        """None are held."""
        return ()

    def hits_by_graph(self) -> dict[str, int]:
        """There were none."""
        return {}


class PassingPool:
    """In the place of ``PreprocessPool``: an item's bytes are its shape."""

    spent_s = 0.0

    async def warm(self) -> None:
        """Nothing to start."""

    async def run(self, data: bytes) -> EncoderInputs:
        """The inputs, at once."""
        return EncoderInputs({"data": np.frombuffer(data, np.uint8)}, data.decode(), TOKENS, {})


@serve.deployment(name="BurningEncoder", **DEPLOYMENT)
class BurningEncoder(EncoderShell):
    """A vision encoder whose GPU is a core."""

    encoder = "vision"

    def __init__(self, options: EncoderOptions, family: Family) -> None:
        super().__init__(options, family, pool=PassingPool(), make_engine=BurningEngine)  # type: ignore[arg-type]


async def load(handle: Any, at_once: int, seconds: float) -> float:
    """Items a second, between the first second and the last."""
    begin_s = time.monotonic() + 1.0
    end_s, done = begin_s + seconds, 0

    async def client(number: int) -> None:
        nonlocal done
        turn = number
        while time.monotonic() < end_s:
            turn += 1
            key = f"s{turn % SHAPES}"
            await timed_encode(handle, MediaItem(key.encode(), key, "u"))
            done += begin_s <= time.monotonic() < end_s

    await asyncio.gather(*(client(number) for number in range(at_once)))
    return done / seconds


def measure(replicas: int, seconds: float) -> float:
    """Items a second of so many replicas."""
    model = str(ensure())
    options = EncoderOptions(
        EncoderModelSpec(model=model, modality="image", dtype="bfloat16"),
        PoolOptions(1, 20.0, MediaLimits()),
        GraphOptions(),
    )
    router = RequestRouterConfig(
        request_router_class="deployments.shape_router:ShapeRouter", request_routing_stats_period_s=1.0
    )
    deployment: Any = BurningEncoder
    app = deployment.options(num_replicas=replicas, request_router_config=router).bind(
        options, load_family(model)
    )
    handle = serve.run(app, name="bench", route_prefix=None).options(stream=True, _by_reference=True)
    rate = asyncio.run(load(handle, IN_HAND * replicas, seconds))
    serve.delete("bench")
    return rate


def alone(seconds: float) -> float:
    """Items a second of one core with no server around it."""
    done, end_s = 0, time.monotonic() + seconds
    while time.monotonic() < end_s:
        burn()
        done += 1
    return done / seconds


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=15.0, help="of load per count (default 15)")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    machine, cores = describe(), len(os.sched_getaffinity(0))
    bare = alone(3.0)
    print(f"{cores} cores; one core without a server: {bare:.1f} items a second")
    ray.init(address="local", num_cpus=cores, include_dashboard=False, log_to_driver=False)
    serve.start(proxy_location="Disabled", logging_config={"log_level": "ERROR"})
    rates: dict[int, float] = {}
    try:
        for count in COUNTS:
            rates[count] = measure(count, options.seconds)
            print(
                f"{count} replicas: {rates[count]:.1f} items a second, "
                f"{rates[count] / (count * rates[1]):.2f} of linear, "
                f"{rates[count] / (min(count, cores) * bare):.2f} of the cores",
                flush=True,
            )
    finally:
        serve.shutdown()
        ray.shutdown()
    if options.json:
        options.json.write_text(
            json.dumps({"machine": machine, "bare": bare, "rates": rates}, indent=1) + "\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
