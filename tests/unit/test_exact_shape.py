"""The exact-shape adapter's logic over a fake device: admission, counting, clones, terminal failures."""

import dataclasses
import sys
import threading
import weakref

import pytest
import torch

from deployments.errors import TerminalGraphError
from deployments.graphs import kernels
from deployments.graphs.exact_shape import ExactShapeGraphs, Function, Inputs, graph_key
from policies.admission import CallFacts, GraphOptions
from tests.graph_fakes import DeviceError, FakeBackend, FakeGraph

GIB = 1 << 30


def double(inputs: Inputs) -> torch.Tensor:
    x, mask = inputs["x"], inputs.get("mask")
    assert x is not None
    return 2 * x if mask is None else 2 * x * mask


def adapter_of(backend: FakeBackend, function: Function = double, **options: object) -> ExactShapeGraphs:
    return ExactShapeGraphs("vision", function, dataclasses.replace(GraphOptions(), **options), backend)  # type: ignore[arg-type]


def call(adapter: ExactShapeGraphs, size: int, value: float = 1.0, batch_size: int = 1) -> torch.Tensor:
    return adapter({"x": torch.full((batch_size, size), value)}, batch_size=batch_size, tokens=size)


@pytest.mark.rule("A1")
def test_the_key_is_stream_shape_dtype_device_and_absence() -> None:
    """Any one of them alone makes another key; the order of the names does not."""
    x = torch.zeros(2, 3)
    base = graph_key(1, {"x": x, "mask": None})
    others = [
        graph_key(2, {"x": x, "mask": None}),
        graph_key(1, {"x": x.view(3, 2), "mask": None}),
        graph_key(1, {"x": x.half(), "mask": None}),
        graph_key(1, {"x": x.to("meta"), "mask": None}),
        graph_key(1, {"x": x, "mask": x}),
        graph_key(1, {"x": x}),
    ]
    assert len({base, *others}) == 7
    assert graph_key(1, {"mask": None, "x": torch.ones(2, 3)}) == base


@pytest.mark.rule("A1")
def test_what_an_input_holds_is_no_part_of_the_key() -> None:
    """One graph serves both patch grids of one packed shape: positions are an input, copied in."""
    backend = FakeBackend()
    adapter = ExactShapeGraphs("vision", lambda i: i["x"] + i["positions"], GraphOptions(), backend)  # type: ignore[operator]
    square, wide = torch.arange(4.0).view(1, 4), torch.tensor([[0.0, 2.0, 1.0, 3.0]])
    x = torch.ones(1, 4)
    for positions in (square, wide, square, wide):
        out = adapter({"x": x, "positions": positions}, batch_size=1)
        assert torch.equal(out, x + positions)
    assert backend.captures == 1


@pytest.mark.rule("A2")
def test_first_call_eager_second_captures_third_replays() -> None:
    """The capturing call is a hit and its output is the replay's."""
    backend = FakeBackend()
    adapter = adapter_of(backend)
    seen = []
    for value in (1.0, 2.0, 3.0):
        assert torch.equal(call(adapter, 3, value), torch.full((1, 3), 2 * value))
        seen.append((backend.captures, backend.replays))
    assert seen == [(0, 0), (1, 1), (1, 2)]
    assert adapter.stats().warmup_misses == 1
    assert adapter.stats().graph_hits == 2


@pytest.mark.rule("A3")
def test_a_thousand_shapes_leave_max_graphs_graphs() -> None:
    """However many shapes come and come again, memory holds the first few and all calls are counted."""
    backend = FakeBackend()
    adapter = adapter_of(backend, max_graphs=3)
    for size in range(1, 1001):
        for _ in range(2):
            call(adapter, size)
    stats = adapter.stats()
    assert len(backend.held) == stats.num_graphs == len(adapter.captured_keys()) == 3
    assert stats.capacity_misses == 2 * 997
    assert stats.graph_hits + stats.graph_misses == 2000


@pytest.mark.rule("A5")
def test_below_the_floor_calls_run_eagerly_and_graphs_still_replay() -> None:
    """A memory miss is counted, nothing is captured, and a later call may try again."""
    backend = FakeBackend(free=2 * GIB)
    adapter = adapter_of(backend, min_free_bytes=GIB)
    call(adapter, 1), call(adapter, 1)
    backend.free = GIB - 1
    for _ in range(3):
        call(adapter, 2)
    call(adapter, 1)
    assert adapter.stats().memory_misses == 2
    assert adapter.stats().graph_hits == 2
    backend.free = GIB
    call(adapter, 2)
    assert adapter.stats().num_graphs == 2


