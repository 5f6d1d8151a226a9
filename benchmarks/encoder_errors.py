"""The error of a 16-bit encoder on the GPU, against the same function in float32 on the CPU."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from deployments.families.minicpmo_audio import AudioFunction
from deployments.families.minicpmo_vision import VisionFunction

Inputs = dict[str, Any]
Function = Callable[[Inputs], torch.Tensor]


def relative_errors(upstream: Function, ours: Function, inputs: Inputs) -> tuple[float, float]:
    """Norm of the difference from float32 on the CPU over the norm of that: upstream's, ours."""
    exact = in_float32(ours)({name: _float32(value) for name, value in inputs.items()})

    def error(out: torch.Tensor) -> float:
        return float((out.float().cpu() - exact).norm() / exact.norm())

    return error(upstream(inputs)), error(ours(inputs))


def in_float32(function: Any) -> Function:
    """A float32 twin of one of our functions on the CPU; it equals upstream's there within rounding."""
    if isinstance(function, VisionFunction):
        return VisionFunction(_twin(function.vpm), _twin(function.resampler))
    if isinstance(function, AudioFunction):
        apm, projection = _twin(function.apm), _twin(function.projection)
        return AudioFunction(apm, projection, chunk_s=function.chunk / 50, pool_step=function.pool_step)
    tiles = copy.copy(function.function)
    tiles._biases = None
    tiles.vision, tiles.projector = _twin(tiles.vision), _twin(tiles.projector)
    tiles.cos, tiles.sin = tiles.cos.cpu(), tiles.sin.cpu()
    return lambda inputs: tiles(inputs["pixel_values"])


def _twin(module: Any) -> Any:
    """A float32 copy on the CPU; vLLM's parameters do not copy themselves, so their data is copied."""
    copies: dict[int, Any] = {
        id(tensor): tensor if tensor.is_complex() else nn.Parameter(tensor.data.cpu().float(), False)
        for tensor in (*module.parameters(), *module.buffers())
    }
    adapter = getattr(module, "_encoder_graph", None)
    if adapter is not None:
        copies[id(adapter)] = adapter
    return copy.deepcopy(module, copies)


def _float32(value: torch.Tensor) -> torch.Tensor:
    return value.cpu().float() if value.is_floating_point() else value.cpu()
