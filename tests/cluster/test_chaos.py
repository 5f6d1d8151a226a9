"""Parts are killed or fail under load: every request is answered right or refused with a reason.

Needs: Ray, vLLM on the CPU. One application for all cases, each of which leaves it healthy.
"""

import asyncio
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests import media
from tests.asking import ask, text, user
from tests.chaos_app import SCRIPT_VARIABLE, say
from tests.load import Load
from tests.scrape import Samples, scraped_until, total
from tests.servers import Server, client, running_app
from tests.truth import Known, pictures, right_alone, words

ADMIN = {"Authorization": "Bearer admin-secret"}
SIZES = ((90, 70), (70, 90), (120, 60))


@dataclass
class Chaos:
    """The application under test, its script folder, and requests with their right answers."""

    server: Server
    script: Path
    known: list[Known]

    def report(self) -> dict[str, Any]:
        return dict(httpx.get(f"{self.server.base_url}/v1/graphs", timeout=20, trust_env=False).json())

    def status(self) -> dict[str, Any]:
        return dict(httpx.get(f"{self.server.base_url}/v1/status", timeout=20, trust_env=False).json())

    def replicas(self, encoder: str) -> list[dict[str, Any]]:
        return [r for r in self.report()["replicas"] if r["encoder"] == encoder]

    def post(self, url: str, headers: dict[str, str] | None = None) -> httpx.Response:
        return httpx.post(url, headers=headers, timeout=20, trust_env=False)

    def pids(self, name: str) -> list[psutil.Process]:
        """Processes of the application whose title holds ``name``."""
        found = []
        for process in self.server.processes():
            try:
                if name in " ".join(process.cmdline()):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    async def ready_again(self, encoder: str, count: int, without: set[str], within_s: float = 120) -> float:
        """Seconds until ``count`` replicas are ready, none of them in ``without`` (start ids)."""
        begun = time.monotonic()
        while time.monotonic() - begun < within_s:
            replicas = await asyncio.to_thread(self.replicas, encoder)
            ready = [r for r in replicas if r["state"] == "ready" and r["start_id"] not in without]
            if len(ready) == count and await asyncio.to_thread(self.healthy):
                return time.monotonic() - begun
            await asyncio.sleep(0.3)
        raise AssertionError(f"not at full strength after {within_s} s: {self.replicas(encoder)}")

    def healthy(self) -> bool:
        return (
            httpx.get(f"{self.server.base_url}/health", timeout=20, trust_env=False).json()["status"] == "ok"
        )


@pytest.fixture(scope="module")
def chaos(tmp_path_factory: pytest.TempPathFactory, undivided: Server) -> Iterator[Chaos]:
    folder = tmp_path_factory.mktemp("chaos")
    script = folder / "script"
    script.mkdir()
    known = right_alone(undivided, pictures(SIZES, seed=12), 12)
    args = {
        "admin_token": "admin-secret",
        "embedding_cache_bytes": 0,
        "enforce_eager": False,
        "controller": {"first_delay_s": 0.5, "capture_failures_to_disable": 3, "max_recycles_per_window": 50},
        "encoders": {"stuck_after_s": 5},
    }
    with running_app(
        folder,
        args,
        {"VisionEncoder": {"num_replicas": 2}, "Ingress": {"num_replicas": 2}},
        import_path="tests.chaos_app:build",
        env={SCRIPT_VARIABLE: str(script)},
    ) as server:
        yield Chaos(server, script, known)


def totals_of(report: dict[str, Any]) -> dict[str, int]:
    return {k: v for k, v in report["totals"]["vision"].items() if isinstance(v, int)}


def told(samples: Samples) -> bool:
    """Whether the metrics tell of hits, and of a capture that failed, was answered elsewhere and recycled."""
    return (
        total(samples, "ray_graphserve_graph_hits_total", encoder="vision") > 0
        and total(samples, "ray_graphserve_shape_items_total", encoder="vision", outcome="hit") > 0
        and total(samples, "ray_graphserve_graph_capture_failures_total", encoder="vision") > 0
        and total(samples, "ray_graphserve_failed_attempts_total", part="vision") > 0
        and total(samples, "ray_graphserve_encoder_recycles_total", encoder="vision", cause="failed") > 0
    )


