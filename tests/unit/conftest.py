"""Unit tests start no Ray and touch no GPU: one that tries is stopped with a plain sentence."""

import sys
from typing import Any, NoReturn

import pytest
import ray


def _forbidden(what: str) -> Any:
    def stop(*args: Any, **kwargs: Any) -> NoReturn:
        pytest.fail(f"a unit test called {what}: move it to tests/local, tests/cluster or tests/gpu")

    return stop


@pytest.fixture(autouse=True)
def _no_ray_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "init", _forbidden("ray.init"))
    # torch takes seconds to import, so it is guarded where it is loaded; a test that imports it later finds
    # no visible GPU.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    if "torch" in sys.modules:
        monkeypatch.setattr("torch.cuda._lazy_init", _forbidden("torch.cuda"))
