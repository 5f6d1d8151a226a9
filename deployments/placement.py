"""Whether a replica really runs on the GPUs that Ray gave it; checked once at start.

Ray puts their numbers into CUDA_VISIBLE_DEVICES. Where something overrides that, two replicas that the config
keeps apart end on one GPU, and nothing else would say so.
"""

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import ray

from deployments.errors import GraphServeError

logger = logging.getLogger("ray.serve")


def assigned_gpus() -> tuple[str, ...]:
    """Ray's ids of this process's GPUs: none without Ray, without GPUs, or with ``num_gpus: 0``."""
    if not ray.is_initialized():
        return ()
    return tuple(ray.get_runtime_context().get_accelerator_ids().get("GPU", ()))


def uuid_of_device(device: Any) -> str:
    """The UUID of a CUDA device of this process, without its prefix."""
    import torch

    return str(torch.cuda.get_device_properties(device).uuid).removeprefix("GPU-")


def uuids_of_machine() -> tuple[str, ...] | None:
    """Every GPU's UUID in CUDA's order; None where that order, or the GPUs, cannot be known."""
    from vllm.third_party import pynvml

    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(n) for n in range(pynvml.nvmlDeviceGetCount())]
        names = {pynvml.nvmlDeviceGetName(handle) for handle in handles}
        uuids = tuple(pynvml.nvmlDeviceGetUUID(handle).removeprefix("GPU-") for handle in handles)
    except pynvml.NVMLError as error:
        logger.warning("the place of this replica is not checked: %s", error)
        return None
    if len(names) > 1 and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        logger.warning("the place of this replica is not checked: CUDA_DEVICE_ORDER is not PCI_BUS_ID")
        return None
    return uuids


def check_place(
    who: str,
    assigned: Sequence[str],
    used: Iterable[str],
    machine: Callable[[], tuple[str, ...] | None] | None = None,
) -> None:
    """Raise GraphServeError when ``who`` uses another GPU than one of ``assigned``.

    Args:
        assigned: Ray's ids: numbers in CUDA's order, or UUIDs with their prefix.
        used: UUIDs, without prefix, of the devices that hold the replica's model.
        machine: every GPU's UUID in CUDA's order; by default as the driver says.
    """
    if not assigned:
        return
    uuids = (machine or uuids_of_machine)()
    if uuids is None:
        return
    expected = {
        uuids[int(gpu)] if gpu.isdigit() and int(gpu) < len(uuids) else gpu.removeprefix("GPU-")
        for gpu in assigned
    }
    found = set(used)
    if not (found | expected) <= set(uuids):  # a part of a GPU, or a driver that names them in another way
        logger.warning("the place of %s is not checked: GPUs %s and %s", who, found, expected)
        return
    if astray := sorted(found - expected):
        raise GraphServeError(
            f"{who} runs on GPU {_named(astray, uuids)}, but Ray gave it {_named(sorted(expected), uuids)}: "
            "CUDA_VISIBLE_DEVICES must be left to Ray (no such variable in runtime_env, "
            "no RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES)"
        )


def _named(chosen: Sequence[str], uuids: Sequence[str]) -> str:
    return ", ".join(f"{uuids.index(uuid)} ({uuid})" for uuid in chosen)
