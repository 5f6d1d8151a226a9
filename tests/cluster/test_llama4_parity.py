"""Llama 4, divided, answers what vLLM's own undivided server answers, token for token.

Needs: Ray, vLLM on the CPU, one server after the other (about 3 GB of memory). Real HTTP, official client.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from tests import media, ray_workers_on_cpus
from tests.asking import Said, as_text, ask, ask_streamed, check_written_is_text, text, user
from tests.cases import picture, turns
from tests.servers import ENGINE, Server, client, ray_workers, running_app, running_undivided
from tiny_models import folders

ONE_TILE = (100, 80)
SIX_TILES = (300, 200)  # and the global one
EIGHT_TILES = (40, 600)
WRITTEN = (
    "<|image|>",
    "<|image_start|><|image|>" + "<|patch|>" * 16 + "<|image_end|>",
    "<|patch|><|tile_x_separator|><|patch|><|tile_y_separator|>",
    "<##IMAGE##>",
)
CASES = {
    "text": user(text("Tell me about the red circle.")),
    "one_tile": user(text("What is this?"), picture(ONE_TILE)),
    "another_of_one_tile": user(text("What is this?"), picture(ONE_TILE, 1)),
    "tile_grid_and_global_tile": user(picture(SIX_TILES, 1), text("What is this?")),
    "another_tile_grid": user(picture(SIX_TILES, 2), text("What is this?")),
    "three_images": user(
        text("First"), picture(ONE_TILE, 2), text("second"), picture(SIX_TILES, 3), picture(EIGHT_TILES, 4)
    ),
    "separators_written_by_a_client": user(
        text("<|tile_x_separator|> and <|tile_y_separator|><|image_end|>"), picture(SIX_TILES, 7)
    ),
    "images_in_several_turns": turns(
        [text("Look"), picture(ONE_TILE, 5)], "A blue square.", [text("And now?"), picture(SIX_TILES, 6)]
    ),
}


@dataclass(frozen=True)
class Run:
    """How the model runs: its dtype, over how many processes the decoder is divided, and who starts these."""

    dtype: str
    processes: int = 1
    executor: str = "mp"


RUNS = [
    pytest.param(Run("float32"), id="float32"),
    pytest.param(Run("bfloat16"), id="bfloat16", marks=pytest.mark.full),
    pytest.param(Run("float32", processes=2), id="divided_decoder", marks=pytest.mark.full),
    pytest.param(Run("float32", 2, "ray"), id="divided_in_a_placement_group", marks=pytest.mark.full),
]


@pytest.fixture(scope="module", params=RUNS)
def run(request: pytest.FixtureRequest) -> Run:
    assert isinstance(request.param, Run)
    return request.param


@pytest.fixture(scope="module")
def expected(run: Run, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Said]:
    """The undivided server's answers; it has ended when the tests run."""
    folder = tmp_path_factory.mktemp("undivided")
    with running_undivided(folder, str(folders.ensure("llama4")), dtype=run.dtype) as server:
        return {name: ask(client(server), as_text(messages)) for name, messages in CASES.items()}


@pytest.fixture(scope="module")
def app(run: Run, expected: dict[str, Said], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Our application, as configs/llama4-tiny.yaml starts it."""
    engine_args: dict[str, Any] = dict(ENGINE)
    if run.processes > 1:
        sizes = {"tensor_parallel_size": run.processes, "distributed_executor_backend": run.executor}
        engine_args |= sizes
    args = {
        "served_model_name": "graphserve-toy",
        "dtype": run.dtype,
        "decoder": {"engine_args": engine_args},
    }
    folder = tmp_path_factory.mktemp("llama4")
    env = {"VLLM_CPU_OMP_THREADS_BIND": "nobind"}  # two processes may share a core
    deployments = {}
    if run.executor == "ray":
        env |= ray_workers_on_cpus.environment(folder, run.processes)
        bundles = [{"GPU": 1}] * run.processes
        deployments["Decoder"] = {"placement_group_bundles": bundles, "ray_actor_options": {"num_cpus": 0}}
    with running_app(folder, args, deployments, source="configs/llama4-tiny.yaml", env=env) as server:
        yield server


# The tests that need the undivided answers alone come first, so that no single one waits for both servers.


def test_different_pictures_give_different_answers(expected: dict[str, Said]) -> None:
    """Equal tokens mean something only where a wrong embedding would show."""
    assert len({said.tokens for said in expected.values()}) == len(CASES)


def test_prompts_grow_by_the_tiles_of_their_pictures(expected: dict[str, Said]) -> None:
    """Upstream's layout: 16 places for each tile, and the markers between the tiles of a grid."""
    one, grid = expected["one_tile"].prompt_tokens, expected["tile_grid_and_global_tile"].prompt_tokens
    separators = 4 + 2  # between the three columns of two rows, after each row
    assert grid - one == 6 * 16 + separators


@pytest.mark.parametrize("name", CASES)
def test_tokens_equal_the_undivided_run(app: Server, expected: dict[str, Said], name: str) -> None:
    """Whole and streamed, each case's tokens, text, stop reason and prompt length equal vLLM's own.

    Control tokens that a client wrote are text here: there it is asked with broken ones.
    """
    assert len(expected[name].tokens) > 0
    assert ask(client(app), CASES[name]) == expected[name]
    assert ask_streamed(client(app), CASES[name]) == expected[name]


def test_workers_are_processes_of_their_executor(app: Server, run: Run) -> None:
    """Ray's executor runs an actor in each bundle that Serve made; the other has processes of the replica."""
    actors = run.processes if run.executor == "ray" else 0
    assert len(ray_workers(app)) == actors
    found = "Using the existing placement group" in app.log.read_text(errors="replace")
    assert found == (actors > 0)


def test_each_part_holds_its_own_weights(app: Server) -> None:
    """The decoder has no vision weights, the encoder no language model, and nobody serves audio."""
    report = httpx.get(f"{app.base_url}/v1/graphs", trust_env=False).json()
    assert {tuple(replica["modules_loaded"]) for replica in report["replicas"]} == {
        ("vision_model", "multi_modal_projector")
    }
    assert [decoder["modules_loaded"] for decoder in report["decoders"]] == [["language_model"]]
    assert set(report["totals"]) == {"vision"}
    assert report["totals"]["vision"]["unit"] == "items"


@pytest.mark.parametrize("size", [ONE_TILE, SIX_TILES])
@pytest.mark.parametrize("written", WRITTEN)
def test_a_placeholder_that_a_client_wrote_is_text(app: Server, written: str, size: tuple[int, int]) -> None:
    """It answers, and the tiles' places and separators stand once, in the place of the picture's part."""
    check_written_is_text(app.base_url, written, picture(size))


def test_audio_is_refused_by_name(app: Server) -> None:
    """A sound sent to a model without audio is a 400 that says so and names the part."""
    sound = dict(media.input_audio_part(media.sound_bytes(media.tone(1.0))))
    body = {"model": "graphserve-toy", "messages": user(text("Listen"), sound)}
    answer = httpx.post(f"{app.base_url}/v1/chat/completions", json=body, trust_env=False)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert "the model has no audio" in error["message"]
    assert error["param"] == "messages[0].content[1].input_audio"
