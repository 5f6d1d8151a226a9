"""The manifest for KubeRay. Needs nothing; with the CRD's file, its schema is checked too."""

import os
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from app.config import AppConfig
from app.serve import ENVIRONMENT

ROOT = Path(__file__).parents[2]
MANIFEST = yaml.safe_load((ROOT / "deploy" / "kuberay.yaml").read_text(encoding="utf-8"))
SERVE = yaml.safe_load(MANIFEST["spec"]["serveConfigV2"])
CRD_VARIABLE = "GRAPHSERVE_RAYSERVICE_CRD"


def deployments(config: dict[str, Any]) -> dict[str, dict[str, Any]]:
    (app,) = config["applications"]
    return {entry["name"]: entry for entry in app["deployments"]}


def test_what_is_served_is_a_good_config() -> None:
    """Serve's own schema takes the embedded config, ours its args: the GPU config's but HAProxy."""
    (app,) = ServeDeploySchema.model_validate(SERVE).applications
    args = AppConfig.model_validate(app.args)
    ready = yaml.safe_load((ROOT / "configs" / "minicpmo-4_5.yaml").read_text(encoding="utf-8"))
    assert args == AppConfig.model_validate({**ready["applications"][0]["args"], "haproxy": False})
    assert set(deployments(SERVE)) == set(deployments(ready))
    assert deployments(SERVE)["Decoder"]["graceful_shutdown_timeout_s"] == args.request_deadline_s


def test_every_gpu_deployment_has_a_group_of_its_own_with_room_for_it() -> None:
    """The groups' labels are those that deployments select, and a group has as many GPUs as are asked for."""
    groups = {
        group["labels"]["graphserve"]: group
        for group in MANIFEST["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    }
    pinned = {name: entry for name, entry in deployments(SERVE).items() if "ray_actor_options" in entry}
    wanted = {entry["ray_actor_options"]["label_selector"]["graphserve"]: entry for entry in pinned.values()}
    assert set(pinned) == {"VisionEncoder", "AudioEncoder", "Decoder"}
    assert set(wanted) == set(groups)
    for label, entry in wanted.items():
        (container,) = groups[label]["template"]["spec"]["containers"]
        gpus = groups[label]["replicas"] * int(container["resources"]["limits"]["nvidia.com/gpu"])
        assert gpus == entry["num_replicas"] * entry["ray_actor_options"]["num_gpus"]


def test_every_node_starts_in_the_environment_of_make_serve() -> None:
    """Each node has a proxy of Serve's, and each of them the guard, which comes by the environment."""
    cluster = MANIFEST["spec"]["rayClusterConfig"]
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        (container,) = group["template"]["spec"]["containers"]
        assert {entry["name"]: entry["value"] for entry in container["env"]} == ENVIRONMENT


def strict(schema: Any) -> Any:
    """The schema as Kubernetes reads it strictly: a key that no property names is an error."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {key: strict(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        closed.setdefault("additionalProperties", False)
    return closed


def test_the_manifest_fits_the_crds_schema() -> None:
    """KubeRay's own schema of a RayService takes the manifest, and refuses it with a key misspelt."""
    if not (path := os.environ.get(CRD_VARIABLE)):
        pytest.skip(
            f"{CRD_VARIABLE} names no file: KubeRay's ray.io_rayservices.yaml is not part of this project"
        )
    crd = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    (version,) = [v for v in crd["spec"]["versions"] if v["name"] == "v1"]
    schema = strict(version["schema"]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}
    jsonschema.validate(MANIFEST, schema)
    wrong = {**MANIFEST, "spec": {**MANIFEST["spec"], "serveConfigV3": ""}}
    with pytest.raises(jsonschema.ValidationError, match="serveConfigV3"):
        jsonschema.validate(wrong, schema)
