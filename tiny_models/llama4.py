"""A tiny checkpoint of Llama 4's architecture: real keys and names, random weights, the toy's words.

python -m tiny_models.llama4 [FOLDER]     prints the folder; without one: the user's cache
"""

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from tiny_models import folders
from toy_model import vocabulary as words
from toy_model.weights import Spec, fill, linear, norm, round_to_bfloat16, to_safetensors

SEED = 44
HIDDEN = 256
INTERMEDIATE = 256  # of an expert
DENSE_INTERMEDIATE = 512
LAYERS = 3
EXPERT_LAYERS = (1,)  # the others are dense, as every second layer of Maverick is
NO_ROTATION = 2  # the layer without rotary positions
HEADS = 4
KV_HEADS = 2
HEAD_DIM = 64
EXPERTS = 4
MAX_LENGTH = 8192

VISION_HIDDEN = 128
VISION_INTERMEDIATE = 4 * VISION_HIDDEN  # upstream takes it for four shuffled patches
VISION_LAYERS = 2
VISION_HEADS = 4
VISION_OUTPUT = 128
TILE_SIDE = 112  # the real model: 336
PATCH = 14
MAX_TILES = 16

# The real tokenizer's markers in places of the toy's, so that the toy's weight table knows which token ends.
SPECIAL = {
    "<|endoftext|>": "<|end_of_text|>",
    "<|im_start|>": "<|begin_of_text|>",
    "<|im_end|>": "<|eot|>",
    "<|object_ref_start|>": "<|header_start|>",
    "<|object_ref_end|>": "<|header_end|>",
    "<|box_start|>": "<|eom|>",
    "<|box_end|>": "<|step|>",
    "<|vision_start|>": "<|image_start|>",
    "<|vision_end|>": "<|image_end|>",
    "<|image_pad|>": "<|image|>",
    "<|vision_pad|>": "<|patch|>",
    "<image>": "<|tile_x_separator|>",
    "</image>": "<|tile_y_separator|>",
    "<tool_call>": "<|python_start|>",
    "</tool_call>": "<|python_end|>",
    "<unk>": "<|finetune_right_pad|>",
}


def vocabulary() -> dict[str, int]:
    """Every token and its id: the toy's words, Llama 4's markers, the rest reserved."""
    markers = {*words.SPECIAL, *words.VISIBLE}
    return {
        SPECIAL.get(token, f"<|reserved_special_token_{number}|>") if token in markers else token: number
        for token, number in words.vocabulary().items()
    }


def tokenizer_json() -> dict[str, Any]:
    """What tokenizer.json holds."""
    tokenizer = words.tokenizer_json()
    named = {number: token for token, number in vocabulary().items()}
    for entry in tokenizer["added_tokens"]:
        entry.update(content=named[entry["id"]], special=True)
    return tokenizer


