"""The typed arguments of the application: what is wrong in a config is refused at build, by its path."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from app import build as build_module
from app.build import assemble, controller_options, decoder_options, identity
from app.config import SET_ELSEWHERE, AppConfig
from deployments.decoder import engine_options
from deployments.errors import GraphServeError
from policies.graph_options import BudgetOptions, OptionError
from tests.fakes import FakeFamily

ROOT = Path(__file__).parents[2]

WRONG = {
    "modle": ({"modle": "x"}, "modle"),
    "encoders": ({"encoders": {"max_batchsize": 4}}, "encoders.max_batchsize"),
    "decoder": ({"decoder": {"engine_arg": {}}}, "decoder.engine_arg"),
    "controller": ({"controller": {"periods": 1}}, "controller.periods"),
    "media": ({"media": {"limit": {}}}, "media.limit"),
    "limits": ({"media": {"limits": {"max_byts": 1}}}, "media.limits.max_byts"),
    "limits_type": ({"media": {"limits": {"max_bytes": "many"}}}, "media.limits.max_bytes"),
    "limits_value": ({"media": {"limits": {"max_bytes": 0}}}, "media.limits"),
    "fetch": ({"media": {"fetch": {"schemas": ["https"]}}}, "media.fetch.schemas"),
    "fetch_value": ({"media": {"fetch": {"schemes": ["gopher"]}}}, "media.fetch"),
    "type": ({"encoders": {"max_batch_size": "eight"}}, "encoders.max_batch_size"),
    "range": ({"request_deadline_s": 0}, "request_deadline_s"),
    "dtype": ({"dtype": "auto"}, "dtype"),
    "delays": ({"controller": {"first_delay_s": 9, "max_delay_s": 1}}, "controller"),
    "encoder": ({"graphs": {"video": {}}}, "graphs"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_named_by_its_path(name: str) -> None:
    """A typo, a wrong type or a wrong value fails at every level, and the error says where."""
    args, path = WRONG[name]
    with pytest.raises(ValidationError) as caught:
        AppConfig.model_validate(args)
    assert [".".join(map(str, error["loc"])) for error in caught.value.errors()] == [path]


@pytest.mark.parametrize("name", SET_ELSEWHERE)
def test_engine_arguments_that_are_ours_are_refused(name: str) -> None:
    """An engine argument that we would overwrite in silence is an error that names it."""
    with pytest.raises(ValidationError, match=rf"decoder.engine_args\n.*{name} cannot be set here"):
        AppConfig.model_validate({"decoder": {"engine_args": {name: "x"}}})


def test_every_argument_that_we_set_for_the_engine_is_among_them() -> None:
    """The list of refused engine arguments is the list of those the decoder sets last."""
    options = decoder_options(AppConfig(), "name")
    ours = engine_options(options, FakeFamily())
    overwritten = {k for k in ours if engine_options(_with(options, k), FakeFamily())[k] != "theirs"}
    assert overwritten == set(SET_ELSEWHERE)


def _with(options: Any, name: str) -> Any:
    from dataclasses import replace

    return replace(options, engine_args={name: "theirs"})


@pytest.mark.parametrize(
    ("args", "path"),
    [
        ({"graphs": {"vision": {"max_graph": 2}}}, "graphs.vision.max_graph"),
        ({"graphs": {"audio": {"min_capture_calls": 1}}}, "graphs.audio.min_capture_calls"),
        ({"graphs": {"vision": {"graph_batch_sizes": [0]}}}, "graphs.vision.graph_batch_sizes[0]"),
        ({"hf_overrides": {"encoder_cuda_graph_max": 2}}, "hf_overrides.encoder_cuda_graph_max"),
    ],
)
def test_wrong_graph_options_are_named_by_their_path(args: dict[str, Any], path: str) -> None:
    """Options of encoder graphs are checked at build, in our block and under upstream's keys."""
    with pytest.raises(OptionError) as caught:
        assemble(AppConfig.model_validate(args), "name", FakeFamily())
    assert caught.value.path == path


