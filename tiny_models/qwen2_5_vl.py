"""A tiny checkpoint of Qwen2.5-VL's architecture: real keys and names, random weights, the toy's tokenizer.

python -m tiny_models.qwen2_5_vl [FOLDER]     prints the folder; without one: the user's cache
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import toy_model
from tiny_models import folders
from toy_model import configs
from toy_model import vocabulary as words
from toy_model.configs import HEAD_DIM, HEADS, HIDDEN, INTERMEDIATE, KV_HEADS, LAYERS, MAX_LENGTH
from toy_model.weights import Spec, fill, linear, norm, to_safetensors

SEED = 25
MROPE_SECTION = (
    8,
    12,
    12,
)  # time, height, width: half a head's width in all, shared as in the real one
ROPE_THETA = 100.0  # the real model: a million, by which a row of a small picture turns nothing visibly

VISION_HIDDEN = 128
VISION_INTERMEDIATE = 256
VISION_LAYERS = 3
VISION_HEADS = 4
FULL_ATTENTION_LAYERS = (2,)  # the others see windows of 8 x 8 patches
PATCH = 14
FRAMES = 2  # of a video in one patch; a picture counts as two equal frames
MERGE = 2
WINDOW = 112
MIN_PIXELS = 4 * (PATCH * MERGE) ** 2
MAX_PIXELS = 128 * (PATCH * MERGE) ** 2  # the real model: 16384 tokens' worth


def model_config() -> dict[str, Any]:
    """What config.json holds."""
    ids = words.vocabulary()
    return {
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "model_type": "qwen2_5_vl",
        "dtype": "float32",
        **configs.decoder_sizes(),
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": ROPE_THETA,
        "rope_scaling": {"type": "mrope", "mrope_section": list(MROPE_SECTION)},
        "max_position_embeddings": MAX_LENGTH,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
        "vision_end_token_id": ids["<|vision_end|>"],
        "vision_token_id": ids["<|vision_pad|>"],
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "vision_config": {
            "depth": VISION_LAYERS,
            "hidden_size": VISION_HIDDEN,
            "intermediate_size": VISION_INTERMEDIATE,
            "num_heads": VISION_HEADS,
            "hidden_act": "silu",
            "in_chans": 3,
            "out_hidden_size": HIDDEN,
            "patch_size": PATCH,
            "spatial_patch_size": PATCH,
            "temporal_patch_size": FRAMES,
            "spatial_merge_size": MERGE,
            "window_size": WINDOW,
            "fullatt_block_indexes": list(FULL_ATTENTION_LAYERS),
            "tokens_per_second": 2,
        },
    }


def preprocessor_config() -> dict[str, Any]:
    """What preprocessor_config.json holds."""
    return {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen2_5_VLProcessor",
        "min_pixels": MIN_PIXELS,
        "max_pixels": MAX_PIXELS,
        "patch_size": PATCH,
        "temporal_patch_size": FRAMES,
        "merge_size": MERGE,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
    }


def tokenizer_config() -> dict[str, Any]:
    """What tokenizer_config.json holds; a class that takes tokenizer.json as it is."""
    config = {**words.tokenizer_config(MAX_LENGTH), "tokenizer_class": "PreTrainedTokenizerFast"}
    del config["auto_map"], config["add_prefix_space"]
    return config


def generation_config() -> dict[str, Any]:
    """What generation_config.json holds."""
    ids = words.vocabulary()
    return {
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]],
        "pad_token_id": ids["<|endoftext|>"],
    }


def _language() -> Iterator[Spec]:
    size = len(words.vocabulary())
    yield Spec("model.embed_tokens.weight", (size, HIDDEN), 1.0)
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        yield from norm(f"{name}.input_layernorm", HIDDEN, bias=False)
        # Queries and keys are not normalised here: their gains set how sharp attention is.
        for part, heads, gain in (("q", HEADS, 1.5), ("k", KV_HEADS, 1.5), ("v", KV_HEADS, 1.0)):
            yield from linear(f"{name}.self_attn.{part}_proj", heads * HEAD_DIM, HIDDEN, gain=gain, bias=0.1)
        yield from linear(f"{name}.self_attn.o_proj", HIDDEN, HEADS * HEAD_DIM, gain=1.2, bias=None)
        yield from norm(f"{name}.post_attention_layernorm", HIDDEN, bias=False)
        yield from linear(f"{name}.mlp.gate_proj", INTERMEDIATE, HIDDEN, gain=2.0, bias=None)
        yield from linear(f"{name}.mlp.up_proj", INTERMEDIATE, HIDDEN, bias=None)
        yield from linear(f"{name}.mlp.down_proj", HIDDEN, INTERMEDIATE, gain=1.5, bias=None)
    yield from norm("model.norm", HIDDEN, bias=False)
    yield from linear("lm_head", size, HIDDEN, gain=16.0, bias=None)


def _vision() -> Iterator[Spec]:
    size, merged = VISION_HIDDEN, VISION_HIDDEN * MERGE**2
    pixels = (size, 3, FRAMES, PATCH, PATCH)
    yield Spec("visual.patch_embed.proj.weight", pixels, 2.0 / (3 * FRAMES * PATCH**2) ** 0.5)
    for layer in range(VISION_LAYERS):
        name = f"visual.blocks.{layer}"
        yield from norm(f"{name}.norm1", size, bias=False)
        yield from linear(f"{name}.attn.qkv", 3 * size, size, gain=1.4)
        yield from linear(f"{name}.attn.proj", size, size, gain=1.4)
        yield from norm(f"{name}.norm2", size, bias=False)
        yield from linear(f"{name}.mlp.gate_proj", VISION_INTERMEDIATE, size, gain=1.5)
        yield from linear(f"{name}.mlp.up_proj", VISION_INTERMEDIATE, size, gain=1.5)
        yield from linear(f"{name}.mlp.down_proj", size, VISION_INTERMEDIATE, gain=1.5)
    yield from norm("visual.merger.ln_q", size, bias=False)
    yield from linear("visual.merger.mlp.0", merged, merged)
    yield from linear("visual.merger.mlp.2", HIDDEN, merged, gain=2.0)


def contents() -> dict[str, bytes]:
    """Every file of the checkpoint, by name; the same bytes every time."""
    described = {
        "config.json": model_config(),
        "generation_config.json": generation_config(),
        "preprocessor_config.json": preprocessor_config(),
        "tokenizer.json": words.tokenizer_json(),
        "tokenizer_config.json": tokenizer_config(),
    }
    files = {name: (json.dumps(value, indent=1) + "\n").encode() for name, value in described.items()}
    template = Path(toy_model.__file__).with_name("chat_template.jinja")
    weights = fill([*_language(), *_vision()], SEED, llm="")
    return {
        **files,
        "chat_template.jinja": template.read_bytes(),
        "model.safetensors": to_safetensors(weights),
    }


if __name__ == "__main__":
    folders.main("qwen2_5_vl")
