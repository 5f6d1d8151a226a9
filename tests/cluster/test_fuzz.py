"""Requests that nobody would write, and media that nobody could. Needs: Ray, vLLM on the CPU.

``FUZZ_SECONDS`` is how long damaged media are sent (60), ``FUZZ_SEED`` where their damage begins (0).
"""

import contextlib
import io
import os
import random
import threading
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import psutil
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance, status_code_conformance

from tests import media
from tests.asking import ask, text, user
from tests.servers import Server, client

SECONDS = float(os.environ.get("FUZZ_SECONDS", "60"))
SEED = int(os.environ.get("FUZZ_SEED", "0"))
AT_ONCE = 4
GROWTH_BYTES = 200 << 20
"""What all processes together may hold more after the fuzzing than after its first quarter."""


def private_bytes(server: Server) -> int:
    """Memory that belongs to the server's processes alone, embeddings in shared memory left out."""
    total = 0
    for process in server.processes():
        with contextlib.suppress(psutil.Error):
            total += process.memory_full_info().uss
    return total


def start_ids(server: Server) -> set[str]:
    report = httpx.get(f"{server.base_url}/v1/graphs", trust_env=False).json()
    return {replica["start_id"] for replica in report["replicas"]}


@pytest.fixture(autouse=True)
def _nobody_dies(app: Server) -> Iterator[None]:
    """Afterwards the same replicas answer as before."""
    before = start_ids(app)
    assert len(before) == 2
    yield
    picture = dict(media.image_part(media.photo_bytes("coffee", (80, 60))))
    sound = dict(media.input_audio_part(media.sound_bytes(media.tone(0.5))))
    assert ask(client(app), user(text("Look"), picture, sound)).text
    assert start_ids(app) == before


# ---- requests by the schema ----


def short(body: Any) -> Any:
    """The body with at most a few tokens to generate, where it is one that generates."""
    if not isinstance(body, dict):
        return body
    for name, most in (("max_tokens", 4), ("max_completion_tokens", 4), ("n", 4)):
        if isinstance(body.get(name), int | float) and body[name] > most:
            body = {**body, name: most}
    return body if {"max_tokens", "max_completion_tokens"} & set(body) else {**body, "max_tokens": 4}


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=lambda mode: mode.value)
def test_no_request_by_the_schema_is_a_fault_of_ours(app: Server, mode: Any) -> None:
    """Valid and invalid requests of every path get an answer that the description knows, and never a 5xx."""
    document = httpx.get(f"{app.base_url}/openapi.json", trust_env=False).json()
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=app.base_url)
    asked: Counter[int] = Counter()
    for found in schema.get_all_operations():
        operation = found.ok()
        chat = operation.path.endswith("/completions")
        if mode is schemathesis.GenerationMode.NEGATIVE and not chat:
            continue  # there is nothing in them to be wrong

        @settings(
            max_examples=60 if chat else 10,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def once(case: Any) -> None:
            if case.operation.path.endswith("/completions"):
                case.body = short(case.body)
            response = case.call(timeout=60)
            asked[response.status_code] += 1
            case.validate_response(
                response, checks=[not_a_server_error, response_schema_conformance, status_code_conformance]
            )

        once()
    assert asked[200 if mode is schemathesis.GenerationMode.POSITIVE else 400] > 10
    print(f"schema, {mode.value}: {dict(asked)}")


# ---- media by the byte ----


def originals() -> dict[str, list[bytes]]:
    """Small files of every kind, whole."""
    picture = media.drawn(90, 70)
    kinds = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "JPEG2000", "AVIF")
    pictures = [media.image_bytes(picture, kind) for kind in kinds]
    sound = media.tone(0.3, 22_050, 2)
    clips = [media.sound_bytes(sound, 22_050, kind) for kind in ("WAV", "FLAC", "OGG", "MP3", "AIFF", "CAF")]
    return {"image": pictures, "audio": clips}


def damaged(data: bytes, chance: random.Random) -> bytes:
    """The file with one to four wounds, more of them near its head."""
    held = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = min(int(chance.expovariate(1 / 200)), len(held) - 1) if chance.random() < 0.7 else (
            chance.randrange(len(held))
        )  # fmt: skip
        match chance.randrange(6):
            case 0:
                held[at] ^= 1 << chance.randrange(8)
            case 1:
                held[at : at + 4] = chance.choice(
                    [b"\xff" * 4, b"\0" * 4, b"\x7f\xff\xff\xff", b"\0\0\0\x80"]
                )
            case 2:
                del held[at + 1 :]
            case 3:
                held[at:at] = chance.randbytes(chance.randint(1, 64))
            case 4:
                del held[at : at + chance.randint(1, 64)]
            case _:
                other = chance.randrange(len(held))
                held[at : at + 64] = held[other : other + 64]
        held = held or bytearray(b"\0")
    return bytes(held)


def test_no_damage_to_media_is_a_fault_of_ours(app: Server) -> None:
    """Every file gets an answer or a 4xx that names its part, and memory does not grow with their number."""
    files = originals()
    status: Counter[int] = Counter()
    faults: list[str] = []
    guard, middle = threading.Lock(), [0]
    begun = time.monotonic()

    def attack(worker: int) -> None:
        chance = random.Random(SEED * AT_ONCE + worker)
        with httpx.Client(base_url=app.base_url, timeout=60, trust_env=False) as api:
            while (passed := time.monotonic() - begun) < SECONDS:
                kind = chance.choice(("image", "audio"))
                data = damaged(chance.choice(files[kind]), chance)
                part = dict(media.image_part(data) if kind == "image" else media.input_audio_part(data))
                body = {"messages": user(text("?"), part), "max_tokens": 1}
                response = api.post("/v1/chat/completions", json=body)
                with guard:
                    status[response.status_code] += 1
                    if response.status_code not in (200, 400, 413) or (
                        response.status_code != 200
                        and "messages[0].content[1]" not in str(response.json()["error"]["param"])
                    ):
                        faults.append(f"{response.status_code} {response.text[:300]} {data[:80]!r}")
                    if not middle[0] and passed > SECONDS / 4:
                        middle[0] = private_bytes(app)

    def quietly(worker: int) -> None:
        try:
            attack(worker)
        except Exception:
            trace = io.StringIO()
            traceback.print_exc(file=trace)
            faults.append(trace.getvalue())

    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(quietly, range(AT_ONCE)))
    grown = private_bytes(app) - middle[0]
    print(f"media: {dict(status)} in {time.monotonic() - begun:.0f} s, {grown / 2**20:+.0f} MiB")
    assert not faults, faults[:5]
    assert min(status[200], status[400]) > 20
    assert grown < GROWTH_BYTES, grown