def test_the_builder_gets_the_typed_config() -> None:
    """Serve hands the builder our class only if its annotation is the class itself, not its name."""
    assert build_module.build.__annotations__["config"] is AppConfig
    assert "annotations" not in vars(build_module), "from __future__ import annotations"


def test_serve_itself_refuses_a_misspelt_argument() -> None:
    """What Serve calls with the config's args raises for a typo instead of passing a dict on."""
    from ray.serve._private.api import call_user_app_builder_with_args_if_necessary as call_builder

    with pytest.raises(ValidationError, match="modle"):
        call_builder(build_module.build, {"modle": "embedded"})


def test_the_shipped_config_is_valid_and_names_our_deployments() -> None:
    """serve_config.yaml holds arguments we know and overrides of deployments we have."""
    application = yaml.safe_load((ROOT / "serve_config.yaml").read_text())["applications"][0]
    AppConfig.model_validate(application["args"])
    names = {"Ingress", "VisionEncoder", "AudioEncoder", "Decoder", "GraphController"}
    assert {override["name"] for override in application["deployments"]} == names


def test_the_config_reaches_those_it_is_for() -> None:
    """Eager mode reaches the decoder, and the controller knows when a replica counts as stuck."""
    config = AppConfig.model_validate(
        {"enforce_eager": True, "encoders": {"stuck_after_s": 7}, "controller": {"window_s": 33}}
    )
    assert decoder_options(config, "name").engine_args["enforce_eager"] is True
    graphs = {spec.encoder: build_module.encoder_graphs(config, spec) for spec in FakeFamily.encoders}
    policy = controller_options(config, FakeFamily(), graphs).policy
    assert (policy.stuck_after_s, policy.window_s) == (7, 33)


@pytest.mark.parametrize(
    "changed",
    [{"model": "other"}, {"revision": "r"}, {"dtype": "float32"}, {"hf_overrides": {"query_num": 32}}],
)
def test_identity_changes_with_what_an_embedding_depends_on(changed: dict[str, Any]) -> None:
    """Two configs whose embeddings differ never share a media hash."""
    config = AppConfig(model="some")
    assert identity(config, FakeFamily()) == identity(AppConfig(model="some"), FakeFamily())
    assert identity(config.model_copy(update=changed), FakeFamily()) != identity(config, FakeFamily())


def test_identity_changes_with_the_processor_files(tmp_path: Path) -> None:
    """Another preprocessor_config.json in the same folder gives another media hash."""
    config = AppConfig(model=str(tmp_path))
    (tmp_path / "preprocessor_config.json").write_text('{"max_slice_nums": 9}')
    before = identity(config, FakeFamily())
    (tmp_path / "preprocessor_config.json").write_text('{"max_slice_nums": 4}')
    assert identity(config, FakeFamily()) != before


# ---- families with other graphs and other encoders ----


def tiny_llama4(**args: Any) -> tuple[AppConfig, Any]:
    from deployments.families.llama4 import Llama4

    return AppConfig.model_validate(args), Llama4(hidden_size=8)


def test_a_model_with_budget_graphs_gets_their_options() -> None:
    """Budgets come from our block or upstream's keys, and know the decoder's token limits."""
    config, family = tiny_llama4(
        graphs={"vision": {"max_items_per_batch": 3}},
        decoder={
            "engine_args": {
                "max_model_len": 4096,
                "max_num_batched_tokens": 8192,
                "compilation_config": {"encoder_cudagraph_token_budgets": [144, 720], "level": 3},
            }
        },
    )
    options = build_module.encoder_graphs(config, family.encoders[0])
    assert options == BudgetOptions(token_budgets=(144, 720), max_items_per_batch=3, decoder_tokens=4096)
    assert decoder_options(config, "name").engine_args["compilation_config"] == {"level": 3}
    told = controller_options(config, family, {"vision": options})
    assert told.encoders == {"VisionEncoder": ("vision", "items")}
    assert told.warm_graphs == {"VisionEncoder": 0}
    assert build_module.slots(options) == 0


