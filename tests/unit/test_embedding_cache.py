"""The embedding cache: bounded, one encode for equal requests, nothing left by a failed or left one."""

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.embedding_cache import EmbeddingCache, Encoded
from deployments.errors import TransientError
from deployments.messages import EncodeReceipt


def encoded(uuid: str, size: int = 10) -> Encoded:
    return Encoded(EncodeReceipt(uuid, "vision", "r", "k", 1, size, "miss", 1, 0.0, 0.0, 0.0), object())


def making(uuid: str, size: int = 10) -> Callable[[], Awaitable[Encoded]]:
    async def make() -> Encoded:
        await asyncio.sleep(0)
        return encoded(uuid, size)

    return make


async def never() -> Encoded:
    raise AssertionError("encoded although it was held")


class Slow:
    """An encode that waits to be let go, and notes how often it began and whether it was cancelled."""

    def __init__(self, error: Exception | None = None) -> None:
        self.go = asyncio.Event()
        self.error = error
        self.begun = 0
        self.cancelled = 0

    async def __call__(self) -> Encoded:
        self.begun += 1
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        return encoded("a")


async def started(count: int = 5) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


calls = st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(1, 60)), max_size=40)


@given(st.integers(0, 100), calls)
def test_bytes_never_exceed_the_bound(max_bytes: int, sequence: list[tuple[str, int]]) -> None:
    """Whatever comes in whatever order and size, what is held and counted is within the bound."""

    async def run() -> None:
        cache = EmbeddingCache(max_bytes)
        for uuid, size in sequence:
            await cache.get(uuid, making(uuid, size))
            held = sum(entry.receipt.bytes for entry in cache._entries.values())
            assert held == cache.counts.bytes <= max_bytes

    asyncio.run(run())


async def test_least_recently_used_goes_first() -> None:
    """Use, not age, keeps an entry."""
    cache = EmbeddingCache(30)
    for uuid in "abc":
        await cache.get(uuid, making(uuid))
    await cache.get("a", never)
    await cache.get("d", making("d"))
    await cache.get("a", never)
    await cache.get("c", never)
    assert cache.counts.evictions == 1
    assert (await cache.get("b", making("b"))).receipt.uuid == "b"
    assert cache.counts.misses == 5


async def test_an_entry_larger_than_the_cache_throws_nobody_out() -> None:
    """What cannot be held is handed through, and the others stay."""
    cache = EmbeddingCache(30)
    await cache.get("a", making("a"))
    await cache.get("big", making("big", 31))
    await cache.get("a", never)
    assert cache.counts.bytes == 10


async def test_zero_bytes_remember_nothing_and_still_share() -> None:
    """Turned off, the cache keeps no reference alive, yet equal requests at once cost one encode."""
    cache, slow = EmbeddingCache(0), Slow()
    both = [asyncio.create_task(cache.get("a", slow)) for _ in range(2)]
    await started()
    slow.go.set()
    first, second = await asyncio.gather(*both)
    assert first is second
    assert (slow.begun, len(cache._entries), len(cache._running)) == (1, 0, 0)


async def test_equal_requests_at_once_are_encoded_once() -> None:
    """A crowd for one picture waits for one encode and then hits."""
    cache, slow = EmbeddingCache(100), Slow()
    crowd = [asyncio.create_task(cache.get("a", slow)) for _ in range(20)]
    await started()
    slow.go.set()
    results = await asyncio.gather(*crowd)
    assert slow.begun == 1
    assert len({id(r) for r in results}) == 1
    assert (cache.counts.misses, cache.counts.shared, cache.counts.hits) == (1, 19, 0)
    await cache.get("a", never)


async def test_a_failed_encode_leaves_nothing_and_fails_all_who_waited() -> None:
    """The error reaches every waiter, and the next request encodes anew."""
    cache, slow = EmbeddingCache(100), Slow(ValueError("broken"))
    crowd = [asyncio.create_task(cache.get("a", slow)) for _ in range(3)]
    await started()
    slow.go.set()
    results = await asyncio.gather(*crowd, return_exceptions=True)
    assert [type(r) for r in results] == [ValueError] * 3
    assert (cache.counts.bytes, cache._entries, cache._running) == (0, {}, {})
    assert (await cache.get("a", making("a"))).receipt.uuid == "a"


