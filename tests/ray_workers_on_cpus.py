"""vLLM's CPU platform with the one word that its Ray executor asks for: what a bundle of a worker holds.

Upstream's CPU platform names no resource, so that its Ray executor refuses to start ("current platform cpu
does not support ray"). With GPUs that Ray is told of the same executor places CPU workers in the bundles of a
placement group. Importing the module loads no vLLM.
"""

import json
import os
from pathlib import Path
from typing import Any

from tests.servers import ROOT

CLASS = "RayWorkersOnCpus"


def plugin() -> str:
    """What vLLM's entry point for platforms wants: the class by its path."""
    return f"{__name__}.{CLASS}"


def __getattr__(name: str) -> Any:
    if name != CLASS:
        raise AttributeError(name)
    from vllm.platforms.cpu import CpuPlatform

    globals()[CLASS] = type(CLASS, (CpuPlatform,), {"ray_device_key": "GPU", "__module__": __name__})
    return globals()[CLASS]


def environment(folder: Path, workers: int) -> dict[str, str]:
    """Variables by which every process of an application finds the platform, and Ray that many GPUs.

    The platform is an installed distribution, written below ``folder``.
    """
    site = folder / "ray-workers-on-cpus"
    info = site / "ray_workers_on_cpus-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: ray-workers-on-cpus\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[vllm.platform_plugins]\nray_on_cpus = {__name__}:plugin\n")
    paths = [str(ROOT), str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths), "RAY_OVERRIDE_RESOURCES": json.dumps({"GPU": workers})}
