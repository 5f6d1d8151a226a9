"""Many clients at once, each with a picture, a word or both of its own. Needs: Ray, vLLM on the CPU.

Every answer is compared in words with what is true of that client's media, and token for token with the
undivided run. The model is not right about every picture and word, so the questions are the first of a seeded
list that the undivided server answers truly, asked one at a time: what is right alone must be right in the
crowd. No two truths are the same: an answer that went to another client is wrong, and the failure names both.
"""

import asyncio
from collections.abc import Iterator

import httpx
import psutil
import pytest

from tests.asking import ask_crowd
from tests.servers import Server, running_app, wait_for
from tests.truth import LONGEST, Known, crowd, fault, right_alone

CROWD, LARGE_CROWD = 50, 200


async def faults(server: Server, known: list[Known]) -> list[str]:
    """What is wrong with the answers to all of the questions, asked at once."""
    asked = [each.question.messages for each in known]
    answers = await ask_crowd(server.base_url, asked, len(asked), max_tokens=LONGEST, timeout_s=300)
    return [wrong for one, said in zip(known, answers, strict=True) if (wrong := fault(one, said, known))]


async def test_nobody_in_a_crowd_gets_anothers_answer(app: Server, undivided: Server) -> None:
    """Fifty clients at once are each told what is true of their own picture and word."""
    known = right_alone(undivided, crowd(seed=50), CROWD)
    assert await faults(app, known) == []


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    args = {"embedding_cache_bytes": 0}
    encoders = {"num_replicas": 2, "max_queued_requests": LARGE_CROWD}
    replicas = {"VisionEncoder": encoders, "AudioEncoder": encoders}
    with running_app(tmp_path_factory.mktemp("crowd"), args, replicas) as server:
        yield server


def encoder_processes(server: Server, name: str) -> list[psutil.Process]:
    return [p for p in server.processes() if f"ServeReplica:graphserve:{name}" in " ".join(p.cmdline())]


def encodes(server: Server) -> int:
    """Pictures that were encoded, by the last collection."""
    report = httpx.get(f"{server.base_url}/v1/graphs", timeout=20, trust_env=False).json()
    return int(report["totals"]["vision"]["graph_misses"])


@pytest.mark.full
@pytest.mark.timeout(900)
async def test_a_crowd_whose_encoder_dies_is_told_the_truth(large: Server, undivided: Server) -> None:
    """Two hundred clients at once, one of two vision replicas killed amid them: every answer is its own."""
    known = right_alone(undivided, crowd(seed=200), LARGE_CROWD)
    victim = encoder_processes(large, "VisionEncoder")[0]
    before = encodes(large)
    asking = asyncio.create_task(faults(large, known))
    assert await asyncio.to_thread(wait_for, lambda: encodes(large) > before)
    assert not asking.done(), "the crowd was gone before the replica died"
    victim.kill()
    assert await asking == []
    assert not victim.is_running()