async def test_one_of_two_who_wait_may_leave() -> None:
    """The encode goes on for the one that stays."""
    cache, slow = EmbeddingCache(100), Slow()
    leaves, stays = (asyncio.create_task(cache.get("a", slow)) for _ in range(2))
    await started()
    leaves.cancel()
    await started()
    slow.go.set()
    assert (await stays).receipt.uuid == "a"
    assert (slow.begun, slow.cancelled) == (1, 0)
    with pytest.raises(asyncio.CancelledError):
        await leaves


async def test_when_all_who_wait_leave_the_encode_is_cancelled() -> None:
    """Work that nobody waits for is stopped, leaves nothing, and does not spoil who comes next."""
    cache, slow = EmbeddingCache(100), Slow()
    both = [asyncio.create_task(cache.get("a", slow)) for _ in range(2)]
    await started()
    for task in both:
        task.cancel()
    next_one = asyncio.create_task(cache.get("a", making("a")))
    results = await asyncio.gather(*both, return_exceptions=True)
    assert [type(r) for r in results] == [asyncio.CancelledError] * 2
    assert slow.cancelled == 1
    assert (await next_one).receipt.uuid == "a"
    assert not cache._running


async def test_who_comes_after_a_failure_is_cancelled_with_its_own_encode() -> None:
    """An encode begun right after a failed one of the same content is not kept alive by its waiters."""
    cache, failing, second = EmbeddingCache(100), Slow(ValueError("broken")), Slow()
    outcome: dict[str, Any] = {}

    async def first() -> None:
        try:
            await cache.get("a", failing)
        except ValueError:
            outcome["failed"] = True

    task = asyncio.create_task(first())
    await started()
    failing.go.set()
    while cache._running:
        await asyncio.sleep(0)
    late = asyncio.create_task(cache.get("a", second))
    await asyncio.sleep(0)
    late.cancel()
    await asyncio.gather(task, late, return_exceptions=True)
    await started()
    assert outcome == {"failed": True}
    assert second.begun == second.cancelled, "an encode without a waiter still runs"
    assert not cache._running


async def test_a_forgotten_entry_is_made_again_and_not_counted() -> None:
    """A lost object's entry can be dropped, twice too, and its bytes with it."""
    cache = EmbeddingCache(100)
    await cache.get("a", making("a"))
    cache.forget("a")
    cache.forget("a")
    assert cache.counts.bytes == 0
    await cache.get("a", making("a"))
    assert (cache.counts.misses, cache.counts.bytes) == (2, 10)


async def test_only_the_embedding_that_was_lost_is_dropped() -> None:
    """Who learns late that an embedding was lost does not throw away the one made since."""
    cache = EmbeddingCache(100)
    lost = await cache.get("a", making("a"))
    cache.forget("a", lost)
    made = await cache.get("a", making("a"))
    cache.forget("a", lost)
    assert await cache.get("a", making("a")) is made
    assert cache.counts.misses == 2


WHOSE: ContextVar[str] = ContextVar("WHOSE", default="nobody's")


async def test_a_shared_encode_runs_in_nobodys_context() -> None:
    """What Serve knows of the first request does not reach the encode that others wait for too."""
    WHOSE.set("the first one's")
    seen: list[str] = []

    async def make() -> Encoded:
        seen.append(WHOSE.get())
        return encoded("a", 10)

    await EmbeddingCache(100).get("a", make)
    assert seen == ["nobody's"]


async def test_an_encode_that_somebody_called_off_may_be_tried_again() -> None:
    """Who waits for an encode that was cancelled from outside is not cancelled thereby."""
    cache = EmbeddingCache(100)

    async def called_off() -> Encoded:
        raise asyncio.CancelledError

    waiting = [asyncio.create_task(cache.get("a", called_off)) for _ in range(3)]
    errors = await asyncio.gather(*waiting, return_exceptions=True)
    assert [type(error) for error in errors] == [TransientError] * 3
    assert (await cache.get("a", making("a"))).receipt.uuid == "a"
