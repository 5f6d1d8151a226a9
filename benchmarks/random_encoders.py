"""Upstream's encoders with random weights at chosen dimensions, without a checkpoint or an engine.

The objects are upstream's own classes, built without their language models, so that upstream's
functions on them are the reference for tests and the baseline for measurements.
"""

import contextlib
import importlib.util
import socket
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch


@dataclass(frozen=True)
class Dimensions:
    """Widths of the three encoders; the defaults are the real models'."""

    hidden: int = 4096
    vision_width: int = 1152
    vision_layers: int = 27
    vision_heads: int = 16
    vision_mlp: int = 4304
    audio_width: int = 1024
    audio_layers: int = 24
    audio_heads: int = 16
    llama_width: int = 1408
    llama_layers: int = 34
    llama_heads: int = 16
    llama_mlp: int = 5632
    llama_image: int = 336
    llama_projector: int = 4096
    llama_text: int = 5120


REAL = Dimensions()
TOY = Dimensions(
    hidden=128, vision_width=32, vision_layers=2, vision_heads=2, vision_mlp=64, audio_width=32,
    audio_layers=2, audio_heads=2, llama_width=32, llama_layers=2, llama_heads=2, llama_mlp=128,
    llama_image=56, llama_projector=64, llama_text=48,
)  # fmt: skip


@contextlib.contextmanager
def vllm_world() -> Iterator[None]:
    """One-rank groups and a config, as upstream's layers want them; leaves the groups in place."""
    from vllm.config import VllmConfig, set_current_vllm_config
    from vllm.distributed import (
        init_distributed_environment,
        initialize_model_parallel,
        model_parallel_is_initialized,
    )
    from vllm.forward_context import set_forward_context

    config = VllmConfig()
    with set_current_vllm_config(config):
        if not model_parallel_is_initialized():
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            backend = "nccl" if torch.cuda.is_available() else "gloo"
            init_distributed_environment(1, 0, f"tcp://127.0.0.1:{port}", 0, backend)
            initialize_model_parallel(1, 1)
        with set_forward_context(None, config), torch.inference_mode():
            yield


def minicpmo(dims: Dimensions, dtype: torch.dtype, device: str) -> Any:
    """A ``MiniCPMO4_5`` that holds vision, resampler and audio, and no language model."""
    from transformers import WhisperConfig
    from transformers.models.idefics2.configuration_idefics2 import Idefics2VisionConfig
    from vllm.model_executor.models.minicpmo import MiniCPMO4_5

    vision = Idefics2VisionConfig(
        hidden_size=dims.vision_width, intermediate_size=dims.vision_mlp, image_size=980, patch_size=14,
        num_hidden_layers=dims.vision_layers, num_attention_heads=dims.vision_heads,
    )  # fmt: skip
    audio = WhisperConfig(
        d_model=dims.audio_width, encoder_layers=dims.audio_layers, num_mel_bins=80,
        encoder_attention_heads=dims.audio_heads, encoder_ffn_dim=4 * dims.audio_width,
        max_source_positions=1500,
    )  # fmt: skip
    config = SimpleNamespace(
        vision_config=vision, audio_config=audio, hidden_size=dims.hidden, query_num=64,
        drop_vision_last_layer=False, audio_pool_step=5, audio_chunk_length=1.0,
    )  # fmt: skip
    model = MiniCPMO4_5.__new__(MiniCPMO4_5)
    torch.nn.Module.__init__(model)
    model.config, model.embed_dim, model.version = config, dims.hidden, (4, 5)
    model.quant_config, model._resampler_moved = None, True
    with _default_dtype(dtype), torch.device(device):
        model.vpm = model.init_vision_module(config, None, prefix="vpm")
        model.resampler = model.init_resampler(dims.hidden, dims.vision_width, None, prefix="resampler")
        model.apm = model.init_audio_module(vllm_config=None, prefix="apm")
    return _finish(model, dtype, device)


