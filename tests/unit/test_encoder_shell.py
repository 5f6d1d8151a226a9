"""An encoder replica without Serve, GPU or processes: its states, its batches, its failures, its end."""

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from deployments.encoders.options import EncoderOptions
from deployments.encoders.preprocess_pool import PoolOptions
from deployments.encoders.shell import EncoderShell
from deployments.errors import ClientError, TerminalError, TransientError
from deployments.messages import EncodedMedia, EncodeReceipt, MediaItem
from deployments.serve_view import ReplicaPlace
from deployments.upstream.encoder_model import EncoderModelSpec
from policies.graph_options import GraphOptions
from policies.limits import MediaLimits
from tests.fakes import HANG, FakeController, FakeEngine, FakeFamily, FakeMethod, FakePool, embedding_of


class Shell(EncoderShell):
    """The real shell in this process; leaving is noted instead of done."""

    encoder = "vision"
    left: str | None = None

    def leave(self, reason: str) -> None:
        self.left = self.left or reason


def shell(
    engine: FakeEngine | None = None,
    *,
    pool: FakePool | None = None,
    controller: FakeController | None = None,
    **options: Any,
) -> Shell:
    values = {
        "stuck_after_s": 5.0,
        "controller_timeout_s": 0.2,
        "max_batch_size": 4,
        "max_batch_s": 60.0,
        **options,
    }
    return Shell(
        EncoderOptions(
            EncoderModelSpec("model", "image", "float32"),
            PoolOptions(1, 1.0, MediaLimits()),
            values.pop("graphs", GraphOptions()),
            **values,
        ),
        FakeFamily(),
        controller,
        place=ReplicaPlace("r1", "VisionEncoder", "n1"),
        pool=pool or FakePool(),  # type: ignore[arg-type]
        make_engine=(engine or FakeEngine()).made,
    )


async def ready(engine: FakeEngine | None = None, **options: Any) -> Shell:
    replica = shell(engine, **options)
    await replica.check_health()
    return replica


def item(content: str = "4x4:cat") -> MediaItem:
    return MediaItem(content.encode(), content.partition(":")[0], f"uuid of {content}")


async def encode(replica: Shell, content: str = "4x4:cat") -> list[Any]:
    return [piece async for piece in replica.encode(item(content))]


async def until(condition: Callable[[], Any], timeout_s: float = 5) -> None:
    async def poll() -> None:
        while not condition():
            await asyncio.sleep(0.005)

    await asyncio.wait_for(poll(), timeout_s)


async def queued(replica: Shell, engine: FakeEngine, contents: list[str]) -> "list[asyncio.Task[list[Any]]]":
    """Encodes of which the first is held at the engine's gate and the others wait, in this order."""
    jobs = [asyncio.create_task(encode(replica, contents[0]))]
    await until(lambda: engine.batches)
    for content in contents[1:]:
        jobs.append(asyncio.create_task(encode(replica, content)))
        await until(lambda: len(replica.batches.queue) == len(jobs) - 1)
    return jobs


def states(replica: Shell) -> list[str]:
    return ["starting", *(move.target.value for move in replica.life.history)]


# ---- starting ----


async def test_a_replica_is_ready_after_loading_and_warming() -> None:
    """Serve's first health check returns only when the ordered shapes are warm."""
    engine, controller = FakeEngine(), FakeController()
    controller.start_orders = FakeMethod({"graphs_enabled": True, "warm_keys": ["4x4", "2x2"]})
    replica = await ready(engine, controller=controller)
    assert states(replica) == ["starting", "warming", "ready"]
    assert engine.asked == ["4x4", "2x2"]
    assert controller.start_orders.calls == [("VisionEncoder",)]
    assert replica.record_routing_stats()["captured"] == ["4x4", "2x2"]
    report = replica.graph_report()
    assert (report.state, report.modules_loaded, report.failure) == ("ready", ("eye",), None)
    assert report.preprocessing == "checkpoint"


@pytest.mark.parametrize(("ordered", "configured"), [(False, True), (True, False), (False, False)])
async def test_graphs_are_on_only_if_both_say_so(ordered: bool, configured: bool) -> None:
    """The controller can turn graphs off, and cannot turn on what the config turned off."""
    engine, controller = FakeEngine(), FakeController()
    controller.start_orders = FakeMethod({"graphs_enabled": ordered, "warm_keys": []})
    replica = await ready(engine, controller=controller, graphs=GraphOptions(enabled=configured))
    assert engine.graphs_enabled is False
    assert replica.record_routing_stats()["free_slots"] == 0


@pytest.mark.parametrize("answer", [HANG, RuntimeError("no controller")])
async def test_a_silent_controller_keeps_no_encoder_from_starting(answer: Any) -> None:
    """Without orders a replica starts with the defaults."""
    engine = FakeEngine()
    replica = await ready(engine, controller=FakeController(start_orders=FakeMethod(answer)))
    assert states(replica)[-1] == "ready"
    assert engine.graphs_enabled is True


