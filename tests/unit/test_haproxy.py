"""HAProxy before the Ingress: what Serve is told, and what is made of its file. Needs: Ray's HAProxy."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from ray.serve._private.haproxy import BackendConfig, HAProxyApi, HAProxyConfig, ServerConfig
from ray.serve.config import HTTPOptions

from app import haproxy
from app.http_errors import HttpError, raw
from app.serve import ENVIRONMENT, environment

ASKS = {"applications": [{"name": "a", "args": {"haproxy": True}}]}


def file_of_serve(folder: Path, host: str = "127.0.0.1") -> Path:
    """The file that Serve writes for an application with one Ingress replica."""
    config = HAProxyConfig(
        socket_path=str(folder / "admin"),
        server_state_file=str(folder / "state"),
        http_options=HTTPOptions(host=host),
    )
    path = folder / "haproxy.cfg"
    backend = BackendConfig("http-a", "/", app_name="a", servers=[ServerConfig("one", "127.0.0.1", 30000)])
    HAProxyApi(config, {"a": backend}, config_file_path=str(path))._generate_config_file_internal()
    return path


def test_only_a_config_that_asks_gets_it(tmp_path: Path) -> None:
    """A config that says nothing is served as before; one that asks gets variables that Serve knows."""
    assert environment({"applications": [{"args": {}}, {}]}, tmp_path) == ENVIRONMENT
    told = environment(ASKS, tmp_path)
    assert told.items() > ENVIRONMENT.items()
    assert told["RAY_SERVE_ENABLE_HA_PROXY"] == "1"
    read_by_serve = (
        Path(haproxy_constants()).read_text() + Path(HAProxyApi.__init__.__code__.co_filename).read_text()
    )
    assert [name for name in told if name.startswith("RAY_SERVE_") and name not in read_by_serve] == []


def haproxy_constants() -> str:
    from ray.serve._private import constants

    return str(constants.__file__)


def test_without_haproxy_serve_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the package is not there a config that asks is served by Serve's own proxy, and told so."""
    monkeypatch.setattr(haproxy, "installed", lambda: False)
    assert environment(ASKS, tmp_path) == ENVIRONMENT
    assert "Serve's own proxy" in capsys.readouterr().err


def test_haproxy_takes_the_changed_file(tmp_path: Path) -> None:
    """The program that Serve is told to start changes Serve's file: no port but the application's is left,
    and HAProxy finds it good.
    """
    told = environment(ASKS, tmp_path)
    path = file_of_serve(tmp_path)
    before = path.read_text()
    program = told["RAY_SERVE_HAPROXY_BINARY_PATH"]
    done = subprocess.run(
        [program, "-c", "-f", str(path)],
        env={**os.environ, **told},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    text = path.read_text()
    assert text != before
    assert [line.split()[1] for line in text.splitlines() if line.split()[:1] == ["bind"]] == [
        f"unix@{tmp_path}/prometheus",
        "127.0.0.1:8000",
        f"unix@{tmp_path}/stats",
    ]


def test_who_sends_no_request_is_not_waited_for_by_the_hour(tmp_path: Path) -> None:
    """The head of a request has a minute, for HAProxy holds a bounded number of connections."""
    before = file_of_serve(tmp_path).read_text()
    text = haproxy.changed(before, tmp_path / "refusal", tmp_path)
    waits = [line.split()[2] for line in text.splitlines() if line.split()[:2] == ["timeout", "http-request"]]
    assert waits == ["60s"]
    assert "timeout http-request" not in before


@pytest.mark.parametrize(
    ("host", "called"),
    [("127.0.0.1", "127.0.0.1"), ("0.0.0.0", "127.0.0.1"), ("192.0.2.7", "192.0.2.7"), ("::1", "::1")],
)
def test_an_ingress_is_called_where_it_listens(tmp_path: Path, host: str, called: str) -> None:
    """An Ingress listens at the application's host alone, be it every interface or one."""
    text = haproxy.changed(file_of_serve(tmp_path, host).read_text(), tmp_path / "refusal", tmp_path)
    servers = [line.split()[2] for line in text.splitlines() if line.split()[:1] == ["server"]]
    assert servers == [f"{called}:30000"]


def test_a_file_of_another_serve_is_not_served_half_changed(tmp_path: Path) -> None:
    """Where something is not found as expected nothing is started."""
    text = file_of_serve(tmp_path).read_text().replace("listen stats", "listen statistics")
    with pytest.raises(ValueError, match="listen stats"):
        haproxy.changed(text, tmp_path / "refusal", tmp_path)


def test_the_refusal_is_a_whole_answer_in_openais_shape() -> None:
    """Its status line, its length and its reason are those of the answer that the Ingress would give."""
    head, _, body = raw(HttpError(503, "gone")).partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == "HTTP/1.1 503 Service Unavailable"
    assert {f"content-length: {len(body)}", "retry-after: 1", "connection: close"} <= set(lines)
    assert json.loads(body)["error"]["message"] == "gone"
