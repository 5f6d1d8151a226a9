"""What the GPU tests share: they need an NVIDIA GPU and vLLM, and build models with random weights."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if not torch.cuda.is_available():
        for item in items:
            if "gpu" in item.path.parts:
                item.add_marker(pytest.mark.skip(reason="no NVIDIA GPU"))


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    """As a replica runs: with grad enabled no call may use a graph."""
    with torch.inference_mode():
        yield


@pytest.fixture(scope="session")
def world() -> Iterator[None]:
    """One-rank groups, a vLLM config and inference mode."""
    from benchmarks import random_encoders

    with random_encoders.vllm_world():
        yield


@pytest.fixture(scope="session")
def minicpmo(world: None) -> Any:
    """MiniCPM-o's encoders at the real dimensions, bfloat16."""
    from benchmarks import random_encoders

    return random_encoders.minicpmo(random_encoders.REAL, torch.bfloat16, "cuda:0")


@pytest.fixture(scope="session")
def llama4(world: None) -> Any:
    """Llama 4's vision model at the real dimensions, bfloat16."""
    from benchmarks import random_encoders

    return random_encoders.llama4(random_encoders.REAL, torch.bfloat16, "cuda:0")
