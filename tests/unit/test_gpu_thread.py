"""What runs on the GPU thread: warm-up that survives what passes, and the hit that is told."""

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from deployments.encoders import gpu_thread
from deployments.encoders.gpu_thread import GpuThread
from policies.graph_options import GraphOptions
from tests.fakes import FakeFamily, inputs_of


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> GpuThread:
    """A loaded engine around the fake core, without upstream's contexts."""
    monkeypatch.setattr(gpu_thread.encoder_model, "running", lambda _: contextlib.nullcontext())
    family = FakeFamily()
    options: Any = SimpleNamespace(graphs=GraphOptions(min_capture_calls=2))
    one = GpuThread(family, family.encoders[0], options, graphs_enabled=True)
    one.core = family.core("vision", None, None, None)
    one.device = "cpu"
    return one


def test_a_call_that_hit_says_so(engine: GpuThread) -> None:
    """Hit means that every call of the batch ran in a graph."""
    tensors, hit = engine.encode([inputs_of(b"4x4:a"), inputs_of(b"4x4:b")])
    assert (len(tensors), hit) == (2, True)
    assert engine.stats().graph_hits == 1


def test_a_shape_that_fails_in_passing_is_skipped(engine: GpuThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica starts without a shape that does not fit, or that nobody can read, and with the others."""
    stand_in = FakeFamily.stand_in

    def picky(self: Any, encoder: str, key: str) -> Any:
        if key == "huge":
            raise MemoryError("no room")
        return stand_in(self, encoder, key)

    monkeypatch.setattr(FakeFamily, "stand_in", picky)
    engine.warm(("4x4", "huge", "2x2"))
    assert engine.warmed == ["4x4", "2x2"]


def test_a_capture_that_fails_in_warm_up_is_raised(engine: GpuThread) -> None:
    """A terminal failure ends the start: the next one comes without graphs."""
    assert engine.core is not None
    engine.core.adapter.fail_capture = True  # type: ignore[attr-defined]
    with pytest.raises(RuntimeError, match="scripted capture failure"):
        engine.warm(("4x4", "2x2"))
    assert engine.failure is not None
    assert engine.warmed == []


def test_what_is_captured_at_start_is_captured_before_traffic(engine: GpuThread) -> None:
    """Also with no shape named: budgets are captured while the replica starts, not by its first request."""
    engine.warm(())
    assert engine.core is not None
    assert engine.core.adapter.started  # type: ignore[attr-defined]
