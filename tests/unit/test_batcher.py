"""The queue before the GPU thread, with a scripted engine."""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from deployments.encoders.batcher import COUNTED_KEYS, ONE_MORE_AFTER, Batcher
from deployments.families.base import EncoderInputs
from policies.batching import BatchingPolicy
from policies.stats import GraphStats

ANY_LENGTH = BatchingPolicy(8, 0.001, max_batch_s=60.0)  # however slow the machine is


class Engine:
    """Encodes at once, noting each batch; ``captured`` names grow when a lone item of a shape ran twice."""

    failure: str | None = None

    def __init__(self, gate: threading.Event | None = None) -> None:
        self.gate = gate
        self.warmed: list[str] = []
        self.batches: list[list[str]] = []
        self.captured: list[str] = []

    def captured_keys(self) -> tuple[str, ...]:
        return tuple(self.captured)

    def stats(self) -> GraphStats:
        """One call of each batch: by itself it is warmed up and then hits, in company it is not eligible."""
        lone = [batch[0] for batch in self.batches if len(batch) == 1]
        hits = sum(lone.count(key) - 1 for key in set(lone))
        warming, others = len(set(lone)), len(self.batches) - len(lone)
        return GraphStats(hits, warming + others, warmup_misses=warming, ineligible_misses=others)

    def encode(self, batch: list[EncoderInputs]) -> tuple[list[Any], bool]:
        if self.gate is not None:
            self.gate.wait(5)
        key = batch[0].shape_key
        self.batches.append([item.shape_key for item in batch])
        if len(batch) == 1 and self.batches.count([key]) == 2:
            self.captured.append(key)
        return [f"{key} {i}" for i, _ in enumerate(batch)], len(batch) == 1 and key in self.captured


def inputs(key: str) -> EncoderInputs:
    return EncoderInputs({}, key, 4, {})


async def run(engine: Engine, keys: list[str], **options: Any) -> Batcher:
    """Submit all keys at once behind a first item that holds the engine, and wait for all."""

    async def failed(error: BaseException) -> None:
        raise AssertionError(error)

    with ThreadPoolExecutor(1) as worker:
        batcher = Batcher(worker, engine, "r1", ANY_LENGTH, failed, **options)
        loop = asyncio.create_task(batcher.run())
        futures = [batcher.submit(inputs(key)) for key in keys]
        await asyncio.wait_for(asyncio.gather(*futures), 5)
        loop.cancel()
    return batcher


async def test_items_of_one_shape_run_together() -> None:
    """What waits of one exact shape is one batch; another shape is another batch."""
    engine = Engine()
    await run(engine, ["a", "a", "b", "a"])
    assert engine.batches == [["a", "a", "a"], ["b"]]


async def test_a_shape_that_may_get_a_graph_runs_alone_until_it_has_it() -> None:
    """A hot shape is captured even in a queue, and from then on batches form again."""
    engine = Engine()
    batcher = await run(engine, ["a"] * 6, graph_sizes=(1,), max_graphs=2)
    assert engine.batches == [["a"], ["a"], ["a", "a", "a", "a"]]
    assert list(batcher.captured_media) == ["a"]


class InGraphs(Engine):
    """Captures every size of ``sizes`` at its second batch, as long as there are slots."""

    def __init__(self, sizes: tuple[int, ...], slots: int) -> None:
        super().__init__()
        self.sizes, self.slots = sizes, slots
        self.counts = GraphStats()

    def captured_keys(self) -> tuple[str, ...]:
        return tuple(map(str, self.captured))

    def stats(self) -> GraphStats:
        return self.counts

    def encode(self, batch: list[EncoderInputs]) -> tuple[list[Any], bool]:
        self.batches.append([item.shape_key for item in batch])
        size, before = str(len(batch)), self.counts
        often = sum(len(ran) == len(batch) for ran in self.batches)
        if len(batch) in self.sizes and often == 2 and len(self.captured) < self.slots:
            self.captured.append(size)
        hit = size in self.captured
        misses = {"ineligible_misses": 1} if len(batch) not in self.sizes else {"warmup_misses": 1}
        changed = {"graph_hits": 1} if hit else {"graph_misses": 1, **misses}
        added = {name: getattr(before, name) + n for name, n in changed.items()}
        self.counts = replace(before, num_graphs=len(self.captured), **added)
        return list(batch), hit


