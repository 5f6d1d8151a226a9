"""Llama 4 in benchmarks/serving.py: its checkpoint, cases, servers and targets. Needs nothing."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import llama4_serving, real_llama4
from benchmarks.contenders import GRAPHS_OFF, GRAPHS_ON, Contender, Setup
from benchmarks.encode_call import noise
from benchmarks.llama4_serving import TILES, VLLM_OFF, VLLM_ON
from deployments.families.llama4 import tiles_key
from deployments.families.registry import load_family


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    return llama4_serving.on_gpu(tmp_path_factory.mktemp("real"), dense=False)


@pytest.fixture
def servers(setup: Setup) -> dict[str, Contender]:
    return llama4_serving.contenders(setup)


def test_pictures_become_the_tiles_that_they_are_named_after(setup: Setup) -> None:
    """A picture of four tiles is three and the whole, for the real encoder as for the tiny one."""
    for model, real in ((setup.model, True), (llama4_serving.on_cpu().model, False)):
        family = load_family(model)
        for kind in llama4_serving.plan(real=real).staged:
            assert kind.image_px is not None
            height, width = kind.image_px
            assert family.media_key("vision", noise(0, width, height)) == tiles_key(TILES[kind.name])


def test_the_random_checkpoint_has_a_text_for_every_logit(setup: Setup) -> None:
    """As many texts as logits, each id once, and the markers of pictures where the config says they are."""
    folder = Path(setup.model)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    table = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    assert sorted(table.values()) == list(range(config["text_config"]["vocab_size"]))
    assert table["<|patch|>"] == config["image_token_index"]


def test_a_client_that_makes_up_prompts_knows_the_markers(setup: Setup) -> None:
    """Every marker is among the tokenizer's special ones, so that no random prompt asks for a picture."""
    from vllm.tokenizers import get_tokenizer

    assert {"<|image|>", "<|patch|>", "<|tile_x_separator|>"} <= set(
        get_tokenizer(setup.model).all_special_tokens
    )


@pytest.mark.parametrize("dense", [False, True])
def test_vllm_finds_the_experts_where_they_are_wanted(dense: bool, tmp_path: Path) -> None:
    """The one layer has experts as upstream's rule has it, or none where there are to be none."""
    from transformers import AutoConfig

    text = AutoConfig.from_pretrained(str(real_llama4.ensure(tmp_path, dense=dense))).text_config
    step = text.interleave_moe_layer_step
    assert (step > 0 and 1 % step == 0) is not dense
    assert text.num_hidden_layers == 1
    assert text.num_experts_per_tok == 1  # upstream's kernel for experts takes no second one of Llama 4


def test_graphs_are_all_that_differs_between_a_pair(servers: dict[str, Contender]) -> None:
    """vLLM's two rows differ in the switch of its encoder graphs, ours in the switch of ours."""
    off, on = servers[VLLM_OFF].engine(), servers[VLLM_ON].engine()
    assert on["compilation_config"] == {**off["compilation_config"], "cudagraph_mm_encoder": True}
    assert {k: v for k, v in on.items() if k != "compilation_config"} == {
        k: v for k, v in off.items() if k != "compilation_config"
    }
    ours_off, ours_on = servers[GRAPHS_OFF].args(), servers[GRAPHS_ON].args()
    assert (ours_off.pop("graphs"), ours_on.pop("graphs")) == (
        {"vision": {"enabled": False}},
        {"vision": {"enabled": True}},
    )
    assert ours_off == ours_on


def test_a_run_finds_itself_again_in_its_file(setup: Setup) -> None:
    """What two runs must share to add to each other is the same after a way through JSON, experts in it."""
    shared = {"engine": setup.engine, **setup.about}
    assert json.loads(json.dumps(shared)) == shared
    assert shared["language_model"] != real_llama4.language_model(dense=True)


def test_everything_fits_one_gpu(setup: Setup, servers: dict[str, Contender]) -> None:
    """The Scout config is for five GPUs; here encoder and decoder share one, undivided."""
    shares = [of["ray_actor_options"]["num_gpus"] for of in setup.deployments.values()]
    assert set(setup.deployments) == {"VisionEncoder", "Decoder"}
    assert sum(shares) <= 1
    engine = servers[GRAPHS_ON].args()["decoder"]["engine_args"]
    assert (engine["tensor_parallel_size"], engine["distributed_executor_backend"]) == (1, "uni")


@pytest.mark.parametrize("real", [True, False])
def test_the_published_ratios_are_asked_of_both(real: bool) -> None:
    """Every case of the core has the claim's two ratios, of GraphServe and of vLLM, and no other case has."""
    plan = llama4_serving.plan(real=real)
    wanted = {
        (case.name, on, figure, bound)
        for case in plan.core
        for on in (GRAPHS_ON, VLLM_ON)
        for figure, bound in (("requests_per_s", ">= 1.22"), ("median_ttft_ms", "<= 0.65"))
    }
    assert {(t.case, t.ours, t.figure, t.bound) for t in plan.targets} == wanted


class LoggedServer:
    """A server of which only the log is looked at."""

    def __init__(self, log: Path, text: str) -> None:
        self.log = log
        log.write_text(text)


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("INFO Encoder CUDA graph capture complete. Captured 7 graphs across 1 paths.\n", 7),
        ("INFO ready\n", 0),
    ],
)
def test_what_upstream_captured_is_read_from_its_log(
    servers: dict[str, Contender], tmp_path: Path, text: str, held: int
) -> None:
    """The number that its engine logs, none without such a line, and nothing where none were asked for."""
    server: Any = LoggedServer(tmp_path / "log", text)
    assert servers[VLLM_ON].encoder_graphs(server) == {"held": held, "hits": None}
    assert servers[VLLM_OFF].encoder_graphs(server) is None