@pytest.mark.parametrize(
    ("engine", "pool"),
    [
        (FakeEngine(load_error=ValueError("no weights")), FakePool()),
        (FakeEngine(), FakePool(warm_error=ValueError("no processor"))),
    ],
    ids=["load", "workers"],
)
async def test_a_start_that_fails_is_told_and_raised(engine: FakeEngine, pool: FakePool) -> None:
    """Serve sees the failed start, the controller hears why, and no work is taken."""
    controller = FakeController()
    replica = shell(engine, pool=pool, controller=controller)
    with pytest.raises(ValueError, match="no "):
        await replica.check_health()
    assert states(replica) == ["starting", "warming", "failed"]
    (report,) = controller.replica_failed.calls[0]
    assert report.state == "failed"
    assert report.warmup_failed
    assert "no " in report.failure
    with pytest.raises(TerminalError):
        await encode(replica)


async def test_a_capture_that_fails_in_warm_up_is_reported_as_one() -> None:
    """The controller can tell a capture failure in warm-up, which turns graphs off for the next start."""
    controller = FakeController()
    controller.start_orders = FakeMethod({"graphs_enabled": True, "warm_keys": ["4x4"]})
    replica = shell(FakeEngine(fail_capture=True), controller=controller)
    with pytest.raises(RuntimeError, match="scripted capture failure"):
        await replica.check_health()
    (report,) = controller.replica_failed.calls[0]
    assert (report.warmup_failed, report.stats.capture_failures) == (True, 1)


async def test_no_work_before_ready() -> None:
    """A replica that still starts refuses in a way that may be tried again."""
    with pytest.raises(TransientError, match="starting"):
        await encode(shell())


# ---- work ----


async def test_an_encode_gives_a_receipt_and_the_embedding() -> None:
    """The receipt says what the embedding is, and the embedding is that of this item."""
    replica = await ready()
    receipt, message = await encode(replica, "4x4:cat")
    assert isinstance(receipt, EncodeReceipt)
    assert isinstance(message, EncodedMedia)
    assert (message.data == embedding_of(b"4x4:cat").numpy()).all()
    assert (receipt.tokens, receipt.bytes, receipt.outcome) == (2, message.data.nbytes, "hit")
    assert (receipt.replica_id, receipt.shape_key, receipt.uuid) == ("r1", "4x4", message.uuid)
    assert message.metadata["tokens"] == [2]


async def test_batches_hold_one_exact_shape_and_everybody_gets_their_own() -> None:
    """Work that piles up is batched by shape, never across, within the limit; no answer is mixed up."""
    gate = threading.Event()
    engine = FakeEngine(gate=gate)
    replica = await ready(engine, max_batch_size=4)
    contents = [f"{shape}:{n}" for n in range(6) for shape in ("4x4", "2x2", "8x8")]
    jobs = await queued(replica, engine, contents)
    assert replica.record_autoscaling_stats()["pending_items"] == len(contents)
    gate.set()
    results = await asyncio.gather(*jobs)
    for content, (receipt, message) in zip(contents, results, strict=True):
        assert (message.data == embedding_of(content.encode()).numpy()).all()
        assert receipt.shape_key == content.partition(":")[0]
    shapes = [{i.shape_key for i in batch} for batch in engine.batches]
    assert all(len(found) == 1 for found in shapes)
    sizes = [len(batch) for batch in engine.batches]
    assert max(sizes) == 4
    assert sum(sizes) == len(contents)
    assert len(engine.threads) == 1, "more than one thread touched the device"
    assert dict(replica.graph_report().calls_by_media_key) == {"4x4": 6, "2x2": 6, "8x8": 6}


async def test_the_queue_is_told_in_seconds_of_the_replicas_own_pace() -> None:
    """What waits, prepared or not, is turned into seconds by what finished items took; idle is zero."""
    gate = threading.Event()
    gate.set()
    engine = FakeEngine(gate=gate)
    replica = await ready(engine)
    assert replica.record_autoscaling_stats()["queued_s"] == 0.0
    for number in range(4):
        await encode(replica, f"4x4:{number}")
    idle = replica.record_autoscaling_stats()
    assert idle["seconds_per_token"] == pytest.approx(0.125, rel=0.05)  # the fake spends 0.25 s on 2 tokens
    assert (idle["pending_items"], idle["queued_tokens"], idle["queued_s"]) == (0.0, 0.0, 0.0)
    gate.clear()
    jobs = await queued(replica, engine, [f"2x2:{number}" for number in range(5)])
    busy = replica.record_autoscaling_stats()
    assert (busy["pending_items"], busy["queued_tokens"]) == (5.0, pytest.approx(10.0))
    assert busy["queued_s"] == pytest.approx(1.25, rel=0.05)
    gate.set()
    await asyncio.gather(*jobs)
    assert replica.record_autoscaling_stats()["queued_s"] == 0.0


