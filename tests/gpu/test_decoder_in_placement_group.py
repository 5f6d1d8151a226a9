"""vLLM's Ray executor in the bundles that Serve made for the decoder's replica.

Needs: one NVIDIA GPU with 16 GB or more, Ray, vLLM's CUDA build.
"""

from pathlib import Path

import yaml

from tests.asking import ask, text, user
from tests.cases import picture
from tests.servers import ROOT, client, ray_workers, running_app

SHARE = 0.4


def test_the_worker_runs_in_the_bundle(tmp_path: Path) -> None:
    """The replica itself holds no GPU; its one worker is an actor on the bundle's, and answers."""
    source = "configs/toy-gpu.yaml"
    (app,) = yaml.safe_load((ROOT / source).read_text())["applications"]
    decoder = app["args"]["decoder"]
    decoder["engine_args"]["distributed_executor_backend"] = "ray"
    bundles = {
        "placement_group_bundles": [{"CPU": 0.1, "GPU": SHARE}],
        "ray_actor_options": {"num_cpus": 0, "num_gpus": 0},
    }
    env = {"VLLM_RAY_PER_WORKER_GPUS": str(SHARE)}
    with running_app(tmp_path, {"decoder": decoder}, {"Decoder": bundles}, source=source, env=env) as server:
        answers = [ask(client(server), user(text("Look"), picture(seed=seed))) for seed in (1, 2, 1)]
        assert answers[0] == answers[2] != answers[1]
        assert len(ray_workers(server)) == 1
        assert "Using the existing placement group" in server.log.read_text(errors="replace")
