"""Serve's own knowledge of an application's replicas, and of the one that this process is."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray import serve
from ray.serve._private.api import _get_global_client


@dataclass(frozen=True)
class ReplicaPlace:
    """Which replica of which deployment this is, and on which node."""

    replica_id: str
    deployment: str
    node_id: str

    @classmethod
    def current(cls) -> "ReplicaPlace":
        """Inside a replica: its own."""
        context = serve.get_replica_context()
        return cls(context.replica_id.unique_id, context.deployment, ray.get_runtime_context().get_node_id())


def deployments(app_name: str) -> list[dict[str, Any]]:
    """Every deployment of an application: name, status, wished number of replicas, and each replica that
    exists (starting ones included) with its state, all in Serve's words.
    """
    details = _get_global_client().get_serve_details()
    known = details["applications"][app_name]["deployments"]
    return [
        {
            "name": name,
            "status": known[name]["status"],
            "wanted": known[name]["target_num_replicas"],
            "replicas": [
                {"replica_id": replica["replica_id"], "state": replica["state"]}
                for replica in known[name]["replicas"]
            ],
        }
        for name in sorted(known)
    ]


def configs_being_deployed() -> list[Mapping[str, Any]]:
    """The applications of the config that Serve has been given, each as it is written there.

    Serve keeps them before it calls a builder, which is given ``args`` alone. Empty where Ray or Serve does
    not run, as in a plain Python program.
    """
    client = _get_global_client(raise_if_no_controller_running=False) if ray.is_initialized() else None
    if client is None:
        return []
    applications = client.get_serve_details()["applications"].values()
    return [config for app in applications if (config := app.get("deployed_app_config"))]


def gpus_in_cluster() -> float:
    """GPUs that Ray counts, given away or not; 0 where it does not run."""
    return float(ray.cluster_resources().get("GPU", 0)) if ray.is_initialized() else 0.0