@pytest.mark.rule("A5")
def test_memory_is_asked_for_before_captures_only() -> None:
    """Asking the driver costs time, so neither replays nor warm-up calls do; a floor of 0 never asks."""
    backend = FakeBackend()
    adapter = adapter_of(backend)
    for _ in range(5):
        call(adapter, 1)
    assert backend.memory_questions == 1
    unasked = FakeBackend(free=0)
    adapter = adapter_of(unasked, min_free_bytes=0)
    call(adapter, 1), call(adapter, 1)
    assert (unasked.memory_questions, adapter.stats().num_graphs) == (0, 1)


@pytest.mark.rule("A8")
def test_an_embedding_that_a_caller_keeps_never_changes() -> None:
    """Later replays of the same and of other graphs leave it alone."""
    adapter = adapter_of(FakeBackend())
    call(adapter, 2)
    kept = call(adapter, 2, 5.0)
    for size in (2, 3, 3, 2):
        call(adapter, size, 9.0)
    assert torch.equal(kept, torch.full((1, 2), 10.0))


@pytest.mark.rule("A9")
@pytest.mark.parametrize(
    "facts",
    [
        CallFacts(devices=frozenset({"cpu"})),
        CallFacts(devices=frozenset({"cuda:0", "cuda:1"})),
        CallFacts(grad_enabled=True),
        CallFacts(autocast=True),
        CallFacts(capturing=True),
    ],
)
def test_an_ineligible_call_runs_eagerly_and_gathers_nothing(facts: CallFacts) -> None:
    """However often it comes, and it leaves no trace in the history."""
    backend = FakeBackend(calls=facts)
    adapter = adapter_of(backend)
    for _ in range(4):
        assert torch.equal(call(adapter, 2), torch.full((1, 2), 2.0))
    assert adapter.stats().ineligible_misses == 4
    backend.calls = CallFacts()
    call(adapter, 2)
    assert adapter.stats().warmup_misses == 1


@pytest.mark.rule("A9")
def test_graphs_that_are_off_make_every_call_ineligible() -> None:
    """``enforce_eager`` and ``enabled: false`` arrive here as the same option."""
    backend = FakeBackend()
    adapter = adapter_of(backend, enabled=False)
    for _ in range(3):
        call(adapter, 2)
    assert adapter.stats().ineligible_misses == 3
    assert backend.captures == 0


@pytest.mark.rule("C5")
def test_batches_outside_the_list_take_no_slot() -> None:
    """They run eagerly and are counted as ineligible; listed ones get graphs of their own."""
    adapter = adapter_of(FakeBackend(), graph_batch_sizes=(1, 4))
    for batch_size in (2, 2, 2, 4, 4, 1, 1):
        call(adapter, 3, batch_size=batch_size)
    assert adapter.stats().ineligible_misses == 3
    assert adapter.stats().num_graphs == 2


@pytest.mark.rule("A10")
def test_the_reasons_are_tried_in_order() -> None:
    """Ineligible before all, a hit before capacity, capacity before warm-up and memory."""
    backend = FakeBackend()
    adapter = adapter_of(backend, max_graphs=1)
    call(adapter, 1), call(adapter, 1)
    backend.free = 0
    call(adapter, 1)  # a hit, though the cache is full and memory is short
    call(adapter, 2)  # capacity, not warm-up
    call(adapter, 2)  # capacity, not memory
    backend.calls = CallFacts(autocast=True)
    call(adapter, 1)  # ineligible, not a hit
    stats = adapter.stats()
    assert (stats.graph_hits, stats.capacity_misses, stats.ineligible_misses) == (2, 2, 1)
    assert (stats.warmup_misses, stats.memory_misses) == (1, 0)


@pytest.mark.rule("A10")
def test_the_plain_dict_has_the_contract_s_names() -> None:
    """Upstream users read these names; the sum of the reasons is the misses."""
    adapter = adapter_of(FakeBackend())
    assert adapter.get_cumulative_stats()["hit_rate"] == 0.0
    call(adapter, 1), call(adapter, 1)
    found = adapter.get_cumulative_stats()
    names = """graph_hits graph_misses hit_rate num_graphs ineligible_misses capacity_misses warmup_misses
        memory_misses capture_failures replay_failures tokens_replayed tokens_padded unit""".split()
    assert set(found) == set(names)
    assert found["hit_rate"] == 0.5
    assert (found["tokens_replayed"], found["tokens_padded"], found["unit"]) == (1, 0, "calls")


@pytest.mark.rule("A10")
def test_hits_are_told_apart_by_graph() -> None:
    """A graph that no request reaches shows as one that stays at its capture's hit."""
    adapter = adapter_of(FakeBackend())
    for size in (1, 1, 2, 2, 2, 2):
        call(adapter, size)
    assert list(adapter.hits_by_graph().values()) == [1, 3]
    assert tuple(adapter.hits_by_graph()) == adapter.captured_keys() == ("x 1x1 float32", "x 1x2 float32")


