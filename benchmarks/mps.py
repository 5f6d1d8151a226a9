"""NVIDIA's Multi-Process Service: kernels of several processes run on one GPU side by side, not in turns.

A CUDA program that does not find the daemon goes on without it and says nothing, so the clients are counted.
"""

import contextlib
import os
import subprocess
import tempfile
from collections.abc import Iterator, Mapping

CONTROL = "nvidia-cuda-mps-control"
TIMEOUT_S = 20.0


@contextlib.contextmanager
def running() -> Iterator[dict[str, str]]:
    """The daemon, as a context that gives the variables by which a process becomes its client.

    Raises FileNotFoundError where the driver's program is missing, CalledProcessError where it fails.
    """
    # Of a short path, for sockets lie in it.
    with tempfile.TemporaryDirectory(prefix="mps-", ignore_cleanup_errors=True) as folder:
        variables = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        subprocess.run([CONTROL, "-d"], env={**os.environ, **variables}, check=True, timeout=TIMEOUT_S)
        try:
            yield variables
        finally:
            with contextlib.suppress(subprocess.SubprocessError):
                _ask(variables, "quit -t 5")


def clients(variables: Mapping[str, str]) -> int:
    """How many processes share the GPU by the daemon."""
    servers = _ask(variables, "get_server_list").split()
    return sum(len(_ask(variables, f"get_client_list {server}").split()) for server in servers)


def _ask(variables: Mapping[str, str], command: str) -> str:
    return subprocess.run(
        [CONTROL], env={**os.environ, **variables}, input=command + "\n", text=True, capture_output=True,
        check=True, timeout=TIMEOUT_S,
    ).stdout  # fmt: skip
