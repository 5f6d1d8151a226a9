"""Clients that leave, stall, guess and probe, at an application with keys. Needs: Ray, vLLM on the CPU."""

import contextlib
import hashlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from tests import media
from tests.asking import text, user
from tests.servers import Server, running_app, wait_for

KEY, TOKEN = "key-9f2b7c4d1e", "token-5a8e3d6f0b"
CHAT = "/v1/chat/completions"


def hashed(key: str) -> str:
    return f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


@pytest.fixture(scope="module")
def origin() -> Iterator[tuple[int, list[float]]]:
    """A server of pictures that never answers: its port, and when each of its clients went away."""
    left: list[float] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hold(connection: socket.socket) -> None:
            with connection, contextlib.suppress(OSError):
                while connection.recv(4096):
                    pass
            left.append(time.monotonic())

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=hold, args=(listener.accept()[0],), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1], left


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory, origin: tuple[int, Any]) -> Iterator[Server]:
    args = {
        "api_keys": [hashed("another"), hashed(KEY)],
        "admin_token": hashed(TOKEN),
        "max_n": 4,
        "max_requests": 6,
        "media": {"fetch": {"allow_networks": ["127.0.0.0/8"]}},
    }
    with running_app(tmp_path_factory.mktemp("guarded"), args) as server:
        yield server


def asked(server: Server, method: str, path: str, **options: Any) -> httpx.Response:
    headers = {"Authorization": f"Bearer {KEY}", **options.pop("headers", {})}
    return httpx.request(
        method, server.base_url + path, headers=headers, timeout=60, trust_env=False, **options
    )


def raw_request(server: Server, body: dict[str, Any], **headers: str) -> socket.socket:
    """Send a chat request by hand; the answer is the caller's to read, or not."""
    data = json.dumps(body).encode()
    lines = {
        "Host": "x",
        "Content-Type": "application/json",
        "Authorization": f"Bearer {KEY}",
        "Content-Length": str(len(data)),
        **headers,
    }
    host, port = urlsplit(server.base_url).hostname, urlsplit(server.base_url).port
    connection = socket.create_connection((host, port))
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    connection.sendall(f"POST {CHAT} HTTP/1.1\r\n{head}\r\n".encode() + data)
    return connection


def unfinished(server: Server) -> int:
    decoders = asked(server, "GET", "/v1/graphs").json()["decoders"]
    return sum(decoder["unfinished_requests"] for decoder in decoders)


def room(server: Server) -> bool:
    """Whether as many requests are let in as may be, which none is when places are still held."""
    body = {"messages": user(text("Count")), "stream": True, "max_tokens": 400, "ignore_eos": True}
    open_ones = [raw_request(server, body) for _ in range(6)]
    try:
        return all(connection.recv(12) == b"HTTP/1.1 200" for connection in open_ones)
    finally:
        for connection in open_ones:
            connection.close()


# ---- keys ----


@pytest.mark.parametrize(
    "path", ["/v1/models", "/v1/graphs", "/openapi.json"], ids=lambda path: path.strip("/")
)
def test_a_key_is_needed(guarded: Server, path: str) -> None:
    """What is said of the server, its description included, is said to holders of a key."""
    assert asked(guarded, "GET", path).status_code == 200
    for given in ("", "Bearer", "Bearer other", f"Basic {KEY}", f"Bearer {TOKEN}", f"Bearer {KEY}x"):
        refused = asked(guarded, "GET", path, headers={"Authorization": given})
        assert refused.status_code == 401
        assert refused.json()["error"]["type"] == "AuthenticationError"


