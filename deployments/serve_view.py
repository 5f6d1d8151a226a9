"""Serve's own knowledge of an application's replicas."""

from ray.serve._private.api import _get_global_client


def replica_ids(app_name: str, deployments: tuple[str, ...]) -> set[str]:
    """Ids of every replica that exists (starting ones included) of these deployments."""
    client = _get_global_client()
    details = client.get_serve_details()
    known = details["applications"][app_name]["deployments"]
    return {
        replica["replica_id"] for name in deployments for replica in known.get(name, {}).get("replicas", [])
    }
