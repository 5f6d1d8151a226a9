"""Serve's side of routing by shape, on Serve's own router classes. Needs no Ray running."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from ray.serve._private.common import (
    DeploymentHandleSource,
    DeploymentID,
    ReplicaID,
    RequestMetadata,
)
from ray.serve.request_router import PendingRequest

from deployments.shape_router import ShapeRouter

DEPLOYMENT = DeploymentID("VisionEncoder", "app")


class FakeReplica:
    """A running replica as a router sees it; answers probes at once with its queue length."""

    def __init__(self, name: str, room: int = 100, **stats: Any) -> None:
        self.replica_id = ReplicaID(name, DEPLOYMENT)
        self.routing_stats = stats
        self.max_ongoing_requests = room
        self.multiplexed_model_ids: set[str] = set()
        self.node_id = "node"
        self.availability_zone = None
        self.queue_len = 0

    async def get_queue_len(self, *, deadline_s: float) -> int:
        return self.queue_len


def router(*replicas: FakeReplica, **kwargs: Any) -> ShapeRouter:
    made = ShapeRouter(
        deployment_id=DEPLOYMENT,
        handle_source=DeploymentHandleSource.REPLICA,
        use_replica_queue_len_cache=True,
        initial_backoff_s=0.001,
        max_backoff_s=0.002,
    )
    made.initialize_state(**kwargs)
    made.update_replicas(list(replicas))
    return made


@pytest.fixture(autouse=True)
async def finished() -> AsyncIterator[None]:
    """Ends the router's own tasks, so that none outlives its test."""
    yield
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        task.cancel()


def request(shape_key: str | None = None, request_id: str = "same", **kwargs: Any) -> PendingRequest:
    if shape_key is not None:
        kwargs["shape_key"] = shape_key
    return PendingRequest(args=[], kwargs=kwargs, metadata=RequestMetadata(request_id, request_id))


async def names(made: ShapeRouter, pending: PendingRequest | None) -> list[list[str]]:
    ranks = await made.choose_replicas(list(made.curr_replicas.values()), pending)
    return [[replica.replica_id.unique_id for replica in rank] for rank in ranks]


async def test_it_ranks_by_what_replicas_report() -> None:
    """Captured keys, free slots and states come from routing stats, the key from the call."""
    made = router(
        FakeReplica("holder", captured=["k"], free_slots=0, state="ready"),
        FakeReplica("full", captured=["x"], free_slots=0, state="ready"),
        FakeReplica("failed", captured=["k"], free_slots=0, state="failed"),
        FakeReplica("disabled", captured=["k"], free_slots=0, graphs_enabled=False),
    )
    assert await names(made, request("k")) == [["holder"], ["full", "disabled"]]
    assert await names(made, request("k", avoid=["holder"])) == [["full", "disabled"], ["holder"]]
    for without_key in (request(), request("unknown"), None):
        assert await names(made, without_key) == [["holder", "full", "disabled"]]


async def test_a_replica_without_report_may_be_a_home() -> None:
    """Before the first report every slot counts as free, so that first requests do not scatter."""
    made = router(FakeReplica("a"), FakeReplica("b"))
    first = (await names(made, request("k")))[0]
    assert len(first) == 1
    assert (await names(made, request("k")))[0] == first
    assert await names(router(FakeReplica("a"), FakeReplica("b"), max_graphs=0), request("k")) == [["a", "b"]]


async def test_the_routers_own_queue_length_counts_before_the_reported_one() -> None:
    """A queue length known by the router is newer than a report; the report serves where none is known."""
    made = router(FakeReplica("a", captured=["k"], queued=9), FakeReplica("b", free_slots=0, queued=0))
    made.replica_queue_len_cache.invalidate_key(ReplicaID("a", DEPLOYMENT))
    made.replica_queue_len_cache.invalidate_key(ReplicaID("b", DEPLOYMENT))
    assert await names(made, request("k")) == [["b"], ["a"]]
    made.on_new_queue_len_info(ReplicaID("a", DEPLOYMENT), 1)
    assert (await names(made, request("k")))[0] == ["a"]


async def test_requests_at_once_each_get_the_replica_of_their_own_shape() -> None:
    """Calls of one HTTP request share its id and run at once; still none is given another's replica,
    and none is lost.
    """
    replicas = [FakeReplica(f"r{i}", captured=[f"k{i}"], free_slots=0) for i in range(4)]
    made = router(*replicas, bound=50)
    pending = [request(f"k{n % 4}") for n in range(40)]
    chosen = await asyncio.wait_for(
        asyncio.gather(*(made._choose_replica_for_request(p) for p in pending)), timeout=10
    )
    assert [replica.replica_id.unique_id for replica in chosen] == [f"r{n % 4}" for n in range(40)]


async def test_it_lets_the_loop_run_while_nobody_can_take_the_request() -> None:
    """With every replica failed a request waits without blocking the process, and goes on when one comes."""
    made = router(FakeReplica("a", state="failed"))
    waiting = asyncio.ensure_future(made._choose_replica_for_request(request("k")))
    for _ in range(20):
        await asyncio.sleep(0.001)
    assert not waiting.done()
    made.update_replicas([FakeReplica("b", state="ready")])
    chosen = await asyncio.wait_for(waiting, timeout=5)
    assert chosen.replica_id.unique_id == "b"


async def test_a_full_holder_is_passed_over() -> None:
    """When the holder takes no more requests the next rank gets the call."""
    holder = FakeReplica("holder", room=1, captured=["k"], free_slots=0)
    holder.queue_len = 1
    made = router(holder, FakeReplica("other", free_slots=0))
    made.on_new_queue_len_info(holder.replica_id, 1)
    chosen = await asyncio.wait_for(made._choose_replica_for_request(request("k")), timeout=5)
    assert chosen.replica_id.unique_id == "other"


def test_bounds_that_make_no_sense_are_errors() -> None:
    """A negative bound is refused when the router starts."""
    with pytest.raises(ValueError):
        ShapeRouter.initialize_state(SimpleNamespace(), bound=-1)  # type: ignore[arg-type]


def test_serve_can_carry_it_by_name() -> None:
    """The path in the documentation is one that Serve accepts."""
    from ray.serve.config import RequestRouterConfig

    config = RequestRouterConfig(
        request_router_class="deployments.shape_router:ShapeRouter", request_router_kwargs={"bound": 2}
    )
    assert config.get_request_router_class().__name__ == "ShapeRouter"
