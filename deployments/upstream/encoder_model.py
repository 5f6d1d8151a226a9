"""Loads one encoder of an upstream model without an engine: no language model, not its siblings.

Source of the recipe: vLLM 0.32's worker start-up (``vllm/v1/worker``), reduced to one rank.
"""

import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from deployments.errors import GraphServeError
from deployments.upstream.logs import logs_kept


@dataclass(frozen=True)
class EncoderModelSpec:
    """What to load: a checkpoint, one modality of it, a dtype and the place to put it."""

    model: str
    modality: str  # vLLM's name of the one modality to keep
    dtype: str  # "float32", "bfloat16": never "auto", which turns float32 into bfloat16
    trust_remote_code: bool = False
    revision: str | None = None
    load_format: str = "auto"
    enforce_eager: bool = False
    hf_overrides: dict[str, Any] | None = None
    seed: int = 0


def encoder_config(spec: EncoderModelSpec) -> Any:
    """The upstream ``VllmConfig`` of an encoder-only process."""
    from vllm.engine.arg_utils import EngineArgs

    limits = dict.fromkeys(("image", "audio", "video"), 0)
    limits[spec.modality] = 1
    engine_args = EngineArgs(
        model=spec.model,
        dtype=spec.dtype,
        trust_remote_code=spec.trust_remote_code,
        revision=spec.revision,
        load_format=spec.load_format,
        enforce_eager=spec.enforce_eager,
        hf_overrides=spec.hf_overrides or {},
        seed=spec.seed,
        mm_encoder_only=True,
        limit_mm_per_prompt=limits,
    )
    with logs_kept():
        return engine_args.create_engine_config()


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def load_encoder(config: Any) -> torch.nn.Module:
    """Build the upstream model with this config's one encoder and load its weights.

    Call once per process, on the thread that will run the encoder.
    """
    from vllm.config import set_current_vllm_config
    from vllm.distributed import init_distributed_environment, initialize_model_parallel
    from vllm.model_executor.model_loader import get_model
    from vllm.platforms import current_platform

    on_cpu = current_platform.is_cpu()
    if on_cpu:
        torch.accelerator.empty_cache = lambda: None  # upstream's loader calls it; the CPU has none
    with set_current_vllm_config(config):
        init_distributed_environment(1, 0, f"tcp://127.0.0.1:{_free_port()}", 0, "gloo" if on_cpu else "nccl")
        initialize_model_parallel(1, 1)
        model: torch.nn.Module = get_model(vllm_config=config)
    ensure_resampler = getattr(model, "_ensure_resampler_device", None)
    if ensure_resampler is not None:  # load_format="dummy" never runs load_weights(), which does this
        ensure_resampler()
    return model.eval()


@contextmanager
def running(config: Any) -> Iterator[None]:
    """The contexts in which upstream's encoder functions may be called."""
    from vllm.config import set_current_vllm_config
    from vllm.forward_context import set_forward_context

    with set_current_vllm_config(config), set_forward_context(None, config), torch.inference_mode():
        yield


def modules_loaded(model: torch.nn.Module) -> tuple[str, ...]:
    """Names of the direct children that are real modules, not upstream's weightless stand-ins.

    By module class, for on the CPU weight prepacking hides parameters from counting.
    """
    return tuple(
        name
        for name, child in model.named_children()
        if type(child).__name__ != "StageMissingLayer"
        and any(type(m).__name__ != "StageMissingLayer" and not list(m.children()) for m in child.modules())
    )


def check_modules(model: torch.nn.Module, wanted: Sequence[str], unwanted: Sequence[str]) -> tuple[str, ...]:
    """Return ``modules_loaded`` or raise when a wanted module is missing or an unwanted one is there."""
    loaded = modules_loaded(model)
    missing = [name for name in wanted if name not in loaded]
    extra = [name for name in unwanted if name in loaded]
    if missing or extra:
        raise GraphServeError(
            f"the model holds {loaded}: missing {missing or 'nothing'}, not to be loaded {extra or 'nothing'}"
        )
    return loaded
