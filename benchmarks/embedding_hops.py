"""What it costs to hand an embedding from an encoder to the decoder, by size, form and node.

Two raylets on this machine with an object store each; Serve's handles, streaming and references as the
Ingress uses them: the receiver gets the embedding by reference and ends with a torch tensor. Forms: the
16-bit pattern of bfloat16 in a numpy view, as the encoders send it, and the torch tensor itself.

    python -m benchmarks.embedding_hops [--rounds N] [--json PATH]
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import ray
from ray import serve

from benchmarks.machine import describe
from deployments.messages import EncodedMedia, embedding_to_message, message_to_embedding
from tests.nodes import running_nodes

HIDDEN = 4096
SIZES_MB = (0.0, 0.5, 5.0, 25.0)
FORMS = ("uint16 view", "torch tensor")
PLACES = ("same node", "other node")
WARM = 5


class Source:
    """Makes embeddings as an encoder hands them over: a receipt, then the embedding."""

    async def encode(self, megabytes: float, form: str) -> AsyncIterator[Any]:
        """The receipt is a word; 0 megabytes are one token."""
        import torch

        tokens = max(1, round(megabytes * 1e6 / HIDDEN / 2))
        tensor = torch.ones((tokens, HIDDEN), dtype=torch.bfloat16)
        yield "receipt"
        if form == "torch tensor":
            yield tensor
        else:
            yield embedding_to_message(tensor, uuid="x", encoder="vision", metadata={})


class Sink:
    """Stands where the decoder stands."""

    def take(self, embedding: Any) -> int:
        """Tokens of the tensor, whose last value was read."""
        tensor = message_to_embedding(embedding) if isinstance(embedding, EncodedMedia) else embedding
        assert float(tensor[-1, -1]) == 1.0
        return len(tensor)


async def one(source: Any, sink: Any, megabytes: float, form: str) -> float:
    """Seconds from the call of the encoder until the receiver has answered."""
    begun = time.perf_counter()
    refs = await source.encode.remote(megabytes, form)._to_object_ref_gen()
    await (await refs.__anext__())
    embedding = await refs.__anext__()
    ending = asyncio.ensure_future(anext(refs, None))
    await sink.take.remote(embedding)
    took_s = time.perf_counter() - begun
    await ending
    return took_s


async def measure(
    sources: dict[str, Any], sink: Any, rounds: int
) -> dict[tuple[str, str, float], list[float]]:
    """Milliseconds of every case, the cases in turns."""
    cases = [(place, form, size) for place in PLACES for form in FORMS for size in SIZES_MB]
    samples: dict[tuple[str, str, float], list[float]] = defaultdict(list)
    for number in range(rounds + WARM):
        for place, form, size in cases:
            took_s = await one(sources[place], sink, size, form)
            if number >= WARM:
                samples[place, form, size].append(took_s * 1e3)
    return samples


def deploy() -> tuple[dict[str, Any], Any]:
    """A source on either node and the sink on the head's; their handles as the Ingress has them."""
    handles = []
    for name, cls, node in (("Here", Source, "head"), ("There", Source, "other"), ("Sink", Sink, "head")):
        options = {"num_cpus": 0, "resources": {node: 1}}
        bound = serve.deployment(cls).options(name=name, ray_actor_options=options).bind()
        handles.append(serve.run(bound, name=name, route_prefix=None))
    here, there, sink = handles
    stream = {"stream": True, "_by_reference": True}
    sources = {"same node": here.options(**stream), "other node": there.options(**stream)}
    return sources, sink.options(_by_reference=True)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60, help="of each case (default 60)")
    parser.add_argument("--json", type=Path, help="also write the figures here")
    options = parser.parse_args()
    machine = describe()
    os.environ["RAY_AUTH_MODE"] = "disabled"  # as the nodes have it
    with running_nodes({"resources": {"head": 9}}, {"resources": {"other": 9}}) as nodes:
        ray.init(address=nodes.address, log_to_driver=False, logging_level="ERROR")
        try:
            serve.start(proxy_location="Disabled", logging_config={"log_level": "ERROR"})
            samples = asyncio.run(measure(*deploy(), options.rounds))
        finally:
            serve.shutdown()
            ray.shutdown()
    rows = []
    print(
        f"{'form':14}{'MB':>6}" + "".join(f"{place:>26}" for place in PLACES) + "   ms: median (p10 to p90)"
    )
    for form in FORMS:
        for size in SIZES_MB:
            row: dict[str, Any] = {"form": form, "megabytes": size}
            for place in PLACES:
                tenths = statistics.quantiles(samples[place, form, size], n=10)
                row[place] = {
                    "median": statistics.median(samples[place, form, size]),
                    "p10": tenths[0],
                    "p90": tenths[-1],
                }
            rows.append(row)
            cells = [f"{row[p]['median']:.1f} ({row[p]['p10']:.1f} to {row[p]['p90']:.1f})" for p in PLACES]
            print(f"{form:14}{size:6}" + "".join(f"{cell:>26}" for cell in cells))
    if options.json:
        options.json.write_text(json.dumps({"machine": machine, "rows": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