def tokenizer_config() -> dict[str, Any]:
    """What tokenizer_config.json holds."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|begin_of_text|>",
        "eos_token": "<|eot|>",
        "pad_token": "<|finetune_right_pad|>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": MAX_LENGTH,
        "model_input_names": ["input_ids", "attention_mask"],
    }


def model_config() -> dict[str, Any]:
    """What config.json holds."""
    ids = vocabulary()
    return {
        "architectures": ["Llama4ForConditionalGeneration"],
        "model_type": "llama4",
        "dtype": "float32",
        "boi_token_index": ids["<|image_start|>"],
        "eoi_token_index": ids["<|image_end|>"],
        "image_token_index": ids["<|patch|>"],
        "bos_token_id": ids["<|begin_of_text|>"],
        "eos_token_id": ids["<|eot|>"],
        "pad_token_id": ids["<|finetune_right_pad|>"],
        "tie_word_embeddings": False,
        "text_config": {
            "model_type": "llama4_text",
            "vocab_size": len(ids),
            "hidden_size": HIDDEN,
            "intermediate_size": INTERMEDIATE,
            "intermediate_size_mlp": DENSE_INTERMEDIATE,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS,
            "head_dim": HEAD_DIM,
            "hidden_act": "silu",
            "max_position_embeddings": MAX_LENGTH,
            "rms_norm_eps": 1e-5,
            "num_experts_per_tok": 1,
            "num_local_experts": EXPERTS,
            "interleave_moe_layer_step": 2,
            "moe_layers": list(EXPERT_LAYERS),
            "use_qk_norm": True,
            "no_rope_layers": [int(layer != NO_ROTATION) for layer in range(LAYERS)],
            "attention_chunk_size": MAX_LENGTH,
            "attn_temperature_tuning": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500_000.0},
            "bos_token_id": ids["<|begin_of_text|>"],
            "eos_token_id": ids["<|eot|>"],
            "pad_token_id": ids["<|finetune_right_pad|>"],
            "tie_word_embeddings": False,
            "dtype": "float32",
        },
        "vision_config": {
            "model_type": "llama4_vision_model",
            "hidden_size": VISION_HIDDEN,
            "intermediate_size": VISION_INTERMEDIATE,
            "num_hidden_layers": VISION_LAYERS,
            "num_attention_heads": VISION_HEADS,
            "num_channels": 3,
            "image_size": TILE_SIDE,
            "patch_size": PATCH,
            "pixel_shuffle_ratio": 0.5,
            "projector_input_dim": VISION_OUTPUT,
            "projector_output_dim": VISION_OUTPUT,
            "vision_output_dim": VISION_OUTPUT,
            "multi_modal_projector_bias": False,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
            "dtype": "float32",
        },
    }


def preprocessor_config() -> dict[str, Any]:
    """What preprocessor_config.json holds."""
    return {
        "image_processor_type": "Llama4ImageProcessor",
        "processor_class": "Llama4Processor",
        "max_patches": MAX_TILES,
        "resize_to_max_canvas": False,
        "size": {"height": TILE_SIDE, "width": TILE_SIDE},
        "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5],
    }


def processor_config() -> dict[str, Any]:
    """What processor_config.json holds."""
    return {"processor_class": "Llama4Processor", "patch_size": PATCH, "pixel_shuffle_ratio": 0.5}


def generation_config() -> dict[str, Any]:
    """What generation_config.json holds."""
    ids = vocabulary()
    return {
        "bos_token_id": ids["<|begin_of_text|>"],
        "eos_token_id": [ids["<|eot|>"], ids["<|end_of_text|>"]],
        "pad_token_id": ids["<|finetune_right_pad|>"],
    }


CHAT_TEMPLATE = """{{- bos_token -}}
{%- for message in messages -%}
  {{- '<|header_start|>' + message['role'] + '<|header_end|>\\n\\n' -}}
  {%- if message['content'] is string -%}
    {{- message['content'] -}}
  {%- else -%}
    {%- for content in message['content'] -%}
      {%- if content['type'] == 'image' -%}
        {{- '<|image|>' -}}
      {%- elif content['type'] == 'text' -%}
        {{- content['text'] -}}
      {%- endif -%}
    {%- endfor -%}
  {%- endif -%}
  {{- '<|eot|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
  {{- '<|header_start|>assistant<|header_end|>\\n\\n' -}}
{%- endif -%}
"""


def _language() -> Iterator[Spec]:
    size, prefix = len(vocabulary()), "language_model.model"
    yield Spec(f"{prefix}.embed_tokens.weight", (size, HIDDEN), 1.0)
    for layer in range(LAYERS):
        name = f"{prefix}.layers.{layer}"
        yield from norm(f"{name}.input_layernorm", HIDDEN, bias=False)
        for part, heads, gain in (("q", HEADS, 1.5), ("k", KV_HEADS, 1.5), ("v", KV_HEADS, 1.0)):
            yield from linear(f"{name}.self_attn.{part}_proj", heads * HEAD_DIM, HIDDEN, gain=gain, bias=None)
        yield from linear(f"{name}.self_attn.o_proj", HIDDEN, HEADS * HEAD_DIM, gain=1.2, bias=None)
        yield from norm(f"{name}.post_attention_layernorm", HIDDEN, bias=False)
        forward = f"{name}.feed_forward"
        if layer in EXPERT_LAYERS:
            yield from linear(f"{forward}.router", EXPERTS, HIDDEN, gain=2.0, bias=None)
            yield Spec(f"{forward}.experts.gate_up_proj", (EXPERTS, HIDDEN, 2 * INTERMEDIATE), HIDDEN**-0.5)
            yield Spec(f"{forward}.experts.down_proj", (EXPERTS, INTERMEDIATE, HIDDEN), INTERMEDIATE**-0.5)
            yield from _gated(f"{forward}.shared_expert", INTERMEDIATE)
        else:
            yield from _gated(forward, DENSE_INTERMEDIATE)
    yield from norm(f"{prefix}.norm", HIDDEN, bias=False)
    yield from linear("language_model.lm_head", size, HIDDEN, gain=16.0, bias=None)


def _gated(name: str, inner: int) -> Iterator[Spec]:
    yield from linear(f"{name}.gate_proj", inner, HIDDEN, gain=2.0, bias=None)
    yield from linear(f"{name}.up_proj", inner, HIDDEN, bias=None)
    yield from linear(f"{name}.down_proj", HIDDEN, inner, gain=1.5, bias=None)


def _vision() -> Iterator[Spec]:
    size, patches = VISION_HIDDEN, (TILE_SIDE // PATCH) ** 2
    yield Spec("vision_model.class_embedding", (size,), 0.5)
    yield Spec("vision_model.positional_embedding_vlm", (patches + 1, size), 0.5)
    yield from linear("vision_model.patch_embedding.linear", size, 3 * PATCH**2, gain=2.0, bias=None)
    yield from norm("vision_model.layernorm_pre", size)
    yield from norm("vision_model.layernorm_post", size)
    for layer in range(VISION_LAYERS):
        name = f"vision_model.model.layers.{layer}"
        for part in ("q_proj", "k_proj", "v_proj", "o_proj"):
            yield from linear(f"{name}.self_attn.{part}", size, size, gain=1.4)
        yield from linear(f"{name}.mlp.fc1", VISION_INTERMEDIATE, size, gain=1.5)
        yield from linear(f"{name}.mlp.fc2", size, VISION_INTERMEDIATE, gain=1.5)
        yield from norm(f"{name}.input_layernorm", size)
        yield from norm(f"{name}.post_attention_layernorm", size)
    adapter = "vision_model.vision_adapter.mlp"
    yield from linear(f"{adapter}.fc1", VISION_OUTPUT, VISION_INTERMEDIATE, gain=2.0, bias=None)
    yield from linear(f"{adapter}.fc2", VISION_OUTPUT, VISION_OUTPUT, gain=2.0, bias=None)
    yield from linear("multi_modal_projector.linear_1", HIDDEN, VISION_OUTPUT, gain=2.0, bias=None)


def tensors() -> dict[str, np.ndarray]:
    """The whole checkpoint, by name. The experts too leave the constant dimension alone."""
    filled = fill([*_language(), *_vision()], SEED, llm="language_model.")
    for name, values in filled.items():
        if name.endswith("experts.gate_up_proj"):
            values[:, 0, :] = 0.0
        elif name.endswith("experts.down_proj"):
            values[:, :, 0] = 0.0
    return {name: round_to_bfloat16(values) for name, values in filled.items()}


def described() -> dict[str, dict[str, Any]]:
    """What each JSON file of the checkpoint holds, by name."""
    return {
        "config.json": model_config(),
        "generation_config.json": generation_config(),
        "preprocessor_config.json": preprocessor_config(),
        "processor_config.json": processor_config(),
        "tokenizer.json": tokenizer_json(),
        "tokenizer_config.json": tokenizer_config(),
    }


def contents() -> dict[str, bytes]:
    """Every file of the checkpoint, by name; the same bytes every time."""
    files = {name: (json.dumps(value, indent=1) + "\n").encode() for name, value in described().items()}
    files["chat_template.jinja"] = CHAT_TEMPLATE.encode()
    return {**files, "model.safetensors": to_safetensors(tensors())}


if __name__ == "__main__":
    folders.main("llama4")