@pytest.mark.rule("A1")
def test_one_shape_on_two_streams_has_two_graphs_with_two_names() -> None:
    """The stream is part of the key, and names stay unique."""
    backend = FakeBackend()
    adapter = adapter_of(backend)
    for stream in (1, 1, 2, 2):
        backend.stream_id = stream
        call(adapter, 3)
    assert adapter.captured_keys() == ("x 1x3 float32", "x 1x3 float32@2")


@pytest.mark.rule("A11")
def test_a_failed_capture_raises_once_and_is_terminal() -> None:
    """The original exception, then the terminal error for every shape, with no capture and no work."""
    original = ValueError("operation not permitted\nwhen stream is capturing")
    backend = FakeBackend(capture_error=original, lost_bytes=123)
    runs = []

    def counted(inputs: Inputs) -> torch.Tensor:
        runs.append(1)
        return double(inputs)

    adapter = adapter_of(backend, counted)
    call(adapter, 1)
    with pytest.raises(ValueError, match="not permitted") as caught:
        call(adapter, 1)
    assert caught.value is original
    for size in (1, 2, 2):
        with pytest.raises(TerminalGraphError, match="not permitted"):
            call(adapter, size)
    assert backend.captures == 1
    assert len(runs) == 1
    stats = adapter.stats()
    assert (stats.capture_failures, stats.replay_failures, stats.num_graphs) == (1, 0, 0)
    assert adapter.leaked_bytes == 123
    assert adapter.failure == "capture: ValueError: operation not permitted"


@pytest.mark.rule("A11")
def test_what_a_broken_capture_built_is_let_go_before_the_loss_is_counted() -> None:
    """The traceback of the error keeps nothing of it alive."""

    class Breaking(FakeBackend):
        built: weakref.ref[torch.Tensor] | None = None

        def capture(self, function: Function, inputs: Inputs) -> FakeGraph:
            buffer = torch.zeros(1000)
            self.built = weakref.ref(buffer)
            raise ValueError(f"broken at {len(buffer)}")

        def release_failed(self) -> int:
            assert self.built is not None
            return 0 if self.built() is None else 4000

    adapter = adapter_of(Breaking())
    call(adapter, 1)
    with pytest.raises(ValueError, match="broken"):
        call(adapter, 1)
    assert adapter.leaked_bytes == 0


@pytest.mark.rule("A11")
def test_a_device_error_in_a_replay_is_terminal_and_counted_apart() -> None:
    """The context is dead, whatever graph it was; the call is neither a hit nor a miss."""
    backend = FakeBackend()
    adapter = adapter_of(backend)
    call(adapter, 1), call(adapter, 1)
    before = adapter.stats()
    backend.replay_error = DeviceError("device-side assert")
    with pytest.raises(DeviceError):
        call(adapter, 1)
    with pytest.raises(TerminalGraphError):
        call(adapter, 2)
    assert adapter.stats() == dataclasses.replace(before, replay_failures=1)


@pytest.mark.rule("A11")
def test_a_passing_error_in_a_replay_is_not_terminal() -> None:
    """Running out of memory for a clone passes: the replica keeps its graphs."""
    backend = FakeBackend()
    adapter = adapter_of(backend)
    call(adapter, 1), call(adapter, 1)
    backend.replay_error = MemoryError("for the clone")
    with pytest.raises(MemoryError):
        call(adapter, 1)
    backend.replay_error = None
    assert torch.equal(call(adapter, 1), torch.full((1, 1), 2.0))
    assert adapter.stats().replay_failures == 0


@pytest.mark.rule("A11")
def test_only_device_errors_of_an_eager_run_are_terminal() -> None:
    """Bad input raises and passes; a dead context does not pass."""
    errors: list[Exception] = [ValueError("bad input"), DeviceError("dead")]

    def failing(inputs: Inputs) -> torch.Tensor:
        raise errors.pop(0)

    adapter = adapter_of(FakeBackend(), failing)
    with pytest.raises(ValueError, match="bad input"):
        call(adapter, 1)
    with pytest.raises(DeviceError):
        call(adapter, 2)
    with pytest.raises(TerminalGraphError, match="eager run"):
        call(adapter, 3)


def test_a_missing_kernel_package_is_named_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not an ImportError from somewhere inside the first request."""
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "deployments.graphs.triton_kernels", raising=False)
    monkeypatch.delattr("deployments.graphs.triton_kernels", raising=False)
    kernels.triton_kernels.cache_clear()
    with pytest.raises(RuntimeError, match=r"need Triton .* install requirements/gpu\.lock"):
        kernels.triton_kernels()


@pytest.mark.rule("C1")
def test_the_graphs_belong_to_one_thread() -> None:
    """A second thread is refused before anything replays."""
    backend = FakeBackend()
    adapter = adapter_of(backend)
    call(adapter, 1), call(adapter, 1)
    caught: list[Exception] = []

    def other() -> None:
        try:
            call(adapter, 1)
        except RuntimeError as error:
            caught.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert "another thread" in str(caught[0])
    assert backend.replays == 1
