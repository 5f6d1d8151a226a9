"""Fakes of the graph adapters' CUDA halves: they implement the real protocols and script one failure each."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from policies.admission import CallFacts
from policies.budgets import plan

Inputs = Mapping[str, torch.Tensor | None]


class DeviceError(RuntimeError):
    """What a fake device raises when its context is gone."""


@dataclass
class FakeGraph:
    """Replays by copying into static buffers and running the function on those, as a graph does."""

    function: Callable[[Inputs], torch.Tensor]
    static: dict[str, torch.Tensor | None]
    backend: "FakeBackend"

    def replay(self, inputs: Inputs) -> torch.Tensor:
        self.backend.replays += 1
        if self.backend.replay_error is not None:
            raise self.backend.replay_error
        for name, value in inputs.items():
            buffer = self.static[name]
            if value is not None and buffer is not None:
                buffer.copy_(value)
        return self.function(self.static).clone()


@dataclass
class FakeBackend:
    """``GraphBackend`` on the CPU that says it is a GPU."""

    free: int = 1 << 40
    calls: CallFacts = field(default_factory=CallFacts)
    stream_id: Hashable = 7
    capture_error: BaseException | None = None
    replay_error: BaseException | None = None
    lost_bytes: int = 0
    has_graphs: bool = True
    captures: int = 0
    replays: int = 0
    memory_questions: int = 0
    held: list[FakeGraph] = field(default_factory=list)

    def facts(self, inputs: Inputs, batch_size: int) -> CallFacts:
        tensors = [value for value in inputs.values() if isinstance(value, torch.Tensor)]
        devices = self.calls.devices if tensors else frozenset[str]()
        return replace(self.calls, batch_size=batch_size, devices=devices)

    def stream(self) -> Hashable:
        return self.stream_id

    def free_bytes(self) -> int:
        self.memory_questions += 1
        return self.free

    def capture(self, function: Callable[[Inputs], torch.Tensor], inputs: Inputs) -> FakeGraph:
        self.captures += 1
        if self.capture_error is not None:
            raise self.capture_error
        static = {name: None if value is None else value.clone() for name, value in inputs.items()}
        graph = FakeGraph(function, static, self)
        self.held.append(graph)
        return graph

    def release_failed(self) -> int:
        return self.lost_bytes

    def is_device_error(self, error: BaseException) -> bool:
        return isinstance(error, DeviceError)

    def usable(self) -> bool:
        return self.has_graphs

    def capture_all(self, manager: "FakeManager") -> None:
        self.captures += 1
        if self.capture_error is not None:
            raise self.capture_error
        manager.capture()

    def finish(self) -> None:
        if self.replay_error is not None:
            raise self.replay_error


class FakeManager:
    """``BudgetManager`` over (tokens, 1) items given as ``{"pixels": (sum of tokens, 1), "counts": [...]}``.

    Doubles its input; packs as ``policies.budgets.plan`` says, which a local test holds against upstream.
    """

    input_names = ["pixels"]  # noqa: RUF012 -- the protocol's attribute

    def __init__(
        self, budgets: list[int], max_items: int, may_capture: Callable[[], bool] = lambda: True
    ) -> None:
        self.token_budgets = budgets
        self.max_batch_size = max_items
        self.may_capture = may_capture
        self.captured_budgets: list[int] = []
        self.left_out: list[int] = []
        self.replays: list[tuple[int, int]] = []
        self.eager_runs = 0

    def capture(self) -> None:
        for budget in sorted(self.token_budgets, reverse=True):
            (self.captured_budgets if self.may_capture() else self.left_out).append(budget)
        self.captured_budgets.sort()

    def item_tokens(self, mm_kwargs: dict[str, Any]) -> list[int]:
        return list(mm_kwargs["counts"])

    def execute(self, mm_kwargs: dict[str, Any]) -> list[torch.Tensor]:
        tokens = self.item_tokens(mm_kwargs)
        for budget, items in plan(tokens, self.captured_budgets, self.max_batch_size).batches:
            if budget is not None:
                self.replays.append((budget, sum(tokens[i] for i in items)))
        return [2 * item for item in mm_kwargs["pixels"].split(tokens)]

    def run_eagerly(self, mm_kwargs: dict[str, Any]) -> list[torch.Tensor]:
        self.eager_runs += 1
        return [2 * item for item in mm_kwargs["pixels"].split(self.item_tokens(mm_kwargs))]
