"""The encoders of `configs/autoscale.yaml` go up under load and down after it.

Needs: Ray, vLLM on the CPU.
"""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests import media
from tests.asking import ask, text, user
from tests.cases import MANY_SLICES, picture
from tests.load import Load, known_answers
from tests.servers import Server, client, running_app

AT_ONCE = 24
PICTURES = 3


@pytest.fixture(scope="module")
def autoscaled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_app(
        tmp_path_factory.mktemp("autoscale"), {"embedding_cache_bytes": 0}, source="configs/autoscale.yaml"
    ) as server:
        yield server


def heavy(number: int) -> Any:
    """A request whose pictures are more work than its answer."""
    seeds = range(PICTURES * number, PICTURES * (number + 1))
    return user(text(f"Number {number}"), *(picture(MANY_SLICES, seed) for seed in seeds))


def light(number: int) -> Any:
    """Mostly text."""
    small = [picture((90, 70), number)] if number % 4 == 0 else []
    return user(text(f"Light {number}"), *small)


def replicas(server: Server) -> dict[str, list[dict[str, Any]]]:
    """Ready replicas that answer, by encoder."""
    report = httpx.get(f"{server.base_url}/v1/graphs", timeout=30, trust_env=False).json()
    ready = [r for r in report["replicas"] if r["state"] == "ready" and not r["stale"]]
    return {name: [r for r in ready if r["encoder"] == name] for name in ("vision", "audio")}


async def until_there_are(server: Server, low: int, high: int, within_s: float) -> float:
    """Seconds until the vision encoder has so many replicas; the audio encoder, unasked, keeps its one."""
    begun = time.monotonic()
    while time.monotonic() - begun < within_s:
        now = await asyncio.to_thread(replicas, server)
        assert len(now["audio"]) <= 1, "the audio encoder has no load and must not grow"
        if low <= len(now["vision"]) <= high:
            return time.monotonic() - begun
        await asyncio.sleep(0.5)
    raise AssertionError(f"not {low} to {high} replicas after {within_s} s: {now}")


@pytest.mark.full
@pytest.mark.timeout(900)
async def test_an_encoder_scales_by_its_own_work_and_loses_nothing(
    autoscaled: Server, undivided: Server
) -> None:
    """Pictures bring vision replicas, their end takes them away by draining; every answer is right."""
    heavies = known_answers(undivided, [heavy(number) for number in range(12)])
    lights = known_answers(undivided, [light(number) for number in range(8)])
    async with Load(autoscaled, heavies, at_once=AT_ONCE) as load:
        await load.answered(8)
        begun, first = time.monotonic(), load.fate.answered
        up_s = await until_there_are(autoscaled, 2, 3, within_s=240)
        rate = (load.fate.answered - first) / (time.monotonic() - begun)
        (pace_s, *_) = [r["seconds_per_token"] for r in replicas(autoscaled)["vision"]]
        await load.answered(AT_ONCE, within_s=240)
    # What one replica finished in a second, at the pace it says, is most of that second, and no more.
    used = rate * heavies[0].said.prompt_tokens * pace_s
    print(f"up after {up_s:.0f} s: {load.fate.line()}; {pace_s * 1e3:.2f} ms a token, used {used:.2f}")
    assert 0.3 < used < 1.5
    async with Load(autoscaled, lights, at_once=1) as quiet:
        down_s = await until_there_are(autoscaled, 1, 1, within_s=240)
        await quiet.answered(8)
    print(f"down after {down_s:.0f} s: {quiet.fate.line()}")
    for fate in (load.fate, quiet.fate):
        assert (fate.wrong, fate.lost, fate.refused) == ([], [], [])
    sounds = user(dict(media.input_audio_part(media.speech_bytes(), "flac")), text("?"))
    assert ask(client(autoscaled), sounds) == ask(client(undivided), sounds)
