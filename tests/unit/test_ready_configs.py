"""The configs that come with the project are good ones. Needs nothing."""

from pathlib import Path

import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from app.config import AppConfig

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


def test_the_variant_that_shares_a_gpu_is_good_too() -> None:
    """The commented values at the end of minicpmo-4_5.yaml are YAML, and their fractions fit one GPU."""
    text = (ROOT / "configs" / "minicpmo-4_5.yaml").read_text(encoding="utf-8")
    lines = [line[1:] for line in text.splitlines() if line.startswith("#")]
    start = lines.index("     deployments:")
    variant = yaml.safe_load("\n".join(lines[start:]))
    shares = [entry["ray_actor_options"]["num_gpus"] for entry in variant["deployments"]]
    assert len(shares) == 3
    assert sum(shares) <= 1


def test_the_decoder_has_as_many_gpus_as_it_divides_over() -> None:
    """In llama4-scout.yaml Ray gives the decoder the GPUs that vLLM then asks for."""
    config = yaml.safe_load((ROOT / "configs" / "llama4-scout.yaml").read_text(encoding="utf-8"))
    (app,) = config["applications"]
    decoder = next(entry for entry in app["deployments"] if entry["name"] == "Decoder")
    wanted = app["args"]["decoder"]["engine_args"]["tensor_parallel_size"]
    assert decoder["ray_actor_options"]["num_gpus"] == wanted == 4
