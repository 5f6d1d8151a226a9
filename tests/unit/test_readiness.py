"""What /health says, and that the watch over Serve's status goes on whatever Serve does."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from app import readiness
from app.readiness import Health, Readiness, look

NAMES = ("VisionEncoder", "Decoder")


def info(status: str = "HEALTHY", **states: int) -> Any:
    return SimpleNamespace(status=status, replica_states=states or {"RUNNING": 1})


READY = {"VisionEncoder": info(), "Decoder": info()}


def test_not_ready_until_every_part_was() -> None:
    """503 while any part is missing or starting, even if text could be answered already."""
    first = look(Health(), {"Decoder": info()}, NAMES)
    assert (first.status, first.body()["status"]) == (503, "starting")
    assert first.parts == {"VisionEncoder": "not deployed"}
    second = look(first, {**READY, "VisionEncoder": info("UPDATING", STARTING=1)}, NAMES)
    assert (second.status, second.parts) == (503, {"VisionEncoder": "updating: 1 starting"})
    assert look(second, READY, NAMES).status == 200


def test_a_lost_encoder_degrades_and_does_not_turn_away() -> None:
    """Once ready, a recycled encoder leaves /health at 200 and is named in the body."""
    ready = look(Health(), READY, NAMES)
    later = look(ready, {**READY, "VisionEncoder": info("UNHEALTHY", STARTING=1)}, NAMES)
    assert (later.status, later.body()["status"]) == (200, "degraded")
    assert list(later.body()["parts"]) == ["VisionEncoder"]


def test_without_a_running_decoder_nothing_can_be_answered() -> None:
    """503 again when no decoder runs, and 200 as soon as one does."""
    ready = look(Health(), READY, NAMES)
    down = look(ready, {**READY, "Decoder": info("UNHEALTHY", STARTING=1)}, NAMES)
    assert (down.status, down.body()["status"]) == (503, "unavailable")
    assert look(down, READY, NAMES).body() == {"status": "ok", "parts": {}}


@pytest.mark.parametrize("status", ["UPSCALING", "DOWNSCALING"])
def test_scaling_is_not_degradation(status: str) -> None:
    """Autoscaling up or down is how it should be."""
    ready = look(Health(), READY, NAMES)
    later = look(ready, {**READY, "VisionEncoder": info(status, RUNNING=1, STARTING=1)}, NAMES)
    assert later.body()["status"] == "ok"


async def test_a_poll_that_fails_leaves_the_last_view_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve's controller may be away, or know the application no more: the watch outlives both."""
    app = SimpleNamespace(deployments=READY)
    answers: list[Any] = [
        {"app": app},
        RuntimeError("controller restarts"),
        {},
        {"app": SimpleNamespace(deployments={})},
    ]
    seen: list[int] = []
    done = asyncio.Event()

    def status() -> Any:
        seen.append(watch.health.status)
        if not answers:
            loop.call_soon_threadsafe(done.set)
            return SimpleNamespace(applications={"app": app})
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return SimpleNamespace(applications=answer)

    monkeypatch.setattr(readiness.serve, "status", status)
    loop = asyncio.get_running_loop()
    watch = Readiness("app", NAMES, period_s=0.001)
    watch.start()
    first = watch._task
    watch.start()
    await asyncio.wait_for(done.wait(), 10)
    assert seen[:5] == [503, 200, 200, 200, 503]
    assert watch._task is first
    assert first is not None
    first.cancel()
