"""Streams, pools and waits of the CUDA half, over a recorded stand-in for ``torch.cuda``."""

import contextlib
import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from deployments.graphs.cuda import CudaBackend


class Stream:
    """Notes what is asked of it, in one list for all streams."""

    def __init__(self, log: list[str], name: str) -> None:
        self.log = log
        self.name = name
        self.cuda_stream = name

    def synchronize(self) -> None:
        self.log.append(f"{self.name} finished")

    def wait_stream(self, other: "Stream") -> None:
        self.log.append(f"{self.name} waits for {other.name}")


class Manager:
    """Captures by noting the pool; breaks on demand."""

    def __init__(self, log: list[str], error: Exception | None = None) -> None:
        self.log = log
        self.error = error

    def capture(self, pool: Any) -> None:
        self.log.append(f"capture into {pool}")
        if self.error is not None:
            raise self.error


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    events: list[str] = []
    names, pools = iter("abcdef"), iter(range(100))
    current = [Stream(events, "replay")]

    @contextlib.contextmanager
    def use(stream: Stream) -> Iterator[None]:
        current.append(stream)
        events.append(f"on {stream.name}")
        try:
            yield
        finally:
            current.pop()
            events.append(f"back on {current[-1].name}")

    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: current[-1])
    monkeypatch.setattr(torch.cuda, "Stream", lambda device=None: Stream(events, next(names)))
    monkeypatch.setattr(torch.cuda, "stream", use)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: f"pool {next(pools)}")
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device=None: 1000)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: events.append("cache emptied"))
    return events


@pytest.mark.rule("A7")
def test_a_capture_waits_for_what_the_stream_has_under_way(log: list[str]) -> None:
    """Replays and clones have finished before the pool is used again, and replays wait for the capture."""
    CudaBackend("cuda:0").capture_all(Manager(log))
    assert log == [
        "replay finished",
        "a waits for replay",
        "on a",
        "capture into pool 0",
        "back on replay",
        "replay waits for a",
    ]


@pytest.mark.rule("A6")
@pytest.mark.parametrize(
    ("share", "pools"), [(True, ["pool 0"] * 3), (False, ["pool 0", "pool 1", "pool 2"])]
)
def test_pools_are_shared_or_apart(log: list[str], share: bool, pools: list[str]) -> None:
    """One pool and capture stream for all graphs of a replay stream, or each graph its own."""
    backend = CudaBackend("cuda:0", share)
    for _ in range(3):
        backend.capture_all(Manager(log))
    assert [line for line in log if line.startswith("capture")] == [f"capture into {p}" for p in pools]


@pytest.mark.rule("A6")
def test_replay_streams_and_encoders_stay_apart(log: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Another replay stream, or another adapter's backend, has another pool."""
    backend, other = CudaBackend("cuda:0"), CudaBackend("cuda:0")
    backend.capture_all(Manager(log))
    other.capture_all(Manager(log))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: Stream(log, "second"))
    backend.capture_all(Manager(log))
    captures = [line for line in log if line.startswith("capture")]
    assert captures == ["capture into pool 0", "capture into pool 1", "capture into pool 2"]


@pytest.mark.rule("A11")
def test_a_broken_capture_leaves_the_replay_stream_current(
    log: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Upstream's context does not restore it when a capture breaks; and what stays reserved is the loss."""
    backend = CudaBackend("cuda:0")
    with pytest.raises(ValueError, match="broken"):
        backend.capture_all(Manager(log, ValueError("broken")))
    assert log[-1] == "back on replay"
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device=None: 1234)
    assert backend.release_failed() == 234


@pytest.mark.rule("A11")
@pytest.mark.parametrize(
    ("error", "dead"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), False),
        (RuntimeError("CUDA error: device-side assert triggered"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling cublasGemmEx"), True),
        (RuntimeError("The size of tensor a (3) must match"), False),
        (ValueError("CUDA error: not from CUDA"), False),
    ],
)
def test_which_errors_mean_a_dead_context(error: Exception, dead: bool) -> None:
    """Running out of memory and bad shapes pass; what the device or its libraries report does not."""
    assert CudaBackend("cuda:0").is_device_error(error) is dead


@pytest.mark.rule("A9")
def test_facts_are_read_off_inputs_and_thread() -> None:
    """Devices of the tensors, grad mode and autocast, as they are."""
    backend = CudaBackend("cpu")
    x = torch.zeros(2)
    with torch.inference_mode():
        assert not backend.facts({"x": x, "mask": None}, 1).grad_enabled
    facts = backend.facts({"x": x, "y": torch.zeros(1, device="meta")}, 3)
    assert facts.grad_enabled
    assert (facts.batch_size, facts.devices) == (3, frozenset({"cpu", "meta"}))
    assert backend.facts({"mask": None}, 1).devices == frozenset()


@pytest.mark.rule("C4")
def test_the_adapters_logic_loads_no_torch_and_no_vllm() -> None:
    """Admission, accounting and both adapters stand on injected halves; CUDA is a module of its own."""
    code = (
        "import sys, deployments.graphs.exact_shape, deployments.graphs.budget, policies.admission; "
        "print(sorted({'torch', 'vllm', 'ray'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


class Graph:
    """Garbage that only the collector finds, as an adapter whose parts refer to each other."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def collected_by_hand() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("collected_by_hand")
@pytest.mark.parametrize("frozen", [False, True])
def test_what_serve_has_frozen_stays_frozen(log: list[str], frozen: bool) -> None:
    """A replica's start-up objects are spared every later collection, and are so after a capture too."""
    gc.unfreeze()
    if frozen:
        gc.freeze()
    try:
        CudaBackend("cuda:0").capture_all(Manager(log))
        assert (gc.get_freeze_count() > 0) is frozen
    finally:
        gc.unfreeze()


@pytest.mark.usefixtures("collected_by_hand")
@pytest.mark.parametrize("error", [None, RuntimeError("broke")])
def test_no_dead_graph_is_destroyed_during_a_capture(log: list[str], error: Exception | None) -> None:
    """A collection in the middle of a capture, be it by Ray's thread, finds a dead graph only afterwards."""

    class Collecting(Manager):
        def capture(self, pool: Any) -> None:
            gc.collect()
            assert dead() is not None
            super().capture(pool)

    dead = weakref.ref(Graph())
    with contextlib.suppress(RuntimeError):
        CudaBackend("cuda:0").capture_all(Collecting(log, error))
    gc.collect()
    assert dead() is None
