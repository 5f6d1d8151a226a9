"""The real application with one test double: CUDA's half of the graph adapter, scripted by files.

The double claims to be on CUDA, "captures" by keeping the function, and fails or hangs when a file
in the script folder says so; each file works once. Everything else is the product's own code.
"""

import os
import time
from collections.abc import Hashable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ray.serve import Application

from app.build import assemble, resolve_model
from app.config import AppConfig
from deployments.families.minicpmo import MiniCPMO
from deployments.families.registry import load_family
from deployments.graphs.exact_shape import ExactShapeGraphs, Function, Graph, Inputs
from policies.admission import CallFacts

SCRIPT_VARIABLE = "GRAPHSERVE_TEST_SCRIPT"


def say(folder: Path, word: str, times: int = 1) -> None:
    """Let the next ``times`` replicas that look do what ``word`` says, for example fail-vision."""
    for _ in range(times):
        (folder / f"{word}.{time.time_ns()}").touch()


def heard(folder: Path, word: str) -> bool:
    """Whether ``word`` was said and nobody else took it."""
    for path in sorted(folder.glob(f"{word}.*")):
        try:
            path.rename(path.with_name(f"done-{path.name}-{os.getpid()}"))
        except FileNotFoundError:
            continue
        return True
    return False


class ScriptedGraph:
    """Runs the function again and clones, as a replay would look from outside."""

    def __init__(self, function: Function) -> None:
        self.function = function

    def replay(self, inputs: Inputs) -> Any:
        return self.function(inputs).clone()


class ScriptedBackend:
    """Implements ``GraphBackend``."""

    def __init__(self, encoder: str, folder: Path) -> None:
        self.encoder = encoder
        self.folder = folder

    def facts(self, inputs: Inputs, batch_size: int) -> CallFacts:
        if heard(self.folder, f"stick-{self.encoder}"):
            time.sleep(3600)
        return CallFacts(
            batch_size=batch_size,
            devices=frozenset({"cuda:0"}),
            grad_enabled=False,
            autocast=False,
            capturing=False,
        )

    def stream(self) -> Hashable:
        return 0

    def free_bytes(self) -> int:
        return 1 << 40

    def capture(self, function: Function, inputs: Inputs) -> Graph:
        if heard(self.folder, f"fail-{self.encoder}"):
            raise RuntimeError("scripted capture failure")
        return ScriptedGraph(function)

    def release_failed(self) -> int:
        return 0

    def is_device_error(self, error: BaseException) -> bool:
        return False


@dataclass(frozen=True)
class ScriptedMiniCPMO(MiniCPMO):
    """MiniCPM-o whose cores capture by the scripted double."""

    def core(self, encoder: str, model: Any, options: Any, device: Any) -> Any:
        from deployments.families import minicpmo_gpu as gpu

        backend = ScriptedBackend(encoder, Path(os.environ[SCRIPT_VARIABLE]))
        if encoder == "vision":
            vision = gpu.VisionFunction(model.vpm, model.resampler)
            return gpu.VisionCore(model, ExactShapeGraphs(encoder, vision, options, backend), vision)
        audio = gpu.AudioFunction.of_model(model)
        return gpu.AudioCore(model, ExactShapeGraphs(encoder, audio, options, backend), audio)


def same_numbers(kind: Any, family: Any) -> Any:
    """A family of another class with this one's numbers."""
    return kind(**{field.name: getattr(family, field.name) for field in fields(family)})


def build(config: AppConfig) -> Application:
    """As ``app.build:build``, with the double in the family's place."""
    config, model_name = resolve_model(config)
    family = load_family(config.model, config.revision)
    return assemble(config, model_name, same_numbers(ScriptedMiniCPMO, family))