async def test_a_failed_capture_costs_no_request(chaos: Chaos) -> None:
    """(a) A capture fails in one of two replicas: no request is lost or refused, it is replaced, and the
    metrics tell of it; the status adds up the requests of both Ingress replicas.
    """
    before = chaos.report()
    starts = {r["start_id"] for r in chaos.replicas("vision")}
    say(chaos.script, "fail-vision")
    async with Load(chaos.server, chaos.known, at_once=4) as load:
        until = time.monotonic() + 60
        while not (recycles := chaos.report()["recycles"]):
            assert time.monotonic() < until, "the failed replica was not recycled"
            await asyncio.sleep(0.2)
        failed = recycles[-1]["replica_id"]
        gone = {r["start_id"] for r in before["replicas"] if r["replica_id"] == failed}
        took_s = await chaos.ready_again("vision", 2, gone)
        await load.answered(12)
    fate = load.fate
    print(f"(a) {fate.line()}; full strength after {took_s:.1f} s")
    assert (fate.wrong, fate.lost, fate.refused) == ([], [], [])
    await asyncio.to_thread(scraped_until, chaos.server, told)
    traffic = (await asyncio.to_thread(chaos.status))["traffic"]
    assert traffic["ingresses"] == 2
    assert traffic["ok"] >= 12
    after = chaos.report()
    assert "scripted capture failure" in recycles[-1]["reason"]
    assert totals_of(after)["capture_failures"] == totals_of(before)["capture_failures"] + 1
    assert all(totals_of(after)[k] >= v for k, v in totals_of(before).items() if k != "num_graphs")
    assert totals_of(after)["graph_hits"] > 0
    assert len(starts & {r["start_id"] for r in after["replicas"]}) == 1


async def test_a_killed_encoder_costs_no_request(chaos: Chaos) -> None:
    """(d) SIGKILL of an encoder replica while it encodes: its requests are answered by another."""
    victim = chaos.pids("ServeReplica:graphserve:VisionEncoder")[0]
    starts = {r["start_id"] for r in chaos.replicas("vision")}
    workers = victim.children(recursive=True)
    async with Load(chaos.server, chaos.known, at_once=4) as load:
        await load.answered(4)
        victim.send_signal(signal.SIGKILL)
        await load.answered(8)
        while len(starts & {r["start_id"] for r in await asyncio.to_thread(chaos.replicas, "vision")}) == 2:
            await asyncio.sleep(0.2)
        alive = starts & {r["start_id"] for r in chaos.replicas("vision")}
        took_s = await chaos.ready_again("vision", 2, starts - alive)
    print(f"(d) {load.fate.line()}; full strength after {took_s:.1f} s")
    assert (load.fate.wrong, load.fate.lost, load.fate.refused) == ([], [], [])
    assert psutil.wait_procs(workers, timeout=10)[1] == [], "its preprocessing workers outlived it"


async def test_a_dead_engine_is_replaced(chaos: Chaos) -> None:
    """(f) SIGKILL of the decoder's engine: what had not streamed is tried again, and answers come back."""
    (engine,) = chaos.pids("EngineCore")
    async with Load(chaos.server, chaos.known, at_once=4) as load:
        await load.answered(4)
        engine.send_signal(signal.SIGKILL)
        killed_s = time.monotonic()
        await load.answered(8, within_s=150)
        took_s = time.monotonic() - killed_s
    print(f"(f) {load.fate.line()}; answers again after {took_s:.1f} s")
    assert (load.fate.wrong, load.fate.lost) == ([], [])
    assert await chaos.ready_again("vision", 2, set()) < 120


@pytest.mark.full
async def test_a_failed_capture_in_the_only_replica(chaos: Chaos, undivided: Server) -> None:
    """(b) The only audio replica fails: what comes meanwhile waits or is refused, none is lost or wrong."""
    known = right_alone(undivided, words(seed=6), 6)
    gone = {r["start_id"] for r in chaos.replicas("audio")}
    say(chaos.script, "fail-audio")
    async with Load(chaos.server, known, at_once=3) as load:
        took_s = await chaos.ready_again("audio", 1, gone)
        await load.answered(6)
    print(f"(b) {load.fate.line()}; full strength after {took_s:.1f} s")
    assert (load.fate.wrong, load.fate.lost) == ([], [])


@pytest.mark.full
async def test_a_killed_controller_is_not_noticed(chaos: Chaos) -> None:
    """(e) SIGKILL of the controller: no request notices, and it counts anew from the living replicas."""
    before = chaos.report()
    (controller,) = chaos.pids("ServeReplica:graphserve:GraphController")
    async with Load(chaos.server, chaos.known, at_once=4) as load:
        await load.answered(4)
        controller.send_signal(signal.SIGKILL)
        await load.answered(12)
        begun = time.monotonic()
        while True:
            try:
                after = await asyncio.to_thread(chaos.report)
                if after["counting_since"] > before["counting_since"] and len(after["replicas"]) == 3:
                    break
            except (KeyError, httpx.HTTPError):
                pass
            assert time.monotonic() - begun < 90, "the controller did not come back"
            await asyncio.sleep(0.3)
        took_s = time.monotonic() - begun
        await load.answered(4)
    print(f"(e) {load.fate.line()}; reports again after {took_s:.1f} s")
    assert (load.fate.wrong, load.fate.lost, load.fate.refused) == ([], [], [])