async def test_with_graphs_of_several_sizes_batches_are_of_these() -> None:
    """Captured or not: seven that wait run as four, two and one, and no size stays without its graph."""
    engine = InGraphs((1, 2, 4), slots=8)
    batcher = await run(engine, ["a"] * 21, graph_sizes=(1, 2, 4), max_graphs=8)
    assert [len(batch) for batch in engine.batches] == [4] * 5 + [1]
    batcher = await run(engine, ["a"] * 7, graph_sizes=(1, 2, 4), max_graphs=8)
    assert [len(batch) for batch in engine.batches[6:]] == [4, 2, 1]
    batcher = await run(engine, ["a"] * 7, graph_sizes=(1, 2, 4), max_graphs=8)
    assert batcher.hit_sizes == {"a": {4, 2, 1}}
    assert sorted(engine.captured) == ["1", "2", "4"]


async def test_without_a_free_slot_batches_are_of_the_sizes_that_have_graphs() -> None:
    """Another size would run eagerly for ever, and a shape without any graph runs as it comes."""
    engine = InGraphs((1, 2, 4), slots=1)
    batcher = await run(engine, ["a", "a", "a"] * 4, graph_sizes=(1, 2), max_graphs=1)
    assert [len(batch) for batch in engine.batches] == [2] * 6
    engine.batches.clear()
    batcher = await run(engine, ["b", "b", "b"], graph_sizes=(1, 2), max_graphs=1)
    assert [len(batch) for batch in engine.batches] == [3]
    assert batcher.captured_media == {}


async def test_without_a_free_slot_a_graph_of_one_item_makes_no_queue_run_one_by_one() -> None:
    """A shape with the smallest graph alone is replayed by itself and runs in whatever batch has formed."""
    engine = InGraphs((1, 2, 4), slots=1)
    engine.captured = ["1"]
    batcher = Batcher(None, engine, "r1", ANY_LENGTH, None, (1, 2, 4), 1)  # type: ignore[arg-type]
    batcher.count("a", 1, hit=True)
    assert batcher._sizes("a") == {}
    batcher.count("a", 2, hit=True)
    assert batcher._sizes("a") == {"a": [1, 2]}
    batcher.item_s["a"] = 0.999 * ANY_LENGTH.max_batch_s
    assert batcher._sizes("a") == {}


@pytest.mark.parametrize("graph_sizes", [(), (1,), (2,)])
async def test_hits_of_some_sizes_keep_no_shape_to_them(graph_sizes: tuple[int, ...]) -> None:
    """Budgets hold whatever comes, and a graph of one size alone is no reason for smaller batches."""
    engine = InGraphs((1, 2, 3, 4, 5, 6, 7, 8), slots=0)
    batcher = Batcher(None, engine, "r1", ANY_LENGTH, None, graph_sizes, 0)  # type: ignore[arg-type]
    batcher.count("a", 1, hit=True)
    batcher.count("a", 2, hit=True)
    assert batcher._sizes("a") == {}


def test_sizes_beyond_the_largest_batch_make_no_queue_run_one_by_one() -> None:
    """Graphs of 1 and 10 where eight may run together: a captured shape runs in whatever batch has formed."""
    batcher = Batcher(None, InGraphs((), 0), "r1", ANY_LENGTH, None, (1, 10), 4)  # type: ignore[arg-type]
    assert batcher._sizes("a") == {"a": [1]}
    batcher.count("a", 1, hit=True)
    assert batcher._sizes("a") == {}


