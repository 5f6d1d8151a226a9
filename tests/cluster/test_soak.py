"""Twenty minutes of mixed traffic with a recycle every two: nothing grows, nothing is left behind.

Needs: Ray, vLLM on the CPU, about 22 minutes. GRAPHSERVE_SOAK_S shortens it for a trial.
"""

import asyncio
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from tests.load import Load
from tests.servers import Server, running_app
from tests.truth import crowd, right_alone

SOAK_S = float(os.environ.get("GRAPHSERVE_SOAK_S", "1200"))
RECYCLE_EVERY_S = 120.0
SETTLE_SHARE = 0.4  # of the time: caches, pools and allocators fill up in it
GROWTH_BYTES = 64 << 20
OPEN = {"RAY_AUTH_MODE": "disabled"}  # so that a second program may ask this cluster about its objects
ADMIN = {"Authorization": "Bearer admin-secret"}

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def soaked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    args = {
        "admin_token": "admin-secret",
        "embedding_cache_bytes": 8 << 20,
        "controller": {"max_recycles_per_window": 50},
    }
    replicas = {"VisionEncoder": {"num_replicas": 2}}
    with running_app(tmp_path_factory.mktemp("soak"), args, replicas, env=OPEN) as server:
        yield server


def title(process: psutil.Process) -> str:
    """What a process is, without its number: the same for a replica and its replacement."""
    words = " ".join(process.cmdline())
    match = re.search(
        r"ServeReplica:graphserve:(\w+)|(EngineCore)|(raylet)|(gcs_server)|(multiprocessing)", words
    )
    return next(group for group in match.groups() if group) if match else "other"


def largest_bytes(server: Server) -> dict[str, int]:
    """Unshared memory of the largest process of each kind."""
    sizes: dict[str, int] = {}
    for process in server.processes():
        try:
            kind, size = title(process), process.memory_full_info().uss
        except psutil.Error:
            continue
        sizes[kind] = max(size, sizes.get(kind, 0))
    return sizes


def stored_objects(server: Server) -> tuple[float, int]:
    """MiB and number of the objects in the store, as Ray says."""
    raylet = next(p for p in server.processes() if p.name() == "raylet")
    address = next(word.split("=")[1] for word in raylet.cmdline() if word.startswith("--gcs-address="))
    program = (
        "import ray; from ray._private.internal_api import memory_summary; "
        f"ray.init(address={address!r}, log_to_driver=False); "
        f"print(memory_summary(address={address!r}, stats_only=True))"
    )
    said = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, **OPEN},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout
    match = re.search(r"Plasma memory usage (\d+) MiB, (\d+) objects", said)
    assert match, said
    return float(match[1]), int(match[2])


async def recycle_one(server: Server) -> None:
    """Have the vision replica that was started first replaced."""
    async with httpx.AsyncClient(base_url=server.base_url, timeout=30, trust_env=False) as api:
        replicas = (await api.get("/v1/graphs")).json()["replicas"]
        ready = [r for r in replicas if r["encoder"] == "vision" and r["state"] == "ready"]
        if len(ready) == 2:
            answer = await api.post(f"/admin/replicas/{ready[0]['replica_id']}/recycle", headers=ADMIN)
            assert answer.status_code == 202, answer.text


async def soak(server: Server, load: Load) -> list[dict[str, int]]:
    """Memory by kind of process, sampled over the whole time."""
    samples: list[dict[str, int]] = []
    begun = recycled = time.monotonic()
    async with load:
        while time.monotonic() - begun < SOAK_S:
            await asyncio.sleep(min(10.0, SOAK_S / 20))
            samples.append(await asyncio.to_thread(largest_bytes, server))
            if time.monotonic() - recycled > RECYCLE_EVERY_S:
                recycled = time.monotonic()
                await recycle_one(server)
    return samples


def test_memory_is_flat_and_the_store_is_empty(soaked: Server, tmp_path: Path) -> None:
    """Every answer right, no process grows after it settled, and no embedding stays in the store."""
    known = right_alone(soaked, crowd(seed=24), 24)
    load = Load(soaked, known, at_once=1)
    samples = asyncio.run(soak(soaked, load))
    report = httpx.get(f"{soaked.base_url}/v1/graphs", timeout=20, trust_env=False).json()
    print(load.fate.line(), f"recycles {len(report['recycles'])}")
    assert (load.fate.wrong, load.fate.lost, load.fate.refused) == ([], [], [])
    settled = samples[int(len(samples) * SETTLE_SHARE) :]
    third = max(1, len(settled) // 3)
    for kind in sorted({kind for sample in settled for kind in sample} - {"other"}):
        early = sorted(s.get(kind, 0) for s in settled[:third])[third // 2]
        late = sorted(s.get(kind, 0) for s in settled[-third:])[third // 2]
        print(f"{kind}: {early >> 20} MiB early, {late >> 20} MiB late")
        assert late - early < GROWTH_BYTES, kind
    used_mib, objects = stored_objects(soaked)
    print(f"object store: {used_mib} MiB in {objects} objects")
    assert used_mib <= 8 + 2, "more than the embedding cache may hold"
