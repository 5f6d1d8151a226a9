"""Our HTTP surface beside vLLM's own server, field by field. Needs: Ray, vLLM on the CPU.

``docs/api.md`` lists every difference that is allowed here, with its reason.
"""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.api_cases import BAD, GOOD, ROUTES, STREAMED
from tests.servers import Server

OWN = {"id", "created", "system_fingerprint"}
"""What no two answers have in common, of one server or of two."""
HEADERS = {"date", "content-length"}
OTHER_HEADERS = {".vary", ".x-request-id"}
"""No CORS here; and an id on every response, which vLLM gives when it is told to."""
OTHER_WORDS = {".error.message", ".error.type", ".error.param"}
ALLOWED = {
    # Read and refused in the Ingress, before vLLM's schema.
    "not_json": OTHER_WORDS,
    "not_an_object": OTHER_WORDS,
    "content_type_is_text": OTHER_WORDS,
}
STREAMED_TOO = ("conversation", "logprobs", "several_choices", "tools_required", "json_schema", "token_ids")
"""Of the good requests, those that are streamed in every run; the others in a full one."""


def sent(server: Server, body: Any) -> httpx.Response:
    kind, body = body if isinstance(body, tuple) else ("application/json", body)
    return httpx.post(
        f"{server.base_url}/v1/chat/completions",
        content=body if isinstance(body, str) else json.dumps(body),
        headers={"Content-Type": kind},
        timeout=120,
        trust_env=False,
    )


def masked(value: Any) -> Any:
    """The value without what no two answers share, numbers to four digits."""
    if isinstance(value, dict):
        return {key: type(inner).__name__ if key in OWN else masked(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [masked(item) for item in value]
    return round(value, 4) if isinstance(value, float) else value


def differences(theirs: Any, ours: Any, path: str = "") -> Iterator[str]:
    """Paths at which two JSON values differ in name, type or value."""
    if type(theirs) is not type(ours):
        yield path
    elif isinstance(theirs, dict):
        for key in {**theirs, **ours}:
            if key not in theirs or key not in ours:
                yield f"{path}.{key}"
            else:
                yield from differences(theirs[key], ours[key], f"{path}.{key}")
    elif isinstance(theirs, list) and len(theirs) == len(ours):
        for i, pair in enumerate(zip(theirs, ours, strict=True)):
            yield from differences(*pair, f"{path}[{i}]")
    elif theirs != ours:
        yield path


def fields(value: Any, path: str = "") -> Iterator[str]:
    """Every path in a value with the type that stands there."""
    yield f"{path}: {type(value).__name__}"
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from fields(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for item in value:
            yield from fields(item, f"{path}[]")


class Stream:
    """An answer of events. How many tokens come in one is a matter of timing in vLLM; all else is not."""

    def __init__(self, response: httpx.Response) -> None:
        *events, last = response.text.strip().split("\n\n")
        assert last == "data: [DONE]"
        assert all(event.startswith("data: {") for event in events)
        self.events = [masked(json.loads(event.removeprefix("data: "))) for event in events]
        self.choices: dict[int, dict[str, Any]] = {}
        for event in self.events:
            for choice in event["choices"]:
                self._add(choice)

    def _add(self, choice: dict[str, Any]) -> None:
        whole = self.choices.setdefault(choice["index"], {"text": "", "tokens": [], "ids": [], "calls": {}})
        delta = choice["delta"]
        whole["text"] += delta.get("content") or ""
        whole["tokens"] += (choice.get("logprobs") or {}).get("content") or []
        whole["ids"] += choice.get("token_ids") or []
        for call in delta.get("tool_calls") or []:
            made = whole["calls"].setdefault(call["index"], {"name": "", "arguments": ""})
            for key in made:
                made[key] += (call.get("function") or {}).get(key) or ""
        for key in ("finish_reason", "stop_reason"):
            whole[key] = choice.get(key) if choice.get(key) is not None else whole.get(key)

    def essence(self) -> dict[str, Any]:
        """All that does not depend on how tokens were put together."""
        first, last = self.events[0], self.events[-1]
        return {
            "choices": self.choices,
            "first": first,
            "usage": last.get("usage"),
            "alone": [event for event in self.events if not event["choices"]],
        }


def check(theirs: httpx.Response, ours: httpx.Response, name: str) -> None:
    assert ours.status_code == theirs.status_code, ours.text
    headers = [
        {key: value for key, value in response.headers.items() if key not in HEADERS}
        for response in (theirs, ours)
    ]
    assert set(differences(*headers)) <= OTHER_HEADERS
    if "event-stream" in theirs.headers["content-type"]:
        they, we = Stream(theirs), Stream(ours)
        assert not list(differences(they.essence(), we.essence()))
        assert set(fields(we.events)) == set(fields(they.events))
    else:
        found = set(differences(masked(theirs.json()), masked(ours.json())))
        assert found <= ALLOWED.get(name, set()), (theirs.text, ours.text)


@pytest.mark.parametrize("name", GOOD)
def test_an_answer_is_vllms(app: Server, undivided: Server, name: str) -> None:
    """Every field of a whole answer has vLLM's name, type and value."""
    check(sent(undivided, GOOD[name]), sent(app, GOOD[name]), name)


@pytest.mark.parametrize(
    "name", [name if name in STREAMED_TOO else pytest.param(name, marks=pytest.mark.full) for name in GOOD]
)
def test_a_streamed_answer_is_vllms(app: Server, undivided: Server, name: str) -> None:
    """Its events have vLLM's fields, and together they say the same."""
    body = {**GOOD[name], "stream": True}
    check(sent(undivided, body), sent(app, body), name)


@pytest.mark.parametrize("name", STREAMED)
def test_usage_in_a_stream_is_vllms(app: Server, undivided: Server, name: str) -> None:
    """It comes where vLLM sends it, as often, and counts the same."""
    check(sent(undivided, STREAMED[name]), sent(app, STREAMED[name]), name)


@pytest.mark.parametrize("name", BAD)
def test_a_refusal_is_vllms(app: Server, undivided: Server, name: str) -> None:
    """The same bad request gets the same status and error."""
    check(sent(undivided, BAD[name]), sent(app, BAD[name]), name)


def test_models_are_vllms(app: Server, undivided: Server) -> None:
    """``GET /v1/models`` is the same but for what is each server's own."""
    theirs, ours = (httpx.get(f"{s.base_url}/v1/models", trust_env=False) for s in (undivided, app))
    check(theirs, ours, "models")


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_other_routes_have_vllms_status(app: Server, undivided: Server, method: str, path: str) -> None:
    """Unknown paths and wrong methods: the same status and ``Allow``; the body is OpenAI's error here."""
    theirs, ours = (httpx.request(method, s.base_url + path, trust_env=False) for s in (undivided, app))
    assert (ours.status_code, ours.headers.get("allow")) == (theirs.status_code, theirs.headers.get("allow"))
    if method != "HEAD":
        assert theirs.json() == {"detail": ours.json()["error"]["message"]}
        assert ours.json()["error"]["code"] == ours.status_code


def test_a_path_with_a_slash_at_its_end_is_unknown(app: Server) -> None:
    """vLLM redirects it; here a path has one spelling."""
    assert httpx.get(f"{app.base_url}/v1/models/", trust_env=False).status_code == 404
