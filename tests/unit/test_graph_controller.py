"""The controller's loop with scripted deployments: collect, decide, enact, and answer in between."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from deployments import graph_controller
from deployments.graph_controller import ControllerOptions, GraphController
from policies.recycling import RecyclingPolicy
from policies.stats import GraphStats, ReplicaReport
from tests.fakes import HANG

ControllerClass = GraphController.func_or_class  # type: ignore[attr-defined]


def report(replica_id: str, state: str = "ready", **values: Any) -> ReplicaReport:
    deployment, encoder = values.pop("of", ("VisionEncoder", "vision"))
    defaults = {"device": "cpu", "node_id": "n1", "graphs_enabled": True, "taken_at_s": 1.0}
    return ReplicaReport(
        replica_id, f"start of {replica_id}", deployment, encoder, state=state, **{**defaults, **values}
    )


class Handles:
    """The deployments' handles: what each answers to a broadcast, and what was broadcast."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.orders: list[tuple[str, str]] = []

    def get(self, deployment: str, app_name: str) -> Any:
        return SimpleNamespace(broadcast=lambda method, *args: self._broadcast(deployment, method, args))

    def _broadcast(self, deployment: str, method: str, args: tuple[Any, ...]) -> Any:
        if method == "leave_if_you_are":
            self.orders.append((deployment, args[0]))
            answer: Any = [True]
        else:
            answer = self.answers.get(deployment, [])

        async def results_async(**_: Any) -> Any:
            if answer is HANG:
                await asyncio.Event().wait()
            if isinstance(answer, Exception):
                raise answer
            return answer

        return SimpleNamespace(results_async=results_async)


@pytest.fixture
def handles(monkeypatch: pytest.MonkeyPatch) -> Handles:
    found = Handles()
    monkeypatch.setattr(graph_controller.serve, "get_deployment_handle", found.get)
    monkeypatch.setattr(
        graph_controller.serve, "get_replica_context", lambda: SimpleNamespace(app_name="app")
    )
    return found


def controller(alive: set[str] | None = None) -> Any:
    options = ControllerOptions(
        {"VisionEncoder": ("vision", "calls"), "AudioEncoder": ("audio", "calls")},
        {"VisionEncoder": 2, "AudioEncoder": 2},
        policy=RecyclingPolicy(),
    )
    one = ControllerClass(options)
    one._alive = lambda: alive
    return one


async def until(condition: Callable[[], Any]) -> None:
    async def poll() -> None:
        while not condition():
            await asyncio.sleep(0.005)

    await asyncio.wait_for(poll(), 5)


async def test_reports_are_added_up_and_the_gone_keep_counting(handles: Handles) -> None:
    """Totals cover all encoders, and a replica that is gone leaves its counts behind."""
    one = controller({"v1", "v2", "a1"})
    sound = report("a1", of=("AudioEncoder", "audio"), stats=GraphStats(graph_hits=5))
    pictures = [report(f"v{n}", stats=GraphStats(graph_hits=n, graph_misses=1)) for n in (1, 2)]
    handles.answers = {"VisionEncoder": [*pictures, ValueError("v3 is busy")], "AudioEncoder": [sound]}
    await one.step()
    assert (await one.cluster_report())["totals"]["vision"]["graph_hits"] == 3
    handles.answers["VisionEncoder"] = pictures[:1]
    one._alive = lambda: {"v1", "a1"}
    await one.step()
    shown = await one.cluster_report()
    assert shown["totals"]["vision"]["graph_hits"] == 3
    assert shown["totals"]["audio"]["graph_hits"] == 5
    assert [r["replica_id"] for r in shown["replicas"]] == ["a1", "v1"]


@pytest.mark.parametrize("silence", [RuntimeError("no running replica"), []])
async def test_a_deployment_that_does_not_answer_spoils_no_pass(handles: Handles, silence: Any) -> None:
    """The others are still seen, and a failed one among them is still told to leave."""
    handles.answers = {"AudioEncoder": silence, "Decoder": silence, "VisionEncoder": [report("v1", "failed")]}
    await controller().step()
    assert handles.orders == [("VisionEncoder", "v1")]


async def test_a_failed_replica_is_answered_at_once_and_told_to_leave(handles: Handles) -> None:
    """The answer waits for nothing, and the order waits for no deployment that is silent.

    Also from a controller that has just been restarted and knows nobody yet.
    """
    handles.answers = dict.fromkeys(("VisionEncoder", "AudioEncoder", "Decoder"), HANG)
    one = controller()
    await asyncio.wait_for(one.replica_failed(report("v1", "failed", failure="capture")), 0.5)
    await until(lambda: handles.orders)
    assert handles.orders == [("VisionEncoder", "v1")]
    recycles = (await one.cluster_report())["recycles"]
    assert [r["replica_id"] for r in recycles] == ["v1"]


async def test_an_order_is_given_once(handles: Handles) -> None:
    """A replica that still reports itself failed is not recycled a second time."""
    one = controller()
    handles.answers = {"VisionEncoder": [report("v1", "failed")]}
    await one.replica_failed(report("v1", "failed"))
    for _ in range(3):
        await one.step()
    await until(lambda: not one._tasks)
    assert handles.orders == [("VisionEncoder", "v1")]


async def test_recycling_by_hand(handles: Handles) -> None:
    """A known replica goes, an unknown id is said to be one."""
    one = controller({"v1"})
    handles.answers = {"VisionEncoder": [report("v1")]}
    await one.step()
    assert (await one.request_recycle("v9", "why"))["status"] == "unknown"
    assert (await one.request_recycle("v1", "why"))["status"] == "recycling"
    assert handles.orders == [("VisionEncoder", "v1")]


async def test_orders_for_a_start_name_the_most_used_shapes(handles: Handles) -> None:
    """A replacement is warmed for what its deployment is asked for, within its share of the slots."""
    one = controller({"v1"})
    calls = (("4x4", 9), ("2x2", 3), ("8x8", 5), ("unknown", 99))
    handles.answers = {"VisionEncoder": [report("v1", calls_by_media_key=calls)]}
    await one.step()
    assert await one.start_orders("VisionEncoder") == {"graphs_enabled": True, "warm_keys": ["4x4", "8x8"]}


async def test_captures_that_fail_in_warm_up_turn_graphs_off(handles: Handles) -> None:
    """The next start of that deployment has no graphs, the other deployment's has."""
    one = controller()
    broken = report("v1", "failed", stats=GraphStats(capture_failures=1), warmup_failed=True)
    await one.replica_failed(broken)
    await until(lambda: not one._tasks)
    assert (await one.start_orders("VisionEncoder"))["graphs_enabled"] is False
    assert (await one.start_orders("AudioEncoder"))["graphs_enabled"] is True


async def test_one_bad_pass_does_not_end_supervision(
    handles: Handles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop outlives an exception, and its end would be told by the health check."""
    one = controller()
    passes: list[int] = []

    async def step() -> None:
        passes.append(1)
        raise ValueError("bad pass")

    monkeypatch.setattr(one, "step", step)
    monkeypatch.setattr(one, "options", SimpleNamespace(period_s=0.001))
    await one.check_health()
    await until(lambda: len(passes) > 2)
    await one.check_health()
    one._loop_task.cancel()
    await asyncio.gather(one._loop_task, return_exceptions=True)
    with pytest.raises((RuntimeError, asyncio.CancelledError)):
        await one.check_health()