async def test_the_oldest_item_is_served_first() -> None:
    """A shape in demand cannot starve another one."""
    gate = threading.Event()
    engine = FakeEngine(gate=gate)
    replica = await ready(engine, max_batch_size=2)
    jobs = await queued(replica, engine, ["a:0", "a:1", "b:1", "a:2", "a:3", "b:2"])
    gate.set()
    await asyncio.gather(*jobs)
    assert [batch[0].shape_key for batch in engine.batches] == ["a", "a", "b", "a"]
    assert [len(batch) for batch in engine.batches] == [1, 2, 2, 1]


async def test_who_left_is_not_encoded() -> None:
    """A request that was cancelled while it waited costs the GPU nothing."""
    gate = threading.Event()
    engine = FakeEngine(gate=gate)
    replica = await ready(engine)
    first, leaves, stays = await queued(replica, engine, ["4x4:first", "4x4:leaves", "4x4:stays"])
    leaves.cancel()
    await asyncio.gather(leaves, return_exceptions=True)
    gate.set()
    await asyncio.gather(first, stays)
    assert [len(batch) for batch in engine.batches] == [1, 1]
    await until(lambda: replica.work.pending == 0)


async def test_bad_media_is_an_answer() -> None:
    """A client's fault is returned, for raising it would make Serve log a stack trace, and work goes on."""
    replica = await ready(pool=FakePool(ClientError("bad", code="media_invalid")))
    (answer,) = await encode(replica)
    assert isinstance(answer, ClientError)
    assert len(await encode(replica)) == 2
    assert (replica.work.pending, replica.work.idle.is_set()) == (0, True)


# ---- failures ----


async def test_a_batch_that_fails_in_passing_fails_its_items_alone() -> None:
    """A passing error is for another try; the replica stays ready and healthy."""
    controller = FakeController()
    replica = await ready(FakeEngine(MemoryError("no room")), controller=controller)
    with pytest.raises(TransientError, match="no room") as caught:
        await encode(replica)
    assert caught.value.replica_id == "r1"
    await replica.check_health()
    assert len(await encode(replica)) == 2
    assert controller.replica_failed.calls == []


async def test_what_goes_wrong_is_logged_with_its_request(caplog: pytest.LogCaptureFixture) -> None:
    """A refused medium with its decoder's words, which no client sees; a failed batch with its requests."""
    pool = FakePool(None, ClientError("is bad", detail="zlib says no"))
    replica = await ready(FakeEngine(RuntimeError("scripted")), pool=pool)
    log = logging.getLogger("ray.serve")
    log.addHandler(caplog.handler)
    caplog.set_level(logging.INFO, "ray.serve")
    try:
        asked = replace(item(), request_id="trace-1")
        with pytest.raises(TransientError):
            _ = [piece async for piece in replica.encode(asked)]
        (refusal,) = [piece async for piece in replica.encode(asked)]
    finally:
        log.removeHandler(caplog.handler)
    assert refusal.message == "is bad"
    failed = next(r for r in caplog.records if "a batch of 1 items" in r.getMessage())
    assert failed.request_ids == ["trace-1"]
    assert "trace-1" in failed.getMessage()
    refused = next(r for r in caplog.records if "refused: is bad zlib says no" in r.getMessage())
    assert refused.request_id == "trace-1"


async def test_a_terminal_failure_refuses_what_waits_and_all_that_comes() -> None:
    """Items in the batch, in the queue and new ones get a terminal error at once; the controller hears."""
    gate = threading.Event()
    controller = FakeController()
    engine = FakeEngine(RuntimeError("CUDA error"), terminal=True, gate=gate)
    replica = await ready(engine, controller=controller)
    jobs = await queued(replica, engine, ["4x4:x", "2x2:x", "4x4:x"])
    gate.set()
    results = await asyncio.wait_for(asyncio.gather(*jobs, return_exceptions=True), 3)
    assert [type(r) for r in results] == [TerminalError] * 3
    with pytest.raises(TerminalError):
        await encode(replica)
    with pytest.raises(TerminalError):
        await replica.check_health()
    assert states(replica)[-1] == "failed"
    assert replica.record_routing_stats()["state"] == "failed"
    (report,) = controller.replica_failed.calls[0]
    assert (report.state, report.warmup_failed) == ("failed", False)
    assert "CUDA error" in report.failure
    assert replica.left is None, "the controller answered: it decides when"
    assert len(engine.batches) == 1