def llama4(dims: Dimensions, dtype: torch.dtype, device: str) -> Any:
    """A ``Llama4ForConditionalGeneration`` that holds vision model and projector alone."""
    from transformers import Llama4VisionConfig

    mllama4 = _import_mllama4()
    vision = Llama4VisionConfig(
        hidden_size=dims.llama_width, num_hidden_layers=dims.llama_layers,
        num_attention_heads=dims.llama_heads, intermediate_size=dims.llama_mlp,
        image_size=dims.llama_image, patch_size=14, pixel_shuffle_ratio=0.5,
        projector_input_dim=dims.llama_projector, projector_output_dim=dims.llama_projector,
        vision_output_dim=dims.llama_projector,
    )  # fmt: skip
    model = mllama4.Llama4ForConditionalGeneration.__new__(mllama4.Llama4ForConditionalGeneration)
    torch.nn.Module.__init__(model)
    model.config = SimpleNamespace(
        vision_config=vision, text_config=SimpleNamespace(hidden_size=dims.llama_text)
    )
    model.use_data_parallel = False
    model.vllm_config = SimpleNamespace(model_config=SimpleNamespace(max_model_len=1 << 20))
    with _default_dtype(dtype), torch.device(device):
        model.vision_model = mllama4.Llama4VisionModel(config=vision, prefix="vision_model")
        model.multi_modal_projector = mllama4.Llama4MultiModalProjector(
            config=model.config, prefix="projector"
        )
    return _finish(model, dtype, device, keep_dtype=True)


def qwen2_5_vl(dtype: torch.dtype, device: str, depth: int = 32) -> Any:
    """A ``Qwen2_5_VLForConditionalGeneration`` that holds the 7B model's encoder alone, maybe less deep."""
    from deployments.upstream.qwen_pictures import use_pillow_for_qwen

    use_pillow_for_qwen()
    from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLVisionConfig
    from vllm.model_executor.models import qwen2_5_vl as upstream

    vision = Qwen2_5_VLVisionConfig(
        depth=depth, hidden_size=1280, intermediate_size=3420, num_heads=16, out_hidden_size=3584,
        fullatt_block_indexes=[depth * quarter // 4 - 1 for quarter in (1, 2, 3, 4)],
    )  # fmt: skip
    model = upstream.Qwen2_5_VLForConditionalGeneration.__new__(upstream.Qwen2_5_VLForConditionalGeneration)
    torch.nn.Module.__init__(model)
    model.config = SimpleNamespace(vision_config=vision)
    model.model_config = SimpleNamespace(max_model_len=8192)
    limits = SimpleNamespace(max_num_batched_tokens=8192)
    model.vllm_config = SimpleNamespace(scheduler_config=limits, model_config=model.model_config)
    model.is_multimodal_pruning_enabled = model.use_data_parallel = False
    model.get_max_frames_per_video = lambda: 1  # upstream asks the checkpoint's processor; no videos here
    with _default_dtype(dtype), torch.device(device):
        model.visual = upstream.Qwen2_5_VisionTransformer(vision)
    return _finish(model, dtype, device, keep_dtype=True)


def _import_mllama4() -> Any:
    """The module imports torchvision for its image processor, which no encoder needs: lend it a name."""
    names = ["torchvision", "torchvision.transforms", "torchvision.transforms.v2"]
    absent = importlib.util.find_spec("torchvision") is None
    if absent:
        for name in names:
            sys.modules[name] = types.ModuleType(name)
        sys.modules[names[-1]].functional = None
    try:
        return importlib.import_module("vllm.model_executor.models.mllama4")
    finally:
        for name in names if absent else ():
            del sys.modules[name]


def randomise(model: Any, device: Any, dtype: torch.dtype | None = None) -> None:
    """Random weights of a scale that keeps activations of order 1, the same values every time.

    ``dtype`` is that of all; without it each keeps its own.
    """
    generator = torch.Generator(device).manual_seed(0)
    for name, parameter in model.named_parameters():
        values = torch.randn(parameter.shape, generator=generator, device=device)
        if parameter.ndim < 2:
            values = 0.02 * values + (
                1.0 if ("norm" in name or ".ln_" in name) and name.endswith("weight") else 0.0
            )
        elif "position" in name or "query" in name or "class_embedding" in name:
            values = 0.2 * values
        else:
            values = values / (values[0].numel() ** 0.5)
        parameter.data = values.to(dtype or parameter.dtype)


def _finish(model: Any, dtype: torch.dtype, device: str, *, keep_dtype: bool = False) -> Any:
    """Random weights; then the device."""
    randomise(model, device, None if keep_dtype else dtype)
    model.to(device)
    if hasattr(model, "apm"):
        model.apm.to(dtype)
    for module in model.modules():  # what upstream's loader does last; on the CPU it packs weights
        if hasattr(getattr(module, "quant_method", None), "process_weights_after_loading"):
            module.quant_method.process_weights_after_loading(module)
    return model.eval()


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
