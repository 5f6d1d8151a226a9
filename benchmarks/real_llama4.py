"""A checkpoint folder with Llama 4 Scout's real vision encoder, one layer of language model and no weights.

For ``load_format: dummy``. The language model is reduced as vLLM's own test of Llama 4's encoder graphs
reduces it, to one layer and two experts; its widths are real, and a token takes one expert.
"""

import json
from pathlib import Path
from typing import Any

from benchmarks import llama4_replicas, real_model
from benchmarks.random_encoders import REAL
from tiny_models import llama4

VOCABULARY = 202_048
MAX_LENGTH = 8192
LANGUAGE_MODEL: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": REAL.llama_text, "intermediate_size": 8192,
    "intermediate_size_mlp": 16_384, "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128,
    "max_position_embeddings": MAX_LENGTH,
    # Attention in chunks of 8192 is plain attention up to there; said plainly, decode steps can be captured.
    "attention_chunk_size": None,
    "num_hidden_layers": 1, "no_rope_layers": [1],
    "num_local_experts": 2, "num_experts_per_tok": 1, "interleave_moe_layer_step": 1, "moe_layers": [0],
    "dtype": "bfloat16",
}  # fmt: skip
WITHOUT_EXPERTS: dict[str, Any] = {"interleave_moe_layer_step": 0, "moe_layers": []}
"""For a machine without vLLM's kernels for experts: the one layer is one of Maverick's dense ones."""


def language_model(*, dense: bool) -> dict[str, Any]:
    """The text part of config.json as far as it differs from the tiny checkpoint's."""
    return {**LANGUAGE_MODEL, **(WITHOUT_EXPERTS if dense else {})}


def ensure(folder: Path, *, dense: bool) -> Path:
    """Write the folder, over what is there; returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in contents(dense=dense).items():
        (folder / name).write_text(json.dumps(data), encoding="utf-8")
    (folder / "chat_template.jinja").write_text(llama4.CHAT_TEMPLATE, encoding="utf-8")
    return folder


def contents(*, dense: bool) -> dict[str, dict[str, Any]]:
    """What each JSON file holds, by name."""
    files = llama4_replicas.described(small=False)
    config = files["config.json"]
    config["dtype"] = config["vision_config"]["dtype"] = "bfloat16"
    config["text_config"].update(language_model(dense=dense))
    known = llama4.vocabulary()
    real_model.enlarge(files["tokenizer.json"], known, VOCABULARY)
    # Named, so that a client that makes up prompts of random tokens makes up no markers of pictures.
    markers = [entry["content"] for entry in files["tokenizer.json"]["added_tokens"]]
    files["tokenizer_config.json"].update(model_max_length=MAX_LENGTH, additional_special_tokens=markers)
    return files