@pytest.mark.parametrize("answer", [HANG, RuntimeError("no such actor")])
async def test_a_failed_replica_leaves_by_itself_when_the_controller_is_silent(answer: Any) -> None:
    """Nobody has to be there for a broken replica to go."""
    engine = FakeEngine(RuntimeError("CUDA error"), terminal=True)
    replica = await ready(engine, controller=FakeController(replica_failed=FakeMethod(answer)))
    with pytest.raises(TerminalError):
        await encode(replica)
    await until(lambda: replica.left)


async def test_a_batch_with_too_few_embeddings_hangs_nobody() -> None:
    """An encoder that returns another number than it was given fails the batch, and the next one runs."""
    replica = await ready(FakeEngine(lambda batch: []))
    with pytest.raises(TransientError, match="0 embeddings of 1"):
        await asyncio.wait_for(encode(replica), 3)
    assert len(await encode(replica)) == 2


async def test_the_end_of_the_batch_loop_is_the_end_of_the_replica() -> None:
    """If the loop itself breaks, what waits is refused and the replica fails, instead of silence."""
    controller = FakeController()
    replica = await ready(controller=controller)
    replica.batches.count = lambda *_: 1 / 0  # type: ignore[assignment, return-value]
    first = asyncio.create_task(encode(replica, "4x4:a"))
    await until(lambda: replica.life.state.value == "failed")
    assert controller.replica_failed.calls
    with pytest.raises(TerminalError):
        await encode(replica)
    with pytest.raises(TerminalError):
        await asyncio.wait_for(first, 3)


async def test_a_stuck_batch_is_told_by_health_and_report() -> None:
    """While the GPU thread hangs the report says for how long, and at twice the bound health fails."""
    engine = FakeEngine(HANG)
    replica = await ready(engine, stuck_after_s=0.1)
    job = asyncio.create_task(encode(replica))
    await until(lambda: replica.stuck)
    assert replica.graph_report().stalled_s > 0.1
    await until(lambda: replica.stalled_s > 0.2)
    with pytest.raises(TerminalError, match="has been running for"):
        await replica.check_health()
    engine.release.set()
    await job
    await replica.check_health()
    assert replica.graph_report().stalled_s == 0.0


# ---- leaving ----


async def test_a_recycled_replica_finishes_what_it_has_and_then_leaves() -> None:
    """From the order on new work is refused; work in hand, its answer included, comes first."""
    gate = threading.Event()
    replica = await ready(FakeEngine(gate=gate))
    job = asyncio.create_task(encode(replica))
    await until(lambda: replica.batches.running_since_s)
    assert await replica.leave_if_you_are("r1", "by hand") is True
    assert await replica.leave_if_you_are("r1", "again") is True
    await until(lambda: replica.life.state.value == "draining")
    with pytest.raises(TransientError, match="draining"):
        await encode(replica)
    await asyncio.sleep(1.2)
    assert replica.left is None
    gate.set()
    assert len(await job) == 2
    await until(lambda: replica.left)
    assert replica.left == "by hand"


async def test_an_answer_that_is_not_yet_taken_keeps_the_replica() -> None:
    """A replica is not idle between the receipt and the embedding."""
    replica = await ready()
    pieces = replica.encode(item())
    await anext(pieces)
    assert not replica.work.idle.is_set()
    assert [type(piece) async for piece in pieces] == [EncodedMedia]
    assert replica.work.idle.is_set()


async def test_draining_is_bounded() -> None:
    """Work that does not end keeps a replica no longer than ``drain_s``."""
    engine = FakeEngine(HANG)
    replica = await ready(engine, drain_s=0.1)
    job = asyncio.create_task(encode(replica))
    await until(lambda: replica.batches.running_since_s)
    await replica.leave_if_you_are("r1", "by hand")
    await until(lambda: replica.left, 4)
    engine.release.set()
    await job


@pytest.mark.parametrize("how", ["failed", "stuck"])
async def test_a_replica_that_can_finish_nothing_leaves_at_once(how: str) -> None:
    """A failed or stuck replica does not drain."""
    engine = FakeEngine(HANG) if how == "stuck" else FakeEngine(RuntimeError("CUDA error"), terminal=True)
    replica = await ready(engine, controller=FakeController(), stuck_after_s=0.05)
    job: Awaitable[Any] = asyncio.create_task(encode(replica))
    await until(lambda: replica.stuck or replica.failure)
    await replica.leave_if_you_are("r1", "ordered")
    await until(lambda: replica.left, 0.5)
    engine.release.set()
    await asyncio.gather(job, return_exceptions=True)


async def test_an_order_for_another_replica_changes_nothing() -> None:
    """The broadcast reaches all, and only the named one goes."""
    replica = await ready()
    assert await replica.leave_if_you_are("r2", "by hand") is False
    await asyncio.sleep(0.01)
    assert (replica.life.state.value, replica.left) == ("ready", None)
