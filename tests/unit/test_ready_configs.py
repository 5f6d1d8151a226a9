"""The configs that come with the project are good ones. Needs nothing."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from ray.serve._private.autoscaling_state import _resolve_policy_callable
from ray.serve.config import AutoscalingConfig
from ray.serve.schema import DeploymentSchema, ServeDeploySchema

from app.build import decoder_gpus
from app.config import AppConfig
from policies.decoder_gpus import problem

ROOT = Path(__file__).parents[2]
CONFIGS = [ROOT / "serve_config.yaml", *sorted((ROOT / "configs").glob("*.yaml"))]
DEPLOYMENTS = {"Ingress", "VisionEncoder", "AudioEncoder", "Decoder", "GraphController"}


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_config_is_one_that_serve_and_the_builder_take(path: Path) -> None:
    """Serve's own schema takes the file, ours takes its args, and it overrides deployments that exist."""
    schema = ServeDeploySchema.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    (app,) = schema.applications
    AppConfig.model_validate(app.args)
    assert {deployment.name for deployment in app.deployments} <= DEPLOYMENTS


def variant(name: str, first: str) -> Any:
    """The values in the comments at the end of a config, from their first line on."""
    text = (ROOT / "configs" / name).read_text(encoding="utf-8")
    lines = [line[1:] for line in text.splitlines() if line.startswith("#")]
    return yaml.safe_load("\n".join(lines[lines.index(first) :]))


def test_the_encoders_of_autoscale_scale_by_their_own_work_and_nothing_else_does() -> None:
    """Serve makes our policy of each encoder's block in autoscale.yaml; a busy report gives more replicas."""
    config = yaml.safe_load((ROOT / "configs" / "autoscale.yaml").read_text(encoding="utf-8"))
    (app,) = ServeDeploySchema.model_validate(config).applications
    scaled = {d.name: d.autoscaling_config for d in app.deployments if isinstance(d.autoscaling_config, dict)}
    assert set(scaled) == {"VisionEncoder", "AudioEncoder"}
    for block in scaled.values():
        settings = AutoscalingConfig.model_validate(block)
        policy = _resolve_policy_callable(settings.policy)
        ctx = SimpleNamespace(
            aggregated_metrics={"queued_s": {"a": 60.0}, "pending_items": {"a": 9.0}},
            target_num_replicas=1,
            capacity_adjusted_min_replicas=settings.min_replicas,
            capacity_adjusted_max_replicas=settings.max_replicas,
        )
        assert policy(ctx)[0] == settings.max_replicas > 1


def shares(name: str) -> dict[str, float]:
    """GPUs of each deployment in a config."""
    config = yaml.safe_load((ROOT / "configs" / name).read_text(encoding="utf-8"))
    (app,) = config["applications"]
    return {
        entry["name"]: entry["ray_actor_options"]["num_gpus"]
        for entry in app["deployments"]
        if "ray_actor_options" in entry
    }


def test_one_gpu_holds_all_three() -> None:
    """The fractions of minicpmo-4_5-one-gpu.yaml fit one GPU."""
    found = shares("minicpmo-4_5-one-gpu.yaml")
    assert set(found) == {"VisionEncoder", "AudioEncoder", "Decoder"}
    assert sum(found.values()) <= 1


def test_with_two_gpus_the_decoder_has_one_to_itself() -> None:
    """In minicpmo-4_5-two-gpus.yaml the encoders share one GPU, which leaves no room for the decoder."""
    found = shares("minicpmo-4_5-two-gpus.yaml")
    assert found["Decoder"] == 1
    assert 0 < found["VisionEncoder"] + found["AudioEncoder"] <= 1


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_the_decoder_has_as_many_gpus_as_it_divides_over(path: Path) -> None:
    """Serve gives the decoder the GPUs that vLLM then asks for, as the builder will check."""
    (app,) = yaml.safe_load(path.read_text(encoding="utf-8"))["applications"]
    gpus = decoder_gpus(app["deployments"], counted=True)
    assert problem(app["args"]["decoder"]["engine_args"], gpus) is None
    if path.name == "llama4-scout.yaml":
        assert gpus.own == app["args"]["decoder"]["engine_args"]["tensor_parallel_size"] == 4


def test_the_decoder_over_machines_has_a_bundle_for_each_worker() -> None:
    """The commented values at the end of llama4-scout.yaml are good ones, for Serve's schema too."""
    found = variant("llama4-scout.yaml", "     args:")
    (decoder,) = found["deployments"]
    DeploymentSchema.model_validate(decoder)
    gpus = decoder_gpus(found["deployments"], counted=True)
    assert len(gpus.in_bundles) == 4
    assert problem(found["args"]["decoder"]["engine_args"], gpus) is None
