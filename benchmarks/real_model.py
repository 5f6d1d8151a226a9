"""A checkpoint folder with MiniCPM-o 4.5's real dimensions and no weights, for ``load_format: dummy``.

The toy checkpoint's own files with the real widths in them. Its tokenizer gains made-up words up to the real
vocabulary's size, so that every token that random weights choose has a text.
"""

import itertools
import json
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toy_model import configs, vocabulary, write

VOCABULARY = 151_748
MAX_LENGTH = 40_960
SLICE_SIDE = 448
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 4096, "intermediate_size": 12_288, "num_hidden_layers": 36,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
    "max_position_embeddings": MAX_LENGTH, "image_size": SLICE_SIDE, "dtype": "bfloat16",
}  # fmt: skip
VISION = {
    "hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27, "num_attention_heads": 16,
    "image_size": 980,
}  # fmt: skip
AUDIO = {
    "d_model": 1024, "encoder_layers": 24, "encoder_attention_heads": 16, "encoder_ffn_dim": 4096,
    "decoder_attention_heads": 16, "decoder_ffn_dim": 4096,
}  # fmt: skip


def ensure(folder: Path) -> Path:
    """Write the folder, over what is there; returns it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, value in contents().items():
        (folder / name).write_bytes(value)
    return folder


def contents() -> dict[str, bytes]:
    """Every file by name; no weights."""
    preprocessor = {**configs.preprocessor_config(), "scale_resolution": SLICE_SIDE}
    described = {
        "config.json": model_config(),
        "preprocessor_config.json": preprocessor,
        "generation_config.json": configs.generation_config(),
        "tokenizer.json": tokenizer_json(),
        "tokenizer_config.json": vocabulary.tokenizer_config(MAX_LENGTH),
    }
    files = {name: json.dumps(value).encode() for name, value in described.items()}
    here = Path(write.__file__).parent
    files["chat_template.jinja"] = (here / "chat_template.jinja").read_bytes()
    files.update({name: (here / "checkpoint_code" / name).read_bytes() for name in configs.CODE_FILES})
    return files


def model_config() -> dict[str, Any]:
    """The toy's config.json at the real sizes."""
    toy = configs.model_config()
    return {
        **toy,
        **SIZES,
        "slice_config": {**toy["slice_config"], "scale_resolution": SLICE_SIDE},
        "vision_config": {**toy["vision_config"], **VISION},
        "audio_config": {**toy["audio_config"], **AUDIO},
    }


def tokenizer_json() -> dict[str, Any]:
    """The toy's tokenizer up to the real size."""
    return enlarge(vocabulary.tokenizer_json(), vocabulary.vocabulary(), VOCABULARY)


def enlarge(tokenizer: dict[str, Any], known: Mapping[str, int], size: int) -> dict[str, Any]:
    """The tokenizer with words of four letters, each after a space, up to ``size``; ``known`` keep ids."""
    words = (
        vocabulary.spell(f" q{''.join(letters)}")
        for letters in itertools.product(string.ascii_lowercase, repeat=4)
    )
    fresh = (word for word in words if word not in known)
    more = dict(zip(fresh, range(len(known), size), strict=False))
    # Ids of the special tokens lie between; with them in the model's own table each keeps its own.
    tokenizer["model"]["vocab"] = {**known, **more}
    return tokenizer