@pytest.mark.full
async def test_a_killed_ingress_takes_only_its_own_requests(chaos: Chaos) -> None:
    """(g) SIGKILL of one of two Ingress replicas: its requests are refused at once, no other notices."""
    victim = chaos.pids("ServeReplica:graphserve:Ingress")[0]
    async with Load(chaos.server, chaos.known, at_once=4) as load:
        await load.answered(4)
        victim.send_signal(signal.SIGKILL)
        killed_s = time.monotonic()
        await load.answered(16)
    print(f"(g) {load.fate.line()}")
    assert (load.fate.wrong, load.fate.lost) == ([], [])
    assert len(load.fate.refused) <= 4
    assert all(status == 503 and at_s - killed_s < 5 for at_s, status, _ in load.fate.refused)
    assert await chaos.ready_again("vision", 2, set()) < 120


@pytest.mark.full
async def test_a_stuck_worker_is_found_and_replaced(chaos: Chaos) -> None:
    """(h) The GPU thread hangs while health checks answer: the replica is recycled, nothing is lost."""
    starts = {r["start_id"] for r in chaos.replicas("vision")}
    recycles = len(chaos.report()["recycles"])
    say(chaos.script, "stick-vision")
    async with Load(chaos.server, chaos.known, at_once=4) as load:
        until = time.monotonic() + 60
        while len(found := (await asyncio.to_thread(chaos.report))["recycles"]) == recycles:
            assert time.monotonic() < until, "the stuck replica was not recycled"
            await asyncio.sleep(0.2)
        alive = {
            r["start_id"] for r in chaos.replicas("vision") if r["replica_id"] != found[-1]["replica_id"]
        }
        took_s = await chaos.ready_again("vision", 2, starts - alive)
        await load.answered(8)
    print(f"(h) {load.fate.line()}; full strength after {took_s:.1f} s")
    assert (load.fate.wrong, load.fate.lost, load.fate.refused) == ([], [], [])
    assert "stuck" in found[-1]["reason"]


@pytest.mark.full
async def test_recycling_by_hand(chaos: Chaos) -> None:
    """(i) An operator recycles a healthy replica: it drains, is replaced, and no request notices."""
    victim = chaos.replicas("vision")[0]
    url = f"{chaos.server.base_url}/admin/replicas/{victim['replica_id']}/recycle"
    assert chaos.post(url).status_code == 401
    assert chaos.post(url.replace(victim["replica_id"], "nobody"), ADMIN).status_code == 404
    async with Load(chaos.server, chaos.known, at_once=4) as load:
        await load.answered(4)
        answer = await asyncio.to_thread(chaos.post, url, ADMIN)
        assert answer.status_code == 202, answer.text
        took_s = await chaos.ready_again("vision", 2, {victim["start_id"]})
        await load.answered(8)
    print(f"(i) {load.fate.line()}; full strength after {took_s:.1f} s")
    assert (load.fate.wrong, load.fate.lost, load.fate.refused) == ([], [], [])
    assert "operator" in chaos.report()["recycles"][-1]["reason"]


@pytest.mark.full
async def test_graphs_are_disabled_when_every_replacement_fails(chaos: Chaos) -> None:
    """(c) Every replacement fails to capture while it warms: the next start has no graphs and serves."""
    victim = chaos.replicas("vision")[0]
    url = f"{chaos.server.base_url}/admin/replicas/{victim['replica_id']}/recycle"
    async with Load(chaos.server, chaos.known, at_once=4) as load:
        await load.answered(60)  # every shape is captured where it will be: only a fresh replica captures
        say(chaos.script, "fail-vision", times=20)
        assert (await asyncio.to_thread(chaos.post, url, ADMIN)).status_code == 202
        took_s = await chaos.ready_again("vision", 2, {victim["start_id"]}, within_s=240)
        for path in chaos.script.glob("fail-vision.*"):
            path.unlink()
        await load.answered(8)
    print(f"(c) {load.fate.line()}; full strength after {took_s:.1f} s")
    assert (load.fate.wrong, load.fate.lost, load.fate.refused) == ([], [], [])
    assert sorted(r["graphs_enabled"] for r in chaos.replicas("vision")) == [False, True]


@pytest.mark.full
def test_a_fresh_deployment_whose_capture_fails_starts_without_graphs(tmp_path: Path) -> None:
    """A capture that breaks in the warm-up of a first and only replica: the app comes up, graphs off."""
    script = tmp_path / "script"
    script.mkdir()
    say(script, "fail-vision", times=5)
    args = {"enforce_eager": False, "controller": {"warm_keys": {"vision": ["9x11", "11x9"]}}}
    with running_app(
        tmp_path, args, import_path="tests.chaos_app:build", env={SCRIPT_VARIABLE: str(script)}
    ) as server:
        report = httpx.get(f"{server.base_url}/v1/graphs", timeout=20, trust_env=False).json()
        enabled = {r["encoder"]: r["graphs_enabled"] for r in report["replicas"]}
        assert enabled == {"vision": False, "audio": True}
        picture = dict(media.image_part(media.image_bytes(media.drawn(90, 70))))
        assert ask(client(server), user(text("Look"), picture)).text
