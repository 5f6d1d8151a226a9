"""Stage times of single encodes in a running application, as a second driver of its Ray cluster.

``python -m benchmarks.stages --address HOST:PORT --model FOLDER --encodes 10`` prints JSON. The cluster must
have been started with ``RAY_AUTH_MODE=disabled``, and this program too.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from benchmarks import hops
from benchmarks.load import Kind
from tests.servers import ROOT, Server

TIMEOUT_S = 120.0


def of_server(server: Server, model: str, kinds: Sequence[Kind], encodes: int) -> hops.Samples:
    """Milliseconds by kind and stage, one encode at a time. Raises RuntimeError with what went wrong."""
    raylet = next(p for p in server.processes() if p.name() == "raylet")
    address = next(word.split("=")[1] for word in raylet.cmdline() if word.startswith("--gcs-address="))
    wanted = [{"name": k.name, "image_px": k.image_px, "audio_s": k.audio_s} for k in kinds]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.stages", "--address", address, "--model", model,
         "--encodes", str(encodes), "--kinds", json.dumps(wanted)],
        cwd=ROOT, env={**os.environ, "RAY_AUTH_MODE": "disabled"}, capture_output=True, text=True,
        timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"stages: {done.stderr[-2000:]}")
    samples: hops.Samples = json.loads(done.stdout.splitlines()[-1])
    return samples


def main() -> None:
    """Attach, encode, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stages", description=__doc__)
    parser.add_argument("--address", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--encodes", type=int, default=10)
    parser.add_argument("--kinds", type=json.loads, required=True)
    options = parser.parse_args()
    kinds = [_kind(of) for of in options.kinds]
    print(json.dumps(_encode(options.address, options.model, kinds, options.encodes)))


def _kind(of: dict[str, Any]) -> Kind:
    return Kind(of["name"], tuple(of["image_px"]) if of["image_px"] else None, of["audio_s"])


def _encode(address: str, model: str, kinds: Sequence[Kind], encodes: int) -> hops.Samples:
    import ray
    from ray import serve

    ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    samples: hops.Samples = {}
    for kind in kinds:
        name = "AudioEncoder" if kind.audio_s is not None else "VisionEncoder"
        handle = serve.get_deployment_handle(name, "graphserve").options(stream=True, _by_reference=True)
        samples.update(asyncio.run(hops.encode_all(handle, model, kind, encodes)))
    return samples


if __name__ == "__main__":
    main()