def test_keys_do_not_open_the_admin_path(guarded: Server) -> None:
    """It has a token of its own; there is no page of documents that loads scripts from elsewhere."""
    path = "/admin/replicas/none/recycle"
    assert asked(guarded, "POST", path).status_code == 401
    assert asked(guarded, "POST", path, headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 404
    assert asked(guarded, "GET", "/docs").status_code == asked(guarded, "GET", "/redoc").status_code == 404


def test_pages_of_other_sites_are_let_do_nothing(guarded: Server) -> None:
    """No CORS header is sent, and a body that a page may send unasked is refused."""
    origin = {"Origin": "https://evil.example"}
    preflight = {**origin, "Access-Control-Request-Method": "POST"}
    body = json.dumps({"messages": user(text("Hi")), "max_tokens": 1})
    answers = [
        asked(guarded, "OPTIONS", CHAT, headers=preflight),
        asked(guarded, "POST", CHAT, content=body, headers={**origin, "Content-Type": "application/json"}),
        asked(guarded, "POST", CHAT, content=body, headers={**origin, "Content-Type": "text/plain"}),
    ]
    assert [answer.status_code for answer in answers] == [405, 200, 400]
    for answer in answers:
        assert not [name for name in answer.headers if name.startswith("access-control-")]


# ---- ids ----


@pytest.mark.parametrize("stream", [False, True])
def test_an_id_comes_back_and_names_the_answer(guarded: Server, stream: bool) -> None:
    """It is in the header once, in the body of every event, and in the log."""
    name = f"trace-{stream}.1"
    body = {"messages": user(text("Hi")), "max_tokens": 3, "stream": stream}
    answer = asked(guarded, "POST", CHAT, json=body, headers={"X-Request-Id": name})
    assert answer.headers.get_list("x-request-id") == [name]
    assert f'"id":"chatcmpl-{name}"' in answer.text.replace(": ", ":")
    assert wait_for(lambda: name in guarded.log.read_text(errors="replace"))


def test_a_refusal_carries_the_id_too(guarded: Server) -> None:
    """Also one by an encoder, whose own record names it; an unfit id is replaced."""
    part = dict(media.image_part(media.photo_bytes("coffee")[:2000]))
    answer = asked(
        guarded, "POST", CHAT, json={"messages": user(part)}, headers={"X-Request-Id": "trace-bad-picture"}
    )
    assert (answer.status_code, answer.headers["x-request-id"]) == (400, "trace-bad-picture")
    assert wait_for(
        lambda: any(
            "VisionEncoder" in line and "trace-bad-picture" in line
            for line in guarded.log.read_text(errors="replace").splitlines()
        )
    )
    for unfit in (b"a b", b"\xff\xfe", b"x" * 129, b'"'):
        answer = asked(guarded, "GET", "/v1/nothing", headers={"X-Request-Id": unfit})
        (given,) = answer.headers.get_list("x-request-id")
        assert len(given) == 36


# ---- clients that leave and clients that stall ----


def test_a_client_that_leaves_during_a_fetch_frees_it(
    guarded: Server, origin: tuple[int, list[float]]
) -> None:
    """The connection to the origin is closed at once, not when its time is up, and the place is free."""
    port, left = origin
    part = {"type": "image_url", "image_url": {"url": f"http://127.0.0.1:{port}/a.png"}}
    before = len(left)
    connection = raw_request(guarded, {"messages": user(part)})
    time.sleep(1.5)
    assert len(left) == before
    connection.close()
    assert wait_for(lambda: len(left) == before + 1, within_s=5)
    assert wait_for(lambda: room(guarded))


def test_a_client_cannot_switch_off_its_own_cancellation(
    guarded: Server, origin: tuple[int, list[float]]
) -> None:
    """Serve has a header for that; the guard before its proxy drops it."""
    port, left = origin
    part = {"type": "image_url", "image_url": {"url": f"http://127.0.0.1:{port}/b.png"}}
    before = len(left)
    connection = raw_request(guarded, {"messages": user(part)}, **{"x-request-disconnect-disabled": "?1"})
    time.sleep(1.5)
    connection.close()
    assert wait_for(lambda: len(left) == before + 1, within_s=5)


def test_a_client_that_stalls_in_its_body_holds_no_more_than_its_place(guarded: Server) -> None:
    """Others are answered meanwhile, and its place is free when it goes; neither is an error in the log."""
    begun = len(guarded.log.read_text(errors="replace"))
    stalled = [raw_request(guarded, {"messages": []}, **{"Content-Length": "100000"}) for _ in range(3)]
    body = {"messages": user(text("Hi")), "max_tokens": 1}
    assert asked(guarded, "POST", CHAT, json=body).status_code == 200
    for connection in stalled:
        connection.close()
    assert wait_for(lambda: room(guarded))
    assert wait_for(lambda: unfinished(guarded) == 0)
    log = guarded.log.read_text(errors="replace")[begun:]
    assert "fault of ours" not in log
    assert not [line for line in log.splitlines() if " ERROR " in line]


def test_a_reader_that_never_reads_costs_one_answer(guarded: Server) -> None:
    """What is generated for clients that do not read is bounded by their answers, and is freed with them."""
    body = {
        "messages": user(text("Count")), "stream": True, "max_tokens": 2000, "ignore_eos": True,
        "logprobs": True, "top_logprobs": 5,
    }  # fmt: skip

    def resident() -> int:
        total = 0
        for process in guarded.processes():
            with contextlib.suppress(psutil.Error):
                total += process.memory_info().rss
        return total

    asked(guarded, "POST", CHAT, json=body)
    before = resident()
    silent = [raw_request(guarded, body) for _ in range(4)]
    assert wait_for(lambda: unfinished(guarded) == 4)
    assert wait_for(lambda: unfinished(guarded) == 0, within_s=120)
    grown = resident() - before
    for connection in silent:
        connection.close()
    one_answer = 2000 * 2000  # tokens, and bytes of an event with six logprobs
    assert grown < 4 * 8 * one_answer, grown
    assert wait_for(lambda: room(guarded))


# ---- bounds ----


@pytest.mark.parametrize("n", [5, "5", 5.0, 10**30])
def test_choices_are_bounded(guarded: Server, n: Any) -> None:
    """However the number is written; the bound itself is served."""
    body = {"messages": user(text("Hi")), "max_tokens": 1, "n": n}
    answer = asked(guarded, "POST", CHAT, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "n")
    assert len(asked(guarded, "POST", CHAT, json={**body, "n": 4}).json()["choices"]) == 4


def test_a_body_of_very_many_values_stops_nobody(guarded: Server) -> None:
    """It is refused unparsed."""
    content = b'{"messages": [' + b"[]," * 2_000_000 + b"1]}"
    headers = {"Content-Type": "application/json"}
    assert asked(guarded, "POST", CHAT, content=content, headers=headers).status_code == 413


def _called(arguments: str) -> dict[str, Any]:
    function = {"name": "f", "arguments": arguments}
    call = {"id": "1", "type": "function", "function": function}
    said = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    return {"messages": [*said, {"role": "tool", "content": "x", "tool_call_id": "1"}]}


ODD: dict[str, Any] = {
    "deep": b'{"messages": [{"role": "user", "content": "Hi"}], "x": ' + b"[" * 900 + b"]" * 900 + b"}",
    "deep_tools": {"messages": user(text("Hi")), "tools": json.loads("[" * 90 + "]" * 90)},
    "long_model": {"messages": user(text("Hi")), "model": "m" * 5_000_000},
    "model_of_another_type": {"messages": user(text("Hi")), "model": ["graphserve-toy"]},
    "n_that_is_no_number": {"messages": user(text("Hi")), "n": "nan"},
    "n_without_end": {"messages": user(text("Hi")), "n": "inf"},
    "huge_number": b'{"messages": [{"role": "user", "content": "Hi"}], "seed": ' + b"9" * 4000 + b"}",
    "half_a_surrogate_in_arguments": _called('{"a": "\\ud800"}'),
    "half_a_surrogate_and_a_token": _called('{"a": "\\ud800<|im_end|>"}'),
    "arguments_that_are_a_list": _called("[1]"),
    "arguments_that_are_deep": _called("[" * 5000 + "]" * 5000),
    "role_of_another_type": {"messages": [{"role": {"a": 1}, "content": "Hi"}]},
    "content_that_is_an_object": {"messages": [{"role": "user", "content": {"type": "text"}}]},
    "content_of_nothing": {"messages": [{"role": "user", "content": []}]},
    "no_such_role": {"messages": [{"role": "nobody", "content": "Hi"}]},
    "null_characters": {"messages": user(text("\0" * 100))},
    "keys_of_python": {"messages": user(text("Hi")), "self": 1, "cls": 2, "__class__": 3},
}


@pytest.mark.parametrize("name", ODD)
def test_no_odd_body_is_a_fault_of_ours(guarded: Server, name: str) -> None:
    """It is answered, or refused as the client's, briefly."""
    body = ODD[name]
    content = body if isinstance(body, bytes) else json.dumps({"max_tokens": 2, **body})
    answer = asked(guarded, "POST", CHAT, content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code in (200, 400, 404, 422), answer.text
    assert len(answer.content) < 20_000


# ---- secrets: last, for it reads what all that went before has left ----


def test_nothing_secret_is_logged_or_reported(guarded: Server) -> None:
    """Neither key nor token stands in the log of any process, in a report or in the description."""
    secret_words = "the secret words of a client"
    for body in ({"messages": user(text(secret_words)), "max_tokens": 1}, {"messages": secret_words}):
        asked(guarded, "POST", CHAT, json=body)
    said = guarded.log.read_text(errors="replace")
    said += "".join(asked(guarded, "GET", path).text for path in ("/v1/graphs", "/openapi.json", "/health"))
    for secret in (KEY, TOKEN, secret_words):
        assert secret not in said
