"""Each GPU kernel against the plain torch form of the same function (needs a GPU)."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from deployments.graphs import kernels

pytestmark = pytest.mark.gpu
BF16 = torch.bfloat16


def random(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device="cuda", dtype=BF16)


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    """Relative to the exact values, by norms."""
    return float((found.double() - exact.double()).norm() / exact.double().norm())


@pytest.mark.parametrize("seq", [1, 50, 51, 499, 1500])
@pytest.mark.parametrize("short", [False, True])
def test_chunked_attention(seq: int, short: bool) -> None:
    """Block-causal over 50 positions, also with keys that are hidden from one row of the batch."""
    qkv = random(2, seq, 3 * 16 * 64)
    lens = torch.tensor([2 * seq, 3 if short else 2 * seq], dtype=torch.int32, device="cuda")
    found = kernels.chunked_attention(qkv, lens, 16, 0.125, 50)
    exact = kernels.chunked_attention(qkv.float(), lens, 16, 0.125, 50)
    assert error(found, exact) < 4e-3


@pytest.mark.parametrize(("batch", "seq", "dim"), [(1, 1024, 72), (3, 577, 88), (2, 35, 16), (1, 1, 72)])
def test_full_attention(batch: int, seq: int, dim: int) -> None:
    """Every key is seen, at the head sizes of both families and of the toy model."""
    qkv = random(batch, seq, 3 * 4 * dim)
    starts = kernels.row_starts(batch, seq, qkv.device)
    found = kernels.full_attention(qkv, starts, 4, dim**-0.5)
    exact = kernels.full_attention(qkv.float(), starts, 4, dim**-0.5)
    assert error(found, exact) < 4e-3


def test_rotation() -> None:
    """Query and key turn, the value stays."""
    qkv, angle = random(2, 577, 3 * 1408), torch.randn(577, 44, device="cuda")
    exact = kernels.rotate_query_key(qkv.float(), angle.cos(), angle.sin(), 16)
    found = kernels.rotate_query_key(qkv.clone(), angle.cos(), angle.sin(), 16)
    assert error(found, exact) < 3e-3
    assert torch.equal(found[..., 2 * 1408 :], qkv[..., 2 * 1408 :])


@pytest.mark.parametrize("width", [32, 1024, 1152, 1408])
def test_residual_stream(width: int) -> None:
    """Adds and norms in place, biases carried to the next norm, equal the plain form."""
    linears = [nn.Linear(64, width).to("cuda", BF16) for _ in range(3)]
    norm = nn.LayerNorm(width).to("cuda", BF16)
    hidden, inputs = random(2, 7, width), [random(2, 7, 64) for _ in linears]
    stream = kernels.ResidualStream(hidden.clone(), kernels.bias_sums(list(linears), [norm]))
    exact = hidden.double()
    for linear, x in zip(linears, inputs, strict=True):
        stream.add(linear, x)
        exact = exact + F.linear(x.double(), linear.weight.double(), linear.bias.double())
        normed = F.layer_norm(exact, (width,), norm.weight.double(), norm.bias.double(), norm.eps)
        assert error(stream.norm(norm), normed) < 8e-3


def test_relu_pool() -> None:
    """Means over five positions; a rest that fills no window is left out."""
    x = random(2, 53, 4096)
    assert error(kernels.relu_pool(x, 5), kernels.relu_pool(x.float(), 5)) < 3e-3
    assert kernels.relu_pool(x[:, :4], 5).shape == (2, 0, 4096)


@pytest.mark.parametrize("rows", [8, 4096])
def test_linear_gelu(rows: int) -> None:
    """With and without the epilogue the error is no more than that of a product and a gelu apart."""
    linear, x = nn.Linear(1024, 4096).to("cuda", BF16), random(rows, 1024)
    exact = F.gelu(F.linear(x.double(), linear.weight.double(), linear.bias.double()))
    apart = error(F.gelu(linear(x)), exact)
    assert error(kernels.linear_gelu(linear, x, F.gelu), exact) <= 1.05 * apart
