"""The one module that touches vLLM's encoder-graph interface (written against 0.32 and 0.33).

Capture, replay and the clone of the output are upstream's ``EncoderCudaGraphManager`` throughout;
here stand the stand-in model that makes it hold one exact shape, and ``interface_problems``.
"""

import inspect
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from vllm.model_executor.models.interfaces import SupportsEncoderCudaGraph
from vllm.v1.worker.encoder_cudagraph import BudgetGraphMetadata, EncoderCudaGraphManager
from vllm.v1.worker.encoder_cudagraph_defs import (
    EncoderCudaGraphCaptureInputs,
    EncoderCudaGraphConfig,
    EncoderCudaGraphReplayBuffers,
    EncoderItemSpec,
)

from policies.budgets import budget_range

Inputs = Mapping[str, torch.Tensor | None]
Function = Callable[[Inputs], torch.Tensor]

# fmt: off
_MANAGER_METHODS = {
    "__init__": ("self", "vllm_config", "device", "dtype", "model"),
    "capture": ("self", "graph_pool"),
    "execute": ("self", "mm_kwargs"),
    "clear": ("self",),
    "is_captured": ("self",),
    "get_cumulative_stats": ("self",),
    "_capture_budget_graph": ("self", "token_budget", "path", "axis_keys"),
    "_run_budget_graph": ("self", "mm_kwargs", "token_budget", "path", "axis_keys"),
}
_PROTOCOL_METHODS = {
    "get_encoder_cudagraph_config": ("self",),
    "get_encoder_cudagraph_budget_range": ("self", "vllm_config"),
    "get_encoder_cudagraph_item_specs": ("self", "mm_kwargs"),
    "select_encoder_cudagraph_items": ("self", "mm_kwargs", "indices"),
    "postprocess_encoder_output": (
        "self", "outputs", "indices", "per_item_out_tokens", "dest", "clone", "batch_mm_kwargs",
    ),
    "prepare_encoder_cudagraph_capture_inputs": (
        "self", "token_budget", "max_batch_size", "max_frames_per_batch", "device", "dtype", "path",
        "axis_keys",
    ),
    "prepare_encoder_cudagraph_replay_buffers": (
        "self", "mm_kwargs", "max_batch_size", "max_frames_per_batch", "path",
    ),
    "encoder_cudagraph_forward": ("self", "inputs", "path"),
    "encoder_eager_forward": ("self", "mm_kwargs", "path"),
}
# fmt: on
_FIELDS = {
    EncoderCudaGraphConfig: {"modalities", "buffer_keys", "out_hidden_size", "padding_logics", "paths"},
    EncoderItemSpec: {"input_size", "output_tokens"},
    EncoderCudaGraphCaptureInputs: {"values"},
    EncoderCudaGraphReplayBuffers: {"values"},
    BudgetGraphMetadata: {"token_budget", "graph", "input_buffers", "output_buffer"},
}


def interface_problems(
    manager: type = EncoderCudaGraphManager, protocol: type = SupportsEncoderCudaGraph
) -> list[str]:
    """Where the installed vLLM's interface differs from what this module was written for."""
    problems = []
    for owner, methods in ((manager, _MANAGER_METHODS), (protocol, _PROTOCOL_METHODS)):
        for name, expected in methods.items():
            method = getattr(owner, name, None)
            if method is None:
                problems.append(f"{owner.__name__}.{name} is gone")
                continue
            found = tuple(inspect.signature(method).parameters)
            if found != expected:
                problems.append(f"{owner.__name__}.{name} takes {found}, written for {expected}")
    for data, expected_fields in _FIELDS.items():
        missing = expected_fields - set(data.__dataclass_fields__)
        if missing:
            problems.append(f"{data.__name__} lost {sorted(missing)}")
    return problems


def manager_config(
    *, token_budgets: list[int] | None = None, max_items: int = 0, max_frames: int | None = None,
    max_num_batched_tokens: int = 0, max_model_len: int = 0,
) -> Any:  # fmt: skip
    """Just what the manager and a model's budget range read of a ``VllmConfig``.

    The limits are the decoder's: an encoder process has scheduler defaults of its own.
    """
    multimodal = SimpleNamespace(get_limit_per_prompt=lambda _modality: 0, mm_encoder_tp_mode="weights")
    return SimpleNamespace(
        compilation_config=SimpleNamespace(
            encoder_cudagraph_token_budgets=token_budgets or [],
            encoder_cudagraph_max_vision_items_per_batch=max_items,
            encoder_cudagraph_max_frames_per_batch=max_frames,
        ),
        model_config=SimpleNamespace(multimodal_config=multimodal, max_model_len=max_model_len),
        scheduler_config=SimpleNamespace(max_num_batched_tokens=max_num_batched_tokens),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
    )