async def test_a_size_without_memory_for_its_graph_is_preferred_once() -> None:
    """After that the sizes below it are, which have graphs or may get them."""

    class NoMemory(InGraphs):
        def encode(self, batch: list[EncoderInputs]) -> tuple[list[Any], bool]:
            if len(batch) < 4:
                return super().encode(batch)
            self.batches.append([item.shape_key for item in batch])
            misses, without = self.counts.graph_misses + 1, self.counts.memory_misses + 1
            self.counts = replace(self.counts, graph_misses=misses, memory_misses=without)
            return list(batch), False

    engine = NoMemory((1, 2, 4, 8), slots=8)
    await run(engine, ["a"] * 14, graph_sizes=(1, 2, 4, 8), max_graphs=8)
    assert [len(batch) for batch in engine.batches] == [8, 4, 2]
    batcher = await run(engine, ["a"] * 13, graph_sizes=(1, 2, 4, 8), max_graphs=8)
    assert [len(batch) for batch in engine.batches[3:]] == [8, 4, 1]
    assert batcher.ineligible == {"a": 4}


async def test_a_shape_keeps_to_the_sizes_that_graphs_are_for() -> None:
    """Of items with two slices each, two are four slices, and four are more than any graph is for."""

    class OfTwoSlices(InGraphs):
        def encode(self, batch: list[EncoderInputs]) -> tuple[list[Any], bool]:
            hit = super().encode([item for item in batch for _ in range(2)])[1]
            return list(batch), hit

    engine = OfTwoSlices((1, 2, 4), slots=8)
    batcher = await run(engine, ["a"] * 13, graph_sizes=(1, 2, 4), max_graphs=8)
    assert [len(batch) // 2 for batch in engine.batches] == [4, 2, 2, 2, 2, 1]
    assert batcher.ineligible == {"a": 4}
    assert batcher.hit_sizes == {"a": {2}}


async def test_what_a_capture_takes_says_nothing_of_later_batches() -> None:
    """A batch that captured is no measure of what its items take."""

    class SlowCapture(InGraphs):
        def encode(self, batch: list[EncoderInputs]) -> tuple[list[Any], bool]:
            done = super().encode(batch)
            if len(self.batches) == 2:
                time.sleep(0.3)
            return done

    engine = SlowCapture((1,), slots=2)
    batcher = await run(engine, ["a"] * 2, graph_sizes=(1,), max_graphs=2)
    assert engine.captured == ["1"]
    assert batcher.item_s["a"] < 0.2


async def test_a_shape_that_no_graph_is_for_runs_in_batches() -> None:
    """After one lone run that no graph is for, as of a picture of many slices, batches form again."""

    class NoGraphs(Engine):
        def stats(self) -> GraphStats:
            return GraphStats(0, len(self.batches), ineligible_misses=len(self.batches))

    engine = NoGraphs()
    batcher = await run(engine, ["a"] * 6, graph_sizes=(1,), max_graphs=2)
    assert engine.batches == [["a"], ["a"] * 5]
    assert list(batcher.ineligible) == ["a"]


async def test_without_a_free_slot_no_shape_runs_alone() -> None:
    """When no graph can be captured any more, batches are as large as the queue gives."""
    engine = Engine()
    engine.captured = ["x"]
    await run(engine, ["a"] * 4, graph_sizes=(1,), max_graphs=1)
    assert engine.batches == [["a"] * 4]


async def test_shapes_that_fill_the_device_run_alone() -> None:
    """Once known, a shape of which several take longer than a batch may runs in shorter batches."""

    class Slow(Engine):
        def encode(self, batch: list[EncoderInputs]) -> tuple[list[Any], bool]:
            time.sleep(0.02 * len(batch))
            return super().encode(batch)

    engine = Slow()
    with ThreadPoolExecutor(1) as worker:
        policy = BatchingPolicy(8, 0.0, max_batch_s=0.03)
        batcher = Batcher(worker, engine, "r1", policy, None)  # type: ignore[arg-type]
        loop = asyncio.create_task(batcher.run())
        for many in (3, 3):
            await asyncio.gather(*[batcher.submit(inputs("a")) for _ in range(many)])
        loop.cancel()
    assert engine.batches == [["a", "a", "a"], ["a"], ["a"], ["a"]]


def test_one_slow_batch_is_soon_forgotten() -> None:
    """What an item takes follows the last few batches, of as many shapes as are counted."""
    batcher = Batcher(None, Engine(), "r1", BatchingPolicy(), None)  # type: ignore[arg-type]
    batcher._learn("a", 1.0, 1)
    assert batcher.policy.limit(batcher.item_s["a"]) == 1
    for _ in range(10):
        batcher._learn("a", 0.001, 1)
    assert batcher.policy.limit(batcher.item_s["a"]) == batcher.policy.max_batch_size
    for number in range(1000):
        batcher._learn(f"rare {number}", 1.0, 1)
    assert len(batcher.item_s) == len(batcher.same_size) == COUNTED_KEYS


def sizes_of(batch_s: Callable[[int], float], runs: int) -> list[int]:
    """How many of a shape run together, one batch after another, where it came alone at first."""
    batcher = Batcher(None, Engine(), "r1", BatchingPolicy(), None)  # type: ignore[arg-type]
    sizes = [1]
    for _ in range(runs):
        batcher._learn("a", batch_s(sizes[-1]), sizes[-1])
        sizes.append(batcher.policy.limit(batcher.item_s["a"]))
    return sizes


def test_a_shape_that_is_slow_alone_only_is_found_out() -> None:
    """Where a batch takes 20 ms however many run, eight run together before long; where each takes 20 ms
    more, they run one by one but for a pair now and then.
    """
    assert sizes_of(lambda items: 0.02, 10 * ONE_MORE_AFTER)[-10:] == [8] * 10
    each = sizes_of(lambda items: 0.02 * items, 10 * ONE_MORE_AFTER)
    assert set(each) == {1, 2}
    assert 5 <= each.count(2) <= 10


def test_where_graphs_are_for_several_sizes_the_next_of_these_is_tried() -> None:
    """One item more would be no batch that a graph is for."""
    batcher = Batcher(None, Engine(), "r1", BatchingPolicy(), None, (1, 2, 4, 8), 8)  # type: ignore[arg-type]
    for _ in range(ONE_MORE_AFTER):
        assert batcher.policy.limit(batcher.item_s.get("a", 0.02)) < 4
        batcher._learn("a", 0.021, 2)
    assert batcher.policy.limit(batcher.item_s["a"]) == 4


async def test_counted_keys_stay_bounded() -> None:
    """A thousand shapes leave a bounded count, and the most used ones stay in it."""
    batcher = Batcher(None, Engine(), "r1", BatchingPolicy(), None)  # type: ignore[arg-type]
    for number in range(1000):
        batcher.count(f"rare {number}", 1, hit=False)
        batcher.count("hot", 1, hit=False)
    assert len(batcher.media_keys) <= 2 * COUNTED_KEYS
    assert batcher.media_keys["hot"] == 1000


async def test_a_cancelled_item_is_not_encoded() -> None:
    """Whoever went away while waiting costs no work."""
    gate = threading.Event()
    engine = Engine(gate)
    with ThreadPoolExecutor(1) as worker:
        batcher = Batcher(worker, engine, "r1", ANY_LENGTH, None)  # type: ignore[arg-type]
        loop = asyncio.create_task(batcher.run())
        first = batcher.submit(inputs("a"))
        while batcher.running_since_s is None:
            await asyncio.sleep(0.001)
        gone, stays = batcher.submit(inputs("b")), batcher.submit(inputs("c"))
        gone.cancel()
        gate.set()
        await asyncio.wait_for(asyncio.gather(first, stays), 5)
        loop.cancel()
    assert engine.batches == [["a"], ["c"]]
    with pytest.raises(asyncio.CancelledError):
        await gone


async def test_hits_and_reasons_of_misses_are_told_apart() -> None:
    """Of each item it is known whether it ran in a graph and why not; hits are counted by media key."""
    engine = Engine()
    with ThreadPoolExecutor(1) as worker:
        batcher = Batcher(worker, engine, "r1", ANY_LENGTH, None)  # type: ignore[arg-type]
        loop = asyncio.create_task(batcher.run())
        alone = [await batcher.submit(inputs("a")) for _ in range(3)]
        together = await asyncio.gather(*[batcher.submit(inputs("a")) for _ in range(2)])
        loop.cancel()
    assert [(done.hit, done.miss_reason) for done in alone] == [(False, "warmup"), (True, ""), (True, "")]
    assert [(done.hit, done.miss_reason) for done in together] == [(False, "ineligible")] * 2
    assert (batcher.media_keys["a"], batcher.media_hits["a"]) == (5, 2)
