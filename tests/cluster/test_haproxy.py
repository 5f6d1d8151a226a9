"""HAProxy before the Ingress instead of Serve's own proxy. Needs: Ray with its HAProxy, vLLM on the CPU."""

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from tests.asking import text, user
from tests.servers import Server, running_app, wait_for

CHAT = "/v1/chat/completions"
LONG = {"messages": user(text("Count")), "max_tokens": 4000, "ignore_eos": True}


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_app(
        tmp_path_factory.mktemp("haproxy"), {"haproxy": True, "max_body_bytes": 25 << 20}
    ) as server:
        yield server


def of_haproxy(server: Server) -> list[psutil.Process]:
    return [p for p in server.processes() if p.name() == "haproxy"]


def post(server: Server, body: Any, **options: Any) -> httpx.Response:
    return httpx.post(server.base_url + CHAT, timeout=60, trust_env=False, json=body, **options)


def in_hand(server: Server) -> int:
    decoders = httpx.get(f"{server.base_url}/v1/graphs", timeout=20, trust_env=False).json()["decoders"]
    return sum(decoder["unfinished_requests"] for decoder in decoders)


def kill_ingress(server: Server) -> None:
    for process in server.processes():
        with contextlib.suppress(psutil.Error):
            if "ServeReplica:graphserve:Ingress" in " ".join(process.cmdline()):
                process.kill()


def test_it_listens_where_the_config_says_and_nowhere_else(app: Server) -> None:
    """HAProxy holds the application's port; its own statistics are on no port."""
    assert httpx.get(f"{app.base_url}/-/healthz", trust_env=False).text == "success"
    ports = {
        (connection.laddr.ip, connection.laddr.port)
        for process in of_haproxy(app)
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    parts = urlsplit(app.base_url)
    assert ports == {(parts.hostname, parts.port)}


def test_the_guard_stands_before_the_ingress(app: Server) -> None:
    """A good id comes back once, an unfit one is replaced, and an order to Serve is not obeyed."""
    body = {"messages": user(text("Hi")), "max_tokens": 2}
    orders = {"x-request-timeout-seconds": "0.001"}
    kept = post(app, body, headers={"X-Request-Id": "trace-1", **orders})
    assert (kept.status_code, kept.headers.get_list("x-request-id")) == (200, ["trace-1"])
    replaced = post(app, body, headers={"X-Request-Id": "a b"})
    assert [len(given) for given in replaced.headers.get_list("x-request-id")] == [36]


def test_bodies_are_bounded_by_the_ingress(app: Server) -> None:
    """One of 24 MB is taken, one of 26 MB is refused by its size."""
    body = {"messages": user(text("Hi")), "max_tokens": 1, "user": "u" * 24_000_000}
    assert post(app, body).status_code == 200
    assert post(app, {**body, "user": "u" * 27_000_000}).status_code == 413


def test_a_client_that_goes_away_is_not_worked_for(app: Server) -> None:
    """The engine's request ends with the connection, streamed or not."""
    for stream in (True, False):
        connection = raw_post(app, {**LONG, "stream": stream})
        assert wait_for(lambda: in_hand(app) == 1)
        connection.close()
        assert wait_for(lambda: in_hand(app) == 0, within_s=5)


def raw_post(server: Server, body: Any) -> socket.socket:
    data = json.dumps(body).encode()
    parts = urlsplit(server.base_url)
    connection = socket.create_connection((parts.hostname, parts.port))
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}"
    connection.sendall(f"{head}\r\n\r\n".encode() + data)
    return connection


def test_what_an_ingress_takes_along_is_told(app: Server) -> None:
    """Killed, it ends a stream as broken, not as complete; what had no answer is refused in OpenAI's shape;
    the next requests are answered by its successor, or refused until there is one.
    """
    refused: list[httpx.Response] = []

    def ask_again() -> None:
        with httpx.Client(trust_env=False, timeout=60) as known:  # to HAProxy, from the request before
            known.get(f"{app.base_url}/health/live")
            refused.append(known.post(app.base_url + CHAT, json=LONG))

    waiting = threading.Thread(target=ask_again)
    with (
        httpx.Client(trust_env=False, timeout=60) as client,
        client.stream("POST", app.base_url + CHAT, json={**LONG, "stream": True}) as streamed,
    ):
        lines = streamed.iter_lines()
        assert next(lines).startswith("data: ")
        waiting.start()
        assert wait_for(lambda: in_hand(app) == 2)
        kill_ingress(app)
        with pytest.raises(httpx.RemoteProtocolError):
            for _ in lines:
                pass
    waiting.join(30)
    assert [answer.status_code for answer in refused] == [503]
    assert refused[0].headers["retry-after"] == "1"
    assert "no Ingress replica answered" in refused[0].json()["error"]["message"]
    statuses = []
    while not statuses or statuses[-1] != 200:
        answer = post(app, {"messages": user(text("Hi")), "max_tokens": 1})
        statuses.append(answer.status_code)
        assert answer.status_code in (200, 503), answer.text
        assert len(statuses) < 10_000
    assert wait_for(lambda: in_hand(app) == 0)


def test_haproxy_that_is_killed_comes_back(app: Server) -> None:
    """Killed, HAProxy is started again within a quarter of a minute, and answers as before."""
    for process in of_haproxy(app):
        process.kill()

    def answers() -> bool:
        with contextlib.suppress(httpx.TransportError):
            return post(app, {"messages": user(text("Hi")), "max_tokens": 1}).status_code == 200
        return False

    assert wait_for(lambda: not answers(), within_s=5)
    assert wait_for(answers, within_s=20)