class _OneShape(SupportsEncoderCudaGraph):
    """Shows upstream's manager one encoder call of one shape as a single item that fills its budget.

    The item's output tokens are the rows of the output, so that upstream's postprocessing slices
    and clones the whole of it.
    """

    def __init__(self, function: Function, inputs: Inputs) -> None:
        self._function = function
        self._absent = {name: None for name, value in inputs.items() if value is None}
        self._first = {name: value for name, value in inputs.items() if value is not None}

    def get_encoder_cudagraph_config(self) -> EncoderCudaGraphConfig:
        names = list(self._first)
        copy = torch.Tensor.copy_  # the shape is exact: nothing to zero before the copy
        return EncoderCudaGraphConfig(["image"], names, 0, padding_logics=dict.fromkeys(names, copy))

    def get_encoder_cudagraph_budget_range(self, vllm_config: Any) -> tuple[int, int]:
        return 1, 1

    def get_encoder_cudagraph_item_specs(self, mm_kwargs: dict[str, Any]) -> list[EncoderItemSpec]:
        return [EncoderItemSpec(input_size=1, output_tokens=1)]

    def select_encoder_cudagraph_items(self, mm_kwargs: dict[str, Any], indices: list[int]) -> dict[str, Any]:
        return dict(mm_kwargs)

    def prepare_encoder_cudagraph_capture_inputs(
        self, token_budget: int, max_batch_size: int, max_frames_per_batch: int, device: torch.device,
        dtype: torch.dtype, path: str = "default", axis_keys: Any = None,
    ) -> EncoderCudaGraphCaptureInputs:  # fmt: skip
        """Static buffers hold the first call's values: allocated here, before the capture begins."""
        static = {name: value.clone() for name, value in self._first.items()}
        self._first = {}  # the caller's tensors are not kept
        return EncoderCudaGraphCaptureInputs(values=static)

    def prepare_encoder_cudagraph_replay_buffers(
        self, mm_kwargs: dict[str, Any], max_batch_size: int, max_frames_per_batch: int,
        path: str = "default",
    ) -> EncoderCudaGraphReplayBuffers:  # fmt: skip
        return EncoderCudaGraphReplayBuffers(values=mm_kwargs)

    def encoder_cudagraph_forward(
        self, inputs: dict[str, torch.Tensor], path: str = "default"
    ) -> torch.Tensor:
        """One leading axis of size 1 over the whole output: one budget token, one item."""
        return self._function({**inputs, **self._absent}).unsqueeze(0)

    def encoder_eager_forward(self, mm_kwargs: dict[str, Any], path: str = "default") -> torch.Tensor:
        return self.encoder_cudagraph_forward(mm_kwargs)


class ExactShapeGraph:
    """One upstream manager that holds one graph of ``function`` for one exact shape.

    Construct and ``replay`` on the stream that replays; ``capture`` on the capture stream.
    """

    def __init__(self, function: Function, inputs: Inputs, device: torch.device) -> None:
        problems = interface_problems()
        if problems:
            raise RuntimeError("this vLLM's encoder-graph interface differs: " + "; ".join(problems))
        self._model = _OneShape(function, inputs)
        dtype = next(value.dtype for value in inputs.values() if value is not None)
        config = manager_config(max_frames=0)
        self._manager = EncoderCudaGraphManager(config, device, dtype, self._model)

    def capture(self, pool: Any) -> None:
        """Warm up once, then capture, on the current stream into ``pool``."""
        self._manager.capture(pool)

    def replay(self, inputs: Inputs) -> torch.Tensor:
        """Copy ``inputs`` in, replay, and return upstream's clone of the output."""
        present = {name: value for name, value in inputs.items() if value is not None}
        return self._manager.execute(present)[0].squeeze(0)

    def clear(self) -> None:
        """Let go of the graph and its buffers."""
        self._manager.clear()


