"""A capture breaks for real in one of two vision replicas that share a card, under load.

Needs: one NVIDIA GPU with 16 GB or more, Ray, vLLM's CUDA build.
"""

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx

from tests import media
from tests.asking import ask, text, user
from tests.chaos_app import SCRIPT_VARIABLE, say
from tests.load import Load
from tests.servers import Server, client, running_app
from tests.truth import Known, pictures, right_alone


def report(server: Server) -> dict[str, Any]:
    return dict(httpx.get(f"{server.base_url}/v1/graphs", timeout=20, trust_env=False).json())


def vision(server: Server) -> list[dict[str, Any]]:
    return [r for r in report(server)["replicas"] if r["encoder"] == "vision"]


def test_a_broken_capture_costs_no_request(tmp_path: Path) -> None:
    """CUDA's own error ends one replica: no request fails, the replacement captures again and hits."""
    script = tmp_path / "script"
    script.mkdir()
    args = {
        "embedding_cache_bytes": 0,
        "controller": {"first_delay_s": 0.5, "capture_failures_to_disable": 3},
    }
    gpus = {"VisionEncoder": {"num_replicas": 2, "ray_actor_options": {"num_cpus": 0, "num_gpus": 0.2}}}
    with running_app(
        tmp_path,
        args,
        gpus,
        import_path="tests.broken_capture_app:build",
        env={SCRIPT_VARIABLE: str(script)},
        source="configs/toy-gpu.yaml",
    ) as server:
        known = right_alone(server, pictures(((90, 70), (70, 90)), seed=6), 6)
        fate, failed, fresh = asyncio.run(_break_one(server, script, known))
        print(fate.line(), f"failed: {failed}", f"replacement: {fresh}")
        assert (fate.wrong, fate.lost, fate.refused) == ([], [], [])
        assert report(server)["totals"]["vision"]["capture_failures"] == 1
        assert fresh["graphs_enabled"]
        assert fresh["stats"]["num_graphs"] > 0
        assert fresh["stats"]["graph_hits"] > fresh["stats"]["num_graphs"]


async def _break_one(server: Server, script: Path, known: list[Known]) -> tuple[Any, Any, dict[str, Any]]:
    starts = {r["start_id"] for r in await asyncio.to_thread(vision, server)}
    say(script, "break-vision")
    picture = media.image_bytes(media.drawn(120, 60, seed=99))
    novel = user(text("Novel"), dict(media.image_part(picture)))
    async with Load(server, known, at_once=4) as load:
        asker = asyncio.create_task(_ask_until(server, novel, lambda: report(server)["recycles"]))
        await asyncio.wait_for(asker, 60)
        failed = (await asyncio.to_thread(report, server))["recycles"][-1]
        until = time.monotonic() + 90
        while True:
            fresh = [r for r in await asyncio.to_thread(vision, server) if r["start_id"] not in starts]
            if fresh and fresh[0]["state"] == "ready" and fresh[0]["stats"]["graph_hits"] > 6:
                break
            assert time.monotonic() < until, f"no replacement that hits: {fresh}"
            await asyncio.sleep(0.3)
        await load.answered(12)
    return load.fate, failed, fresh[0]


async def _ask_until(server: Server, request: Any, done: Any) -> None:
    """Ask the same until ``done`` says so: a shape of its own brings a capture about."""
    while not await asyncio.to_thread(done):
        await asyncio.to_thread(ask, client(server), request, 4)
