"""The application on the real checkpoint's own configuration, tokenizer and processor code.

Runs when GRAPHSERVE_MINICPMO_FILES names a folder with MiniCPM-o 4.5's public files (config code,
tokenizer, ``preprocessor_config.json``, ``processing_minicpmo.py``; no weights are needed). Widths and
weights are the toy's, vocabulary, slicing at 448 px and placeholders the real model's.
"""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.asking import check_parity
from tests.cases import CASES
from tests.servers import Server, client, running_app, running_undivided
from toy_model.write import ensure

VARIABLE = "GRAPHSERVE_MINICPMO_FILES"
VOCABULARY = 151_748
POSITIONS = 70 * 70

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(VARIABLE not in os.environ, reason=f"{VARIABLE} names no folder of the real files"),
]


def reduced_checkpoint(files: Path, folder: Path) -> Path:
    """The real files with a config of the toy's widths, and random weights that fit it."""
    toy = ensure()
    target = folder / "minicpmo"
    shutil.copytree(files, target, ignore=shutil.ignore_patterns("*.safetensors*", "*.bin", "tokenizer.json"))
    config = json.loads((toy / "config.json").read_text())
    config["vocab_size"] = VOCABULARY
    config["image_size"] = 448
    config["slice_config"]["scale_resolution"] = 448
    config["vision_config"]["image_size"] = 980
    config["eos_token_id"], config["bos_token_id"] = 151_645, 151_643
    (target / "config.json").write_text(json.dumps(config))
    weights = load_file(toy / "model.safetensors")
    rng = np.random.default_rng(0)
    width = config["hidden_size"]
    shapes = {
        "llm.model.embed_tokens.weight": (VOCABULARY, width),
        "llm.lm_head.weight": (VOCABULARY, width),
        "vpm.embeddings.position_embedding.weight": (POSITIONS, config["vision_config"]["hidden_size"]),
    }
    for name, shape in shapes.items():
        weights[name] = rng.standard_normal(shape, dtype=np.float32) * weights[name].std()
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    return target


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return reduced_checkpoint(Path(os.environ[VARIABLE]), tmp_path_factory.mktemp("real"))


@pytest.fixture(scope="module")
def real_app(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    args = {
        "model": str(checkpoint),
        "trust_remote_code": True,
        "served_model_name": "graphserve-toy",
    }
    with running_app(tmp_path_factory.mktemp("app"), args) as server:
        yield server


@pytest.fixture(scope="module")
def real_undivided(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_undivided(tmp_path_factory.mktemp("undivided"), str(checkpoint)) as server:
        yield server


@pytest.mark.parametrize("name", CASES)
def test_tokens_equal_the_undivided_run(real_app: Server, real_undivided: Server, name: str) -> None:
    """With the real processor and tokenizer each case's tokens equal vLLM's own, whole and streamed."""
    check_parity(client(real_app), client(real_undivided), CASES[name])