class _Budgeted(SupportsEncoderCudaGraph):
    """Upstream's model with the forward that is captured replaced; all else is the model's own."""

    def __init__(self, model: Any, forward: Callable[[dict[str, Any]], torch.Tensor]) -> None:
        self._model = model
        self._forward = forward

    def get_encoder_cudagraph_config(self) -> EncoderCudaGraphConfig:
        return self._model.get_encoder_cudagraph_config()

    def get_encoder_cudagraph_budget_range(self, vllm_config: Any) -> tuple[int, int]:
        """The model's smallest, and the largest from the given limits, which are the decoder's."""
        smallest, _ = self._model.get_encoder_cudagraph_budget_range(vllm_config)
        batched = vllm_config.scheduler_config.max_num_batched_tokens
        return budget_range(smallest, batched, vllm_config.model_config.max_model_len)

    def get_encoder_cudagraph_item_specs(self, mm_kwargs: dict[str, Any]) -> list[EncoderItemSpec]:
        return self._model.get_encoder_cudagraph_item_specs(mm_kwargs)

    def select_encoder_cudagraph_items(self, mm_kwargs: dict[str, Any], indices: list[int]) -> dict[str, Any]:
        return self._model.select_encoder_cudagraph_items(mm_kwargs, indices)

    def postprocess_encoder_output(self, *args: Any, **kwargs: Any) -> None:
        self._model.postprocess_encoder_output(*args, **kwargs)

    def prepare_encoder_cudagraph_capture_inputs(
        self, *args: Any, **kwargs: Any
    ) -> EncoderCudaGraphCaptureInputs:
        return self._model.prepare_encoder_cudagraph_capture_inputs(*args, **kwargs)

    def prepare_encoder_cudagraph_replay_buffers(
        self, *args: Any, **kwargs: Any
    ) -> EncoderCudaGraphReplayBuffers:
        return self._model.prepare_encoder_cudagraph_replay_buffers(*args, **kwargs)

    def encoder_cudagraph_forward(
        self, inputs: dict[str, torch.Tensor], path: str = "default"
    ) -> torch.Tensor:
        return self._forward(inputs)

    def encoder_eager_forward(self, mm_kwargs: dict[str, Any], path: str = "default") -> torch.Tensor:
        return self._forward(mm_kwargs)


class BudgetGraphs(EncoderCudaGraphManager):
    """Upstream's manager with a memory floor before each capture and a note of each replay's padding.

    A budget that the floor forbids is left out; its items run in larger budgets or eagerly.
    """

    def __init__(
        self, model: Any, forward: Callable[[dict[str, Any]], torch.Tensor], config: Any,
        device: torch.device, dtype: torch.dtype, may_capture: Callable[[], bool],
    ) -> None:  # fmt: skip
        problems = interface_problems()
        if problems:
            raise RuntimeError("this vLLM's encoder-graph interface differs: " + "; ".join(problems))
        super().__init__(config, device, dtype, _Budgeted(model, forward))
        self._may_capture = may_capture
        self.left_out: list[int] = []
        self.replays: list[tuple[int, int]] = []  # (budget, real tokens), emptied by the reader

    @property
    def captured_budgets(self) -> list[int]:
        """Budgets that have a graph, ascending."""
        return sorted(key for key in self._get_graph_set() if isinstance(key, int))

    @property
    def input_names(self) -> list[str]:
        """Names of the tensors that are copied into a graph."""
        return self.config.buffer_keys

    def capture(self, graph_pool: Any) -> None:
        """Capture what the floor allows, the largest first, on the current stream."""
        super().capture(graph_pool)
        self.path_token_budgets["default"] = self.captured_budgets

    def item_tokens(self, mm_kwargs: dict[str, Any]) -> list[int]:
        """Output tokens of each item."""
        return self._get_per_item_out_tokens(mm_kwargs)

    def run_eagerly(self, mm_kwargs: dict[str, Any]) -> list[torch.Tensor]:
        """All items in one eager forward, split and cloned by upstream's postprocessing."""
        tokens = self.item_tokens(mm_kwargs)
        outputs: dict[int, torch.Tensor] = {}
        everything = list(range(len(tokens)))
        output = self.model.encoder_eager_forward(mm_kwargs)
        self.model.postprocess_encoder_output(
            {"default": output}, everything, tokens, outputs, clone=True, batch_mm_kwargs=mm_kwargs
        )
        return [outputs[i] for i in everything]

    def _capture_budget_graph(self, token_budget: int, path: str = "default", axis_keys: Any = ()) -> None:
        if self._may_capture():
            super()._capture_budget_graph(token_budget, path=path, axis_keys=axis_keys)
        else:
            self.left_out.append(token_budget)

    def _run_budget_graph(
        self, mm_kwargs: dict[str, Any], token_budget: int, path: str = "default", axis_keys: Any = ()
    ) -> torch.Tensor | None:
        self.replays.append((token_budget, sum(self.item_tokens(mm_kwargs))))
        return super()._run_budget_graph(mm_kwargs, token_budget, path=path, axis_keys=axis_keys)
