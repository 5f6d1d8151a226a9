"""The preprocessing pool with real worker processes: it outlives hung and dead ones, and not its parent."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from deployments.encoders.preprocess_pool import PoolOptions, PreprocessPool
from deployments.errors import ClientError, TransientError
from deployments.families.base import EncoderInputs
from deployments.upstream.encoder_model import EncoderModelSpec
from policies.limits import MediaLimits
from tests.fakes import FakeFamily, inputs_of

ROOT = Path(__file__).parents[2]
START_S = 120.0  # a worker imports torch, on a busy machine


def make_work(*_: Any) -> Any:
    """In a worker: items say what becomes of them."""
    return work


def work(data: bytes) -> EncoderInputs:
    word = data.partition(b":")[2]
    if word == b"hang":
        time.sleep(3600)
    if word == b"crash":
        os.kill(os.getpid(), signal.SIGKILL)
    if word.startswith(b"sleep"):
        time.sleep(float(word[5:]))
    if word == b"bad":
        raise ClientError("this part is bad", code="media_invalid")
    if word == b"pid":
        return inputs_of(f"pid{os.getpid()}:".encode())
    return inputs_of(data)


class FastWork:
    preprocessing = "fast"
    why = "a test"

    def __call__(self, data: bytes) -> EncoderInputs:
        return work(data)


def make_fast(*_: Any) -> Any:
    return FastWork()


def make_broken(*_: Any) -> Any:
    raise ValueError("no processor")


def pool(workers: int = 1, item_timeout_s: float = 1.0, make: Any = make_work) -> PreprocessPool:
    options = PoolOptions(workers, item_timeout_s, MediaLimits())
    return PreprocessPool(FakeFamily(), "vision", EncoderModelSpec("m", "image", "float32"), options, make)


async def until_gone(processes: list[psutil.Process], timeout_s: float = 20) -> None:
    _, alive = await asyncio.to_thread(psutil.wait_procs, processes, timeout_s)
    assert not alive


def children() -> list[psutil.Process]:
    """Worker processes of this test (the resource tracker is none)."""
    found = psutil.Process().children()
    return [p for p in found if "spawn_main" in " ".join(p.cmdline())]


@pytest.fixture
async def warm():  # type: ignore[no-untyped-def]
    """Pools that are warm, and closed with their workers gone at the end."""
    made: list[PreprocessPool] = []

    async def make(*args: Any, **options: Any) -> PreprocessPool:
        made.append(pool(*args, **options))
        await asyncio.wait_for(made[-1].warm(), START_S)
        return made[-1]

    yield make
    for one in made:
        one.close()
    await until_gone(children())


async def test_a_hung_item_is_cut_off_and_the_pool_works_again(warm: Any) -> None:
    """An item past its limit is refused, its worker is killed, and the next item is prepared.

    Also when the new workers take longer to start than an item may take, and when the hung item's
    caller has gone meanwhile.
    """
    one = await warm(item_timeout_s=0.5)
    workers = children()
    with pytest.raises(ClientError, match=r"longer than 0\.5 s") as caught:
        await one.run(b"4x4:hang")
    assert caught.value.code == "media_timeout"
    assert (await asyncio.wait_for(one.run(b"4x4:fine"), START_S)).shape_key == "4x4"
    await until_gone(workers)
    left = asyncio.create_task(one.run(b"4x4:hang"))
    await asyncio.sleep(0.1)
    left.cancel()
    assert (await asyncio.wait_for(one.run(b"4x4:fine"), START_S)).shape_key == "4x4"


async def test_a_dead_worker_is_a_passing_error_and_replaced(warm: Any) -> None:
    """Who was being prepared may try again, and can."""
    one = await warm()
    with pytest.raises(TransientError, match="died"):
        await one.run(b"4x4:crash")
    assert (await asyncio.wait_for(one.run(b"4x4:fine"), START_S)).shape_key == "4x4"


async def test_waiting_is_not_preparing(warm: Any) -> None:
    """The time limit is the item's own: a long queue of quick items refuses nobody and kills no worker."""
    one = await warm(item_timeout_s=1.0)
    workers = children()
    results = await asyncio.gather(*(one.run(f"{n}x{n}:sleep0.3".encode()) for n in range(8)))
    assert [r.shape_key for r in results] == [f"{n}x{n}" for n in range(8)]
    assert children() == workers


async def test_errors_of_media_come_back_whole_and_harm_nobody(warm: Any) -> None:
    """Bad media is the client's, word for word, and the worker goes on."""
    one = await warm()
    workers = children()
    with pytest.raises(ClientError, match="this part is bad") as caught:
        await one.run(b"4x4:bad")
    assert caught.value.code == "media_invalid"
    await one.run(b"4x4:fine")
    assert children() == workers


async def test_workers_work_at_the_same_time(warm: Any) -> None:
    """Two workers are warm after ``warm`` and take two items at once."""
    one = await warm(workers=2, item_timeout_s=30)
    assert len(children()) == 2
    pids = await asyncio.gather(one.run(b"4x4:sleep0.5"), one.run(b"4x4:pid"), one.run(b"4x4:pid"))
    assert len({p.shape_key for p in pids[1:]}) == 1


async def test_more_items_than_shared_memory_has_room_for_are_prepared(warm: Any) -> None:
    """Items that nobody has encoded yet keep their slots; those that find none come by the pipe."""
    one = await warm(item_timeout_s=30)
    count = one._slots.count
    held = [await one.run(f"{n}x{n}:held".encode()) for n in range(1, count + 3)]
    assert one._slots.take() is None
    assert [item.shape_key for item in held] == [f"{n}x{n}" for n in range(1, count + 3)]
    for n, item in enumerate(held, 1):
        np.testing.assert_equal(dict(item.arrays), dict(inputs_of(f"{n}x{n}:held".encode()).arrays))
    held.clear()
    item = None
    assert {one._slots.take() for _ in range(count)} == set(range(count))


async def test_the_pool_says_how_its_workers_prepare(warm: Any, caplog: pytest.LogCaptureFixture) -> None:
    """What the workers found at their start is known and logged once they are warm."""
    caplog.set_level("INFO", "ray.serve")
    assert (await warm()).preprocessing == "checkpoint"
    assert (await warm(make=make_fast)).preprocessing == "fast"
    assert [line for line in caplog.messages if "preprocessing: " in line] == [
        "preprocessing: checkpoint",
        "preprocessing: fast, for a test",
    ]


async def test_workers_that_cannot_start_are_told() -> None:
    """A processor that cannot be loaded fails the start instead of hanging it."""
    one = pool(make=make_broken)
    with pytest.raises(Exception, match="terminated abruptly"):
        await asyncio.wait_for(one.warm(), START_S)
    with pytest.raises(TransientError, match="could be started"):
        await asyncio.wait_for(one.run(b"4x4:fine"), START_S)
    one.close()
    await until_gone(children())


PARENT = """
import asyncio, sys
from tests.local.test_preprocess_pool import children, pool

async def main():
    one = pool(workers=2, item_timeout_s=60)
    await one.warm()
    print(*[p.pid for p in children()], flush=True)
    await one.run(b"4x4:hang")

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_workers_die_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    """SIGKILL of the replica leaves no worker behind, idle or busy."""
    script = tmp_path / "parent.py"
    script.write_text(PARENT)
    parent = subprocess.Popen(
        [sys.executable, str(script)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert parent.stdout is not None
    workers = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
    parent.stdout.close()
    assert len(workers) == 2
    parent.kill()
    parent.wait(10)
    _, alive = psutil.wait_procs(workers, timeout=20)
    for process in alive:
        process.kill()
    assert not alive
