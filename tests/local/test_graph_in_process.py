"""Requests from the Ingress's HTTP face through encoders to the decoder, in one process without Ray."""

import base64
import threading
import time
from typing import Any

import pytest

from deployments.errors import ClientError, TransientError
from tests.fakes import HANG, embedding_of
from tests.local.in_process import App


def picture(content: str = "4x4:cat") -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:,{content}"}}


def sound(content: str = "f9:meow") -> dict[str, Any]:
    data = base64.b64encode(content.encode()).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


def seen(kind: str, content: str) -> str:
    """How the fake decoder says that it holds the embedding of this content."""
    return f"{kind}_embeds={float(embedding_of(content.encode())[0, 0]):.4f}"


def test_text_goes_straight_to_the_decoder(local_app: App) -> None:
    """A request of text alone is answered and no encoder so much as starts."""
    status, _, body = local_app.chat({"type": "text", "text": "hello"})
    assert (status, body) == (200, {"said": "hello"})
    assert local_app.vision.graphs_enabled is None
    assert local_app.audio.graphs_enabled is None


def test_media_are_encoded_and_stand_in_their_places(local_app: App) -> None:
    """Each embedding reaches the decoder from its own encoder, in the order of the parts."""
    text = {"type": "text", "text": "and"}
    status, _, body = local_app.chat(sound("f9:a"), text, picture("4x4:b"), picture("2x2:c"))
    assert status == 200
    assert body["said"].split() == [
        seen("audio", "f9:a"),
        "and",
        seen("vision", "4x4:b"),
        seen("vision", "2x2:c"),
    ]
    assert sorted(len(batch) for batch in local_app.vision.batches) == [1, 1]


def test_a_stream_comes_as_events(local_app: App) -> None:
    """Streaming passes the decoder's events on, to the end, and the request is counted out."""
    status, headers, body = local_app.chat("one", picture(), stream=True)
    assert status == 200
    assert headers["content-type"].startswith("text/event-stream")
    assert body == f"data: one\n\ndata: {seen('vision', '4x4:cat')}\n\ndata: [DONE]\n\n"
    assert local_app.ingress.requests_in_hand.remote().result() == 0


def test_the_same_picture_again_is_not_encoded_again(local_app: App) -> None:
    """The embedding cache holds between requests."""
    for _ in range(3):
        assert local_app.chat(picture())[0] == 200
    assert len(local_app.vision.batches) == 1


def error(answer: Any, status: int) -> dict[str, Any]:
    """The error of an answer, whose shape is OpenAI's."""
    assert answer[0] == status
    assert set(answer[2]) == {"error"}
    assert set(answer[2]["error"]) == {"message", "type", "param", "code"}
    found: dict[str, Any] = answer[2]["error"]
    return found


def test_bad_media_is_a_400_that_names_the_part(local_app: App) -> None:
    """What the encoder's workers refuse comes back with the part's path and code, and costs one try."""
    local_app.pools["audio"].script = [ClientError("this part is damaged", code="media_invalid")]
    found = error(local_app.chat("a", picture(), sound()), 400)
    assert (found["param"], found["code"]) == ("messages[0].content[2].input_audio", "media_invalid")
    assert local_app.engine.requests == []
    assert local_app.chat(sound())[0] == 200


def test_a_passing_failure_is_not_seen(local_app: App) -> None:
    """A batch that fails in passing, and a worker that died, are tried again."""
    local_app.vision.script = [MemoryError("no room")]
    local_app.pools["vision"].script = [TransientError("a worker died")]
    assert local_app.chat(picture())[2] == {"said": seen("vision", "4x4:cat")}


def test_an_encoder_that_failed_for_good_is_a_503_with_the_reason(local_app: App) -> None:
    """With no replica left the client learns why, and text is answered all the same."""
    local_app.vision.script = [RuntimeError("CUDA error")]
    local_app.vision.terminal = True
    found = error(local_app.chat(picture()), 503)
    assert "CUDA error" in found["message"]
    assert found["param"] == "messages[0].content[0].image_url"
    assert local_app.chat("hello")[0] == 200


