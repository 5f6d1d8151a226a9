"""Serve's own knowledge of an application's replicas, and of the one that this process is."""

from dataclasses import dataclass

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


def replica_ids(app_name: str, deployments: tuple[str, ...]) -> set[str]:
    """Ids of every replica that exists (starting ones included) of these deployments."""
    client = _get_global_client()
    details = client.get_serve_details()
    known = details["applications"][app_name]["deployments"]
    return {
        replica["replica_id"] for name in deployments for replica in known.get(name, {}).get("replicas", [])
    }
