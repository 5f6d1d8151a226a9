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

Inputs = Mapping[str, torch.Tensor | None]
Function = Callable[[Inputs], torch.Tensor]

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
    ),  # fmt: skip
    "prepare_encoder_cudagraph_capture_inputs": (
        "self", "token_budget", "max_batch_size", "max_frames_per_batch", "device", "dtype", "path",
        "axis_keys",
    ),  # fmt: skip
    "prepare_encoder_cudagraph_replay_buffers": (
        "self", "mm_kwargs", "max_batch_size", "max_frames_per_batch", "path",
    ),  # fmt: skip
    "encoder_cudagraph_forward": ("self", "inputs", "path"),
    "encoder_eager_forward": ("self", "mm_kwargs", "path"),
}  # fmt: skip
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
        self._first = inputs
        self.rows = 1

    def get_encoder_cudagraph_config(self) -> EncoderCudaGraphConfig:
        names = [name for name, value in self._first.items() if value is not None]
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
        static = {name: value.clone() for name, value in self._first.items() if value is not None}
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
        absent = {name: None for name, value in self._first.items() if value is None}
        return self._function({**inputs, **absent}).unsqueeze(0)

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
        self._model._first = dict.fromkeys(self._model._first)  # keep names, let the values go

    def replay(self, inputs: Inputs) -> torch.Tensor:
        """Copy ``inputs`` in, replay, and return upstream's clone of the output."""
        present = {name: value for name, value in inputs.items() if value is not None}
        return self._manager.execute(present)[0].squeeze(0)

    def clear(self) -> None:
        """Let go of the graph and its buffers."""
        self._manager.clear()
