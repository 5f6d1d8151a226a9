"""Llama 4 that also takes image embeddings (vLLM 0.32 and 0.33 take only pixels).

What is added to upstream's model: a data parser that knows the fields of an embedding, their layout, and a
way past the encoder. ``register_llama4_embeds`` puts it in upstream's place in every vLLM process.
"""

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ARCHITECTURE = "Llama4ForConditionalGeneration"
UPSTREAM = "vllm.model_executor.models.mllama4"


def register_llama4_embeds() -> bool:
    """Register the model below for its architecture if upstream's takes no embeddings. True if so.

    Upstream's source is read, not imported: most processes that load this serve another model.
    """
    from vllm.model_executor.models import ModelRegistry

    spec = importlib.util.find_spec(UPSTREAM)
    if spec is None or spec.origin is None or "image_embeds" in Path(spec.origin).read_text(encoding="utf-8"):
        return False
    ours = "deployments.upstream.llama4_embeds_model"
    if getattr(ModelRegistry.models.get(ARCHITECTURE), "module_name", "") != ours:
        ModelRegistry.register_model(ARCHITECTURE, f"{ours}:{ARCHITECTURE}")
    return True


def fields(pictures: Mapping[str, Any], tile_tokens: int) -> dict[str, Any]:
    """How the tensors of several pictures divide into pictures."""
    import torch
    from vllm.multimodal.inputs import MultiModalFieldConfig as Field

    tiles = pictures.get("patches_per_image", torch.empty(0, dtype=torch.int64))
    return {
        "pixel_values": Field.flat_from_sizes("image", tiles),
        "image_embeds": Field.flat_from_sizes("image", tiles * tile_tokens),
        "patches_per_image": Field.batched("image", keep_on_cpu=True),
        "aspect_ratios": Field.batched("image", keep_on_cpu=True),
    }