@pytest.mark.parametrize("args", [{}, {"max_num_seqs": 4}])
def test_without_limits_of_the_decoder_the_encoders_own_count(args: dict[str, Any]) -> None:
    """0 stands for what the encoder process knows by itself."""
    assert build_module.decoder_tokens(args) == 0


def test_wrong_budget_options_are_named_by_their_path() -> None:
    """A key of the other kind of graph is an error that names it."""
    config, family = tiny_llama4(graphs={"vision": {"max_graphs": 4}})
    with pytest.raises(OptionError) as caught:
        assemble(config, "name", family)
    assert caught.value.path == "graphs.vision.max_graphs"


@pytest.mark.parametrize(
    ("args", "path"),
    [
        ({"graphs": {"audio": {"max_graphs": 4}}}, "graphs.audio"),
        ({"controller": {"warm_keys": {"audio": ["f500"]}}}, "controller.warm_keys.audio"),
    ],
)
def test_settings_of_an_encoder_that_the_model_lacks_are_refused(args: dict[str, Any], path: str) -> None:
    """Llama 4 has no audio: the builder says so instead of passing over what was meant."""
    config, family = tiny_llama4(**args)
    with pytest.raises(GraphServeError, match=f"{path}: llama4 has no audio encoder"):
        assemble(config, "name", family)


def test_no_audio_encoder_is_started_for_a_model_without_audio() -> None:
    """The bound application holds the encoders of the family and no other."""
    config, family = tiny_llama4(model="some", control_tokens="tokens")
    bound = assemble(config, "name", family)._bound_deployment
    assert list(bound.init_args[1]) == ["vision"]
    assert "AudioEncoder" not in bound.init_args[0].deployments


def test_an_unknown_tiny_model_is_refused_with_those_there_are() -> None:
    """A misspelt name is an error at build, not a search on the hub."""
    with pytest.raises(GraphServeError, match=r"there is no tiny-lama4; tiny checkpoints are .*tiny-llama4"):
        build_module.resolve_model(AppConfig(model="tiny-lama4"))


def _deployed(args: dict[str, Any], **decoder: Any) -> dict[str, Any]:
    return {"args": args, "deployments": [{"name": "Ingress"}, {"name": "Decoder", **decoder}]}


DIVIDED = {"decoder": {"engine_args": {"tensor_parallel_size": 4}}}


@pytest.mark.parametrize(
    ("deployed", "refused"),
    [
        ([], False),
        ([_deployed(DIVIDED, ray_actor_options={"num_gpus": 4})], False),
        ([_deployed(DIVIDED, ray_actor_options={"num_gpus": 2})], True),
        ([_deployed(DIVIDED)], True),
        ([_deployed({}, ray_actor_options={"num_gpus": 2})], False),  # another application's
        ([{"args": {"not": "ours"}}], False),
        ([{"args": DIVIDED}], True),
    ],
)
def test_gpus_are_compared_at_build(
    monkeypatch: pytest.MonkeyPatch, deployed: list[Any], refused: bool
) -> None:
    """The config that Serve was given says how many GPUs the Decoder gets; a wrong number fails the build."""
    monkeypatch.setattr(build_module.serve_view, "configs_being_deployed", lambda: deployed)
    monkeypatch.setattr(build_module.serve_view, "gpus_in_cluster", lambda: 8.0)
    config = AppConfig.model_validate(DIVIDED)
    if refused:
        with pytest.raises(GraphServeError, match=r"tensor_parallel_size 4.*num_gpus is"):
            build_module.build(config)
    else:
        build_module.refuse_wrong_gpus(config)
