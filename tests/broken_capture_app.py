"""The real application whose vision capture can be broken for real, once, by a file.

The captured function is the product's own; when the script folder says so, it synchronises the device
inside a capture, which CUDA forbids: the capture breaks with CUDA's own error.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from ray.serve import Application

from app.build import assemble, resolve_model
from app.config import AppConfig
from deployments.families.minicpmo import MiniCPMO
from deployments.families.registry import load_family
from deployments.graphs.exact_shape import Inputs
from tests.chaos_app import SCRIPT_VARIABLE, heard, same_numbers


@dataclass(frozen=True)
class BreakableMiniCPMO(MiniCPMO):
    """MiniCPM-o whose vision function breaks a capture when told to."""

    def core(self, encoder: str, model: Any, options: Any, device: Any) -> Any:
        core = super().core(encoder, model, options, device)
        if encoder == "vision":
            folder, function = Path(os.environ[SCRIPT_VARIABLE]), core.adapter._function

            def breakable(inputs: Inputs) -> torch.Tensor:
                if torch.cuda.is_current_stream_capturing() and heard(folder, "break-vision"):
                    torch.cuda.synchronize()
                output: torch.Tensor = function(inputs)
                return output

            core.adapter._function = breakable
        return core


def build(config: AppConfig) -> Application:
    """As ``app.build:build``, with the breakable family."""
    config, model_name = resolve_model(config)
    family = load_family(config.model, config.revision)
    return assemble(config, model_name, same_numbers(BreakableMiniCPMO, family))
