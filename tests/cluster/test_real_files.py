"""The application on the real checkpoint's own configuration, tokenizer and processor code.

Runs when GRAPHSERVE_MINICPMO_FILES names a folder with MiniCPM-o 4.5's public files: its Python modules,
tokenizer, ``preprocessor_config.json`` (no weights are needed). Widths and weights are the toy's, vocabulary,
slicing at 448 px and placeholders the real model's. The undivided server answers first and ends before the
application starts, for both at once take 12 GB.
"""

import importlib
import json
import os
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file

from tests.asking import Said, ask, check_said, text, user
from tests.cases import CASES as SMALL_CASES
from tests.cases import picture
from tests.servers import Server, client, running_app, running_undivided
from toy_model.write import ensure

VARIABLE = "GRAPHSERVE_MINICPMO_FILES"
VOCABULARY = 151_748
POSITIONS = 70 * 70
SLICE_TOKENS = 64
# 1300 x 900 is cut into an overview and six slices; the toy's many slices are one at 448 px.
CASES = {**SMALL_CASES, "image_1300x900": user(picture((1300, 900), 7), text("What is this?"))}

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
def expected(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Said]:
    """What vLLM's undivided server says in each case."""
    with running_undivided(tmp_path_factory.mktemp("undivided"), str(checkpoint)) as server:
        return {name: ask(client(server), messages) for name, messages in CASES.items()}


@pytest.fixture(scope="module")
def real_app(
    checkpoint: Path, expected: dict[str, Said], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    args = {
        "model": str(checkpoint),
        "trust_remote_code": True,
        "served_model_name": "graphserve-toy",
    }
    with running_app(tmp_path_factory.mktemp("app"), args) as server:
        yield server


def test_the_weights_have_the_real_model_s_names(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names and shapes that upstream's loader takes are those of the checkpoint's own model code.

    The loader refuses a name that it does not know and a weight that stays unset, so the servers' start is
    the other half of the proof.
    """
    monkeypatch.syspath_prepend(str(checkpoint.parent))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # third-party code
        config = importlib.import_module(f"{checkpoint.name}.configuration_minicpmo").MiniCPMOConfig
        model = importlib.import_module(f"{checkpoint.name}.modeling_minicpmo").MiniCPMO
        with torch.device("meta"):
            real = model(config(**json.loads((checkpoint / "config.json").read_text())))
    ours = load_file(checkpoint / "model.safetensors")
    assert {name: tuple(weight.shape) for name, weight in real.state_dict().items()} == {
        name: weight.shape for name, weight in ours.items()
    }


def test_no_two_cases_have_one_answer(expected: dict[str, Said]) -> None:
    """Different media and words turn these random weights too, and the large picture takes seven slices."""
    assert len({said.tokens for said in expected.values()}) == len(CASES)
    assert expected["image_1300x900"].prompt_tokens > 7 * SLICE_TOKENS


@pytest.mark.parametrize("name", CASES)
def test_tokens_equal_the_undivided_run(real_app: Server, expected: dict[str, Said], name: str) -> None:
    """With the real processor and tokenizer each case's tokens equal vLLM's own, whole and streamed."""
    check_said(client(real_app), expected[name], CASES[name])