@pytest.mark.parametrize("local_app", [{"request_deadline_s": 0.3}], indirect=True)
def test_a_hanging_encoder_is_a_504(local_app: App) -> None:
    """The deadline ends the wait."""
    local_app.vision.script = [HANG]
    assert "0.3 s" in error(local_app.chat(picture()), 504)["message"]
    local_app.vision.release.set()


@pytest.mark.parametrize("local_app", [{"max_requests": 1}], indirect=True)
def test_more_requests_than_allowed_are_a_429(local_app: App) -> None:
    """The limit is told with Retry-After, and the request before it is not harmed."""
    local_app.vision.gate = threading.Event()
    body = {"messages": [{"role": "user", "content": [picture()]}]}
    first = local_app.ingress.ask.remote("POST", "/v1/chat/completions", json=body)
    give_up_s = time.monotonic() + 30
    while not local_app.vision.batches:
        assert time.monotonic() < give_up_s
        assert local_app.ingress.requests_in_hand.remote().result() <= 1
    answer = local_app.chat("hello")
    error(answer, 429)
    assert int(answer[1]["retry-after"]) >= 1
    local_app.vision.gate.set()
    assert first.result(timeout_s=30)[0] == 200
    assert local_app.chat("hello")[0] == 200


def test_errors_of_every_kind_have_one_shape(local_app: App) -> None:
    """Unknown model, no JSON, unknown route and method: status and shape as OpenAI has them."""
    chat = "/v1/chat/completions"
    assert error(local_app.ask("POST", chat, json={"model": "gpt"}), 404)["param"] == "model"
    for kind, content in (
        ("json", b"{"),
        ("json", b'{"model": "\\ud800"}'),
        ("x-www-form-urlencoded", b"{}"),
    ):
        headers = {"Content-Type": f"application/{kind}"}
        error(local_app.ask("POST", chat, content=content, headers=headers), 400)
    messages = [{"role": "user", "content": [{"type": "odd"}]}]
    assert error(local_app.ask("POST", chat, json={"messages": messages}), 400)["param"] == (
        "messages[0].content[0].odd"
    )
    error(local_app.ask("GET", "/v1/nothing"), 404)
    error(local_app.ask("GET", chat), 405)
    error(local_app.ask("POST", "/admin/replicas/r1/recycle"), 404)


@pytest.mark.parametrize("local_app", [{"max_body_bytes": 1024}], indirect=True)
def test_a_body_that_is_too_large_is_a_413(local_app: App) -> None:
    """The limit holds for the body as it arrives."""
    error(local_app.chat("x" * 2000), 413)
    assert local_app.chat("x")[0] == 200


@pytest.mark.parametrize("local_app", [{"api_keys": ["k1", "k2"], "admin_token": "t"}], indirect=True)
def test_keys(local_app: App) -> None:
    """API keys open the API, the admin token the admin's routes, and neither the other's; health is open."""

    def bearer(key: str) -> dict[str, str]:
        return {"authorization": f"Bearer {key}"}

    error(local_app.chat("hello"), 401)
    error(local_app.chat("hello", headers=bearer("t")), 401)
    assert local_app.chat("hello", headers=bearer("k2"))[0] == 200
    error(local_app.ask("GET", "/v1/models"), 401)
    assert local_app.ask("GET", "/v1/models", headers=bearer("k1"))[2]["data"][0]["id"] == "fake"
    error(local_app.ask("POST", "/admin/replicas/r9/recycle", headers=bearer("k1")), 401)
    assert local_app.ask("GET", "/health/live")[0] == 200
    assert local_app.ask("GET", "/health")[0] == 503


def test_a_fault_of_ours_is_a_500_in_shape_and_without_a_trace(
    local_app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever breaks inside, the client gets an error body and nothing of the code."""
    monkeypatch.setattr("app.chat.find_media", lambda *_: 1 / 0)
    found = error(local_app.chat("hello"), 500)
    assert "division" not in found["message"]
