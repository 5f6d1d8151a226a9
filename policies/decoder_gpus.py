"""How many GPUs a decoder is divided over, and whether Serve gives its deployment as many. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

SIZES = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "prefill_context_parallel_size",
    "data_parallel_size",
)
"""Engine arguments whose product is the number of upstream's workers, one GPU each."""

ARGUMENTS = "decoder.engine_args"
ACTOR = "deployments.Decoder.ray_actor_options.num_gpus"
BUNDLES = "deployments.Decoder.placement_group_bundles"


@dataclass(frozen=True, slots=True)
class DecoderGpus:
    """What Serve gives one replica: GPUs of its own, and the bundles of its placement group.

    ``counted`` is false where Ray knows of no GPU: on CPUs, or where GPUs are not its to give.
    """

    own: float = 0
    bundles: Sequence[Mapping[str, float]] = ()
    counted: bool = True

    @property
    def in_bundles(self) -> list[float]:
        """GPUs of each bundle that has any."""
        return [gpus for bundle in self.bundles if (gpus := float(bundle.get("GPU", 0))) > 0]


def problem(engine_args: Mapping[str, Any], gpus: DecoderGpus) -> str | None:
    """Why vLLM's workers and the GPUs do not fit, in a sentence that names both numbers; None: they do."""
    for name in SIZES:
        size = engine_args.get(name, 1)
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            return f"{ARGUMENTS}.{name} must be a whole number above 0, not {size!r}"
    wanted = math.prod(engine_args.get(name, 1) for name in SIZES)
    asks = f"{ARGUMENTS} divides the model over {_gpus(wanted)} ({_reason(engine_args)})"
    if engine_args.get("distributed_executor_backend") == "ray":
        why = _workers_in_bundles(wanted, gpus)
    else:
        why = _workers_in_the_replica(wanted, gpus)
    return f"{asks}, but {why}" if why else None


def _gpus(number: int) -> str:
    return f"{number} GPU" if number == 1 else f"{number} GPUs"


def _reason(engine_args: Mapping[str, Any]) -> str:
    given = [f"{name} {engine_args[name]}" for name in SIZES if name in engine_args]
    return " * ".join(given) or f"{SIZES[0]} is not set"


def _workers_in_bundles(wanted: int, gpus: DecoderGpus) -> str | None:
    """Upstream's Ray executor: an actor for each worker, in a bundle of the replica's placement group."""
    held = gpus.in_bundles
    if max(held, default=0) > 1:
        return f"a bundle of {BUNDLES} has {max(held):g}: vLLM's Ray executor wants one for each worker"
    if len(held) != wanted:
        return f"{BUNDLES} has {len(held)} with a GPU: give it {wanted} of {{GPU: 1}}"
    if gpus.own:
        return f"{ACTOR} is {gpus.own:g}, which the replica would take from its workers' bundles: set it to 0"
    return None


def _workers_in_the_replica(wanted: int, gpus: DecoderGpus) -> str | None:
    """Upstream's other executors: the replica's own processes, on its own GPUs."""
    held = math.ceil(gpus.own)
    if sum(gpus.in_bundles) > held:
        return (
            f"{ACTOR} is {gpus.own:g} of the {sum(gpus.in_bundles):g} in {BUNDLES}: "
            f"set {ARGUMENTS}.distributed_executor_backend to ray, so that vLLM's workers run in the bundles"
        )
    if held == wanted or (not held and (wanted == 1 or not gpus.counted)):
        return None
    return f"{ACTOR} is {gpus.own:g}: set it to {wanted}"
