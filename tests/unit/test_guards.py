"""The guards of tests/unit/conftest.py do stop what they are there to stop."""

import pytest
import ray


def test_ray_cannot_be_started() -> None:
    """A unit test that starts Ray fails instead of starting it."""
    with pytest.raises(pytest.fail.Exception, match=r"ray\.init"):
        ray.init()


def test_cuda_cannot_be_used() -> None:
    """A unit test that touches a GPU fails, on a machine that has one and on one that has none."""
    torch = pytest.importorskip("torch")
    with pytest.raises((pytest.fail.Exception, RuntimeError, AssertionError)):
        torch.zeros(1, device="cuda")
