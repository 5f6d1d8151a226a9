"""Real servers for tests: our application by ``serve run``, and vLLM's own undivided server."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml
from openai import OpenAI

from app import serve

ROOT = Path(__file__).resolve().parent.parent
ENGINE = {"max_model_len": 8192, "gpu_memory_utilization": 0.12, "block_size": 32, "max_num_seqs": 32}
HAPROXY = os.environ.get("GRAPHSERVE_TEST_HAPROXY") == "1"
"""Whether every application has HAProxy before it, and not only where a test asks for it."""
ENVIRONMENT = {
    **serve.ENVIRONMENT,
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "RAY_metrics_report_interval_ms": "2000",
}
"""What ``make serve`` tells Ray, and what keeps a test small and quick."""


def free_port() -> int:
    """A TCP port nobody listens on right now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Server:
    """A server process, its log and its end."""

    def __init__(self, command: list[str], base_url: str, log: Path, env: dict[str, str | None]) -> None:
        self.base_url = base_url
        self.client: OpenAI | None = None
        self.log = log
        self._stream = log.open("wb")
        if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # so in a background job; children inherit it
            signal.signal(signal.SIGINT, signal.default_int_handler)
        environment = {**os.environ, **ENVIRONMENT, **env}
        self.process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={name: value for name, value in environment.items() if value is not None},
            stdout=self._stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def wait_ready(self, timeout_s: float) -> float:
        """Seconds until ``/health`` was 200. Raises with the log's end when it does not come."""
        begun = time.monotonic()
        with httpx.Client(trust_env=False, timeout=5) as client:
            while time.monotonic() - begun < timeout_s:
                if self.process.poll() is not None:
                    raise RuntimeError(f"ended with {self.process.returncode}:\n{self.tail()}")
                with contextlib.suppress(httpx.HTTPError):
                    answer = client.get(f"{self.base_url}/health")
                    if answer.status_code == 200:
                        return time.monotonic() - begun
                    if "deploy_failed" in answer.text:
                        raise RuntimeError(f"Serve gave up: {answer.text}\n{self.tail()}")
                time.sleep(0.3)
        raise TimeoutError(f"not ready after {timeout_s} s:\n{self.tail()}")

    def tail(self, size: int = 6000) -> str:
        """The end of the log."""
        return self.log.read_text(errors="replace")[-size:]

    def processes(self) -> list[psutil.Process]:
        """Every process under this server."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return psutil.Process(self.process.pid).children(recursive=True)
        return []

    def stop(self) -> list[psutil.Process]:
        """End it as Ctrl-C does. Returns the processes that outlived it and were killed."""
        if self.client is not None:
            self.client.close()
        children = self.processes()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(45)
        _, left = psutil.wait_procs(children, timeout=10)
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        if self.process.poll() is None:
            self.process.kill()
        self._stream.close()
        return left


def client(server: "Server") -> OpenAI:
    """The official client, which must not try again by itself: we want to see every failure."""
    if server.client is None:
        server.client = OpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0, timeout=120)
    return server.client


def wait_for(condition: Callable[[], Any], within_s: float = 60) -> bool:
    """Whether a condition came true in time."""
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        if condition():
            return True
        time.sleep(0.1)
    return False


def ray_workers(server: Server) -> list[psutil.Process]:
    """Processes of vLLM's Ray executor, which are actors of their own."""
    found = []
    for process in server.processes():
        with contextlib.suppress(psutil.Error):
            if "RayWorkerProc" in " ".join(process.cmdline()):
                found.append(process)
    return found


def app_config(
    port: int,
    args: dict[str, Any] | None = None,
    deployments: dict[str, Any] | None = None,
    source: str = "serve_config.yaml",
) -> dict[str, Any]:
    """A config of ours on another port with some arguments and deployment overrides changed."""
    config = yaml.safe_load((ROOT / source).read_text())
    config["http_options"]["port"] = port
    app = config["applications"][0]
    if source == "serve_config.yaml":
        app["args"]["decoder"]["engine_args"] = {**app["args"]["decoder"]["engine_args"], **ENGINE}
    if HAPROXY:
        app["args"]["haproxy"] = True
    app["args"].update(args or {})
    for override in app["deployments"]:
        override.update((deployments or {}).get(override["name"], {}))
    return config


@contextlib.contextmanager
def running_app(*args: Any, timeout_s: float = 240, **options: Any) -> Iterator[Server]:
    """Our application on a Ray cluster of its own, ready; arguments as ``starting_app`` takes them."""
    with starting_app(*args, **options) as server:
        server.wait_ready(timeout_s)
        yield server


@contextlib.contextmanager
def starting_app(
    folder: Path,
    args: dict[str, Any] | None = None,
    deployments: dict[str, Any] | None = None,
    *,
    import_path: str | None = None,
    env: dict[str, str | None] | None = None,
    source: str = "serve_config.yaml",
    top: dict[str, Any] | None = None,
) -> Iterator[Server]:
    """Not waited for. ``env`` may name another Ray cluster, and what is None in it is taken away.

    ``top`` is Serve's part of the config.
    """
    port = free_port()
    config = {**app_config(port, args, deployments, source), **(top or {})}
    if import_path is not None:
        config["applications"][0]["import_path"] = import_path
    path = folder / "serve_config.yaml"
    path.write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "ray.serve.scripts", "run", str(path)]
    private = Path(tempfile.mkdtemp(prefix="gs-"))  # of a short path, for sockets
    environment: dict[str, str | None] = {
        "RAY_ADDRESS": "local",
        **serve.environment(config, private),
        "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        **(env or {}),
    }
    server = Server(command, f"http://127.0.0.1:{port}", folder / "app.log", environment)
    try:
        yield server
    finally:
        server.stop()
        shutil.rmtree(private, ignore_errors=True)


@contextlib.contextmanager
def running_undivided(
    folder: Path,
    model: str,
    dtype: str = "float32",
    name: str = "graphserve-toy",
    timeout_s: float = 180,
    engine: dict[str, Any] | None = None,
    *,
    eager: bool = True,
    module: str = "vllm.entrypoints.openai.api_server",
    command: Sequence[str] = (),
    env: dict[str, str | None] | None = None,
) -> Iterator[Server]:
    """vLLM's own OpenAI server with the whole model.

    By its module (after which come the words of ``command``), for its console script asks for a distribution
    of the name ``vllm``, which the CPU build does not have. A value of ``engine`` that is True is a flag, a
    dict is JSON.
    """
    port = free_port()
    words = [
        sys.executable, "-m", module, *command, "--model", model,
        "--host", "127.0.0.1", "--port", str(port), "--dtype", dtype, "--served-model-name", name,
        "--trust-remote-code", "--interleave-mm-strings",
        "--limit-mm-per-prompt", '{"image": 16, "audio": 16, "video": 0}',
        "--enable-auto-tool-choice", "--tool-call-parser", "hermes",
        *(["--enforce-eager"] if eager else []),
    ]  # fmt: skip
    for option, value in (ENGINE if engine is None else engine).items():
        said = json.dumps(value) if isinstance(value, dict) else str(value)
        words += [f"--{option.replace('_', '-')}", *([] if value is True else [said])]
    server = Server(words, f"http://127.0.0.1:{port}", folder / "undivided.log", env or {})
    try:
        server.wait_ready(timeout_s)
        yield server
    finally:
        server.stop()
