"""Where a replica really runs, against where Ray put it. Needs nothing: the machine is made up."""

import pytest

from deployments.errors import GraphServeError
from deployments.placement import assigned_gpus, check_place

MACHINE = ("aaaa", "bbbb", "cccc")


@pytest.mark.parametrize(
    ("assigned", "used"),
    [
        (["1"], ["bbbb"]),
        (["1", "2"], ["bbbb", "cccc"]),  # a decoder divided over two
        (["GPU-cccc"], ["cccc"]),
        ([], ["aaaa"]),  # num_gpus: 0, nothing is promised
        (["MIG-1234"], ["aaaa"]),  # a part of a GPU has another name
        (["0"], ["dddd"]),  # and so has what the driver names in another way
        (["7"], ["aaaa"]),
    ],
)
def test_a_replica_on_its_own_gpu_starts(assigned: list[str], used: list[str]) -> None:
    """The GPU that holds the model is the one that Ray gave, by number or by name."""
    check_place("Decoder", assigned, used, lambda: MACHINE)


def test_a_replica_on_a_neighbours_gpu_fails_at_start() -> None:
    """The error names the replica, the GPU it is on, the GPU that it should be on, and the usual cause."""
    with pytest.raises(GraphServeError) as caught:
        check_place("VisionEncoder", ["1"], ["aaaa"], lambda: MACHINE)
    said = str(caught.value)
    assert said.startswith("VisionEncoder runs on GPU 0 (aaaa), but Ray gave it 1 (bbbb)")
    assert "CUDA_VISIBLE_DEVICES" in said


def test_one_of_two_parts_astray_is_enough() -> None:
    """A divided decoder fails when one of its parts is on a GPU of somebody else."""
    with pytest.raises(GraphServeError, match=r"runs on GPU 0 \(aaaa\)"):
        check_place("Decoder", ["1", "2"], ["bbbb", "aaaa"], lambda: MACHINE)


def test_where_nothing_can_be_known_nothing_is_refused() -> None:
    """Without the driver's library, or with unlike GPUs in an unknown order, the replica starts."""
    check_place("Decoder", ["1"], ["aaaa"], lambda: None)


def test_without_ray_nothing_is_assigned() -> None:
    """An encoder built from plain Python is on whatever device it likes."""
    assert assigned_gpus() == ()
