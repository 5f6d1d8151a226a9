"""Serve refuses to build an application whose decoder would not have the GPUs it divides over. Needs: Ray."""

import json
from pathlib import Path

from tests.servers import starting_app, wait_for


def test_a_wrong_number_of_gpus_is_refused_at_build(tmp_path: Path) -> None:
    """``serve run`` says both numbers with their paths, and no replica is started."""
    args = {"decoder": {"engine_args": {"tensor_parallel_size": 2, "distributed_executor_backend": "ray"}}}
    bundles = {"placement_group_bundles": [{"GPU": 1}], "ray_actor_options": {"num_cpus": 0}}
    env = {"RAY_OVERRIDE_RESOURCES": json.dumps({"GPU": 2})}
    says = (
        "decoder.engine_args divides the model over 2 GPUs (tensor_parallel_size 2), "
        "but deployments.Decoder.placement_group_bundles has 1 with a GPU: give it 2 of {GPU: 1}"
    )
    with starting_app(tmp_path, args, {"Decoder": bundles}, env=env) as server:
        assert wait_for(lambda: says in server.tail(100_000)), server.tail()
        assert "ServeReplica" not in server.tail(100_000)
