"""Memory of a server's processes by what each is for: on the host, and on the GPU."""

import contextlib
import subprocess
from typing import Any

import psutil

from benchmarks.process_time import part_of
from tests.servers import Server

MIB = 1 << 20


def memory_mib(server: Server) -> list[dict[str, Any]]:
    """Each process with its part, its unshared host memory and its GPU memory; the largest first.

    GPU memory is None where the driver does not name processes.
    """
    on_gpu = gpu_mib_by_process()
    found = []
    for process in (psutil.Process(server.process.pid), *server.processes()):
        with contextlib.suppress(psutil.Error):
            found.append(
                {
                    "part": part_of(process.cmdline()),
                    "host_mib": process.memory_full_info().uss // MIB,
                    "gpu_mib": on_gpu.get(process.pid) if on_gpu is not None else None,
                }
            )
    return sorted(found, key=lambda of: (-(of["gpu_mib"] or 0), -of["host_mib"]))


def gpu_mib_by_process() -> dict[int, int] | None:
    """MiB by process id, as ``nvidia-smi`` says; None without it."""
    rows = _smi("--query-compute-apps=pid,used_memory")
    if rows is None:
        return None
    return {int(pid): int(mib) for pid, mib in rows if pid.isdigit() and mib.isdigit()}


def used_mib() -> int | None:
    """Memory in use on the first GPU, whoever uses it."""
    rows = _smi("--query-gpu=memory.used")
    return int(rows[0][0]) if rows else None


def _smi(query: str) -> list[list[str]] | None:
    try:
        done = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
