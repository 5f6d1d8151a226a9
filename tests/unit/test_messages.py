"""Embeddings on their way: bit for bit, and without a copy that is not needed."""

import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.messages import embedding_to_message, is_finite, message_to_embedding

torch = pytest.importorskip("torch")


@given(st.lists(st.integers(0, 2**16 - 1), min_size=4, max_size=64).filter(lambda bits: len(bits) % 4 == 0))
def test_bfloat16_arrives_bit_for_bit(bits: list[int]) -> None:
    """Every 16-bit pattern, NaN payloads and subnormals included, is the same after the journey."""
    pattern = np.asarray(bits, dtype=np.uint16).reshape(-1, 4)
    tensor = torch.from_numpy(pattern.copy()).view(torch.bfloat16)
    message = embedding_to_message(tensor, uuid="u", encoder="vision", metadata={})
    arrived = message_to_embedding(pickle.loads(pickle.dumps(message)))
    assert arrived.dtype == torch.bfloat16
    assert np.array_equal(arrived.view(torch.uint16).numpy(), pattern)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_no_copies_at_either_end(dtype: "torch.dtype") -> None:
    """The message is a view of the tensor, and the tensor that is read a view of the message."""
    tensor = torch.randn(3, 4).to(dtype)
    message = embedding_to_message(tensor, uuid="u", encoder="vision", metadata={})
    assert message.data.__array_interface__["data"][0] == tensor.data_ptr()
    assert message_to_embedding(message).data_ptr() == tensor.data_ptr()


def test_read_only_memory_is_read_without_a_warning() -> None:
    """Ray hands out read-only arrays; reading one neither warns nor copies."""
    message = embedding_to_message(torch.randn(3, 4), uuid="u", encoder="vision", metadata={})
    message.data.flags.writeable = False
    assert message_to_embedding(message).data_ptr() == message.data.ctypes.data


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int32])
def test_other_dtypes_are_refused(dtype: "torch.dtype") -> None:
    """A dtype that the other end would misread never leaves."""
    with pytest.raises(TypeError, match="float32 or bfloat16"):
        embedding_to_message(torch.zeros(2, 2, dtype=dtype), uuid="u", encoder="vision", metadata={})


@given(st.lists(st.integers(0, 2**16 - 1), min_size=1, max_size=64))
def test_what_torch_calls_finite_is_finite(bits: list[int]) -> None:
    """The look at the bits and torch agree on every 16-bit pattern, and on the same values in float32."""
    pattern = torch.from_numpy(np.asarray([bits], dtype=np.uint16)).view(torch.bfloat16)
    for tensor in (pattern, pattern.float()):
        message = embedding_to_message(tensor, uuid="u", encoder="vision", metadata={})
        assert is_finite(message) == bool(torch.isfinite(tensor).all())
