"""GPUs of a decoder: as many as vLLM divides over, where its executor looks for them. Needs nothing."""

import re
from typing import Any

import pytest

from policies.decoder_gpus import SIZES, DecoderGpus, problem

ONE = {"GPU": 1}
TWO = {"tensor_parallel_size": 2}
FOUR = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2}
RAY = {"distributed_executor_backend": "ray"}
NONE = DecoderGpus(counted=False)


@pytest.mark.parametrize(
    ("args", "gpus"),
    [
        ({}, NONE),
        ({}, DecoderGpus(0)),
        ({}, DecoderGpus(1)),
        ({}, DecoderGpus(0.4)),
        (TWO, NONE),
        (FOUR, DecoderGpus(4)),
        (FOUR, DecoderGpus(4, [{"CPU": 1, "GPU": 4}])),
        (FOUR | RAY, DecoderGpus(0, [ONE] * 4)),
        (FOUR | RAY, DecoderGpus(0, [{"CPU": 1}, *[ONE] * 4])),
        (RAY, DecoderGpus(0, [{"CPU": 1, "GPU": 0.5}])),
    ],
)
def test_as_many_gpus_as_workers_is_no_problem(args: dict[str, Any], gpus: DecoderGpus) -> None:
    """One a worker, the replica's own or in bundles; none at all where Ray has none to give."""
    assert problem(args, gpus) is None


@pytest.mark.parametrize(
    ("args", "gpus", "says"),
    [
        (FOUR, DecoderGpus(2), "ray_actor_options.num_gpus is 2: set it to 4"),
        ({}, DecoderGpus(2), "num_gpus is 2: set it to 1"),
        (TWO, DecoderGpus(0), "num_gpus is 0: set it to 2"),
        (TWO, DecoderGpus(0.5), "num_gpus is 0.5: set it to 2"),
        (TWO, DecoderGpus(1, [ONE, ONE]), "distributed_executor_backend to ray"),
        (TWO | RAY, DecoderGpus(2), "placement_group_bundles has 0 with a GPU: give it 2 of"),
        (TWO | RAY, DecoderGpus(0, [ONE] * 3), "has 3 with a GPU: give it 2"),
        (TWO | RAY, DecoderGpus(0, [{"GPU": 2}]), "has 2: vLLM's Ray executor wants one for each worker"),
        (TWO | RAY, DecoderGpus(1, [ONE, ONE]), "num_gpus is 1, .* set it to 0"),
        (TWO | RAY, NONE, "has 0 with a GPU"),
    ],
)
def test_what_does_not_fit_is_said_with_both_numbers(
    args: dict[str, Any], gpus: DecoderGpus, says: str
) -> None:
    """The sentence holds path and value of what is asked for, and of what Serve was told to give."""

    why = problem(args, gpus)
    assert why is not None
    assert re.search(says, why)
    assert why.startswith("decoder.engine_args divides the model over ")
    assert "deployments.Decoder." in why
    for name in SIZES:
        assert (f"{name} {args[name]}" in why) if name in args else True


@pytest.mark.parametrize("size", ["4", 0, -1, 2.0, True, None])
def test_a_size_that_is_no_whole_number_is_named(size: Any) -> None:
    """By its path, before anything is multiplied."""
    why = problem({"pipeline_parallel_size": size}, DecoderGpus(4))
    assert why is not None
    assert why.startswith("decoder.engine_args.pipeline_parallel_size must be")
