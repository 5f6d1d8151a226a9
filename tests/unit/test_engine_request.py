"""Requests on their way into upstream's schema. Needs vLLM, no engine."""

import copy
from typing import Any, NoReturn

import pytest

from deployments.upstream import engine

pytest.importorskip("vllm.entrypoints.openai.chat_completion.protocol")


class Rows:
    """Stands for a tensor: whoever walks through it is found out."""

    def __iter__(self) -> NoReturn:
        raise AssertionError("an embedding was walked through")

    def __deepcopy__(self, _: Any) -> "Rows":
        return self


def request(*parts: Any) -> dict[str, Any]:
    return {
        "model": "m",
        "messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": list(parts)}],
    }


def picture() -> dict[str, Any]:
    return {"type": "image_embeds", "image_embeds": {"image_embeds": Rows()}, "uuid": "a"}


def test_an_embedding_reaches_upstream_as_it_is() -> None:
    """The schema sees none of it, and it stands in its place afterwards, with its uuid."""
    sound = {"type": "audio_embeds", "audio_embeds": {"audio_embeds": Rows()}, "uuid": "b"}
    asked = request({"type": "text", "text": "what?"}, picture(), sound)
    content = engine.parsed_request(asked).messages[1]["content"]
    assert [part["type"] for part in content] == ["text", "image_embeds", "audio_embeds"]
    for part, given in zip(content[1:], asked["messages"][1]["content"][1:], strict=True):
        assert part[part["type"]] is given[part["type"]]
        assert part["uuid"] == given["uuid"]


def test_the_request_itself_stays_as_it_was() -> None:
    """It may be needed again: nothing in it is emptied."""
    asked = request({"type": "text", "text": "what?"}, picture())
    before = copy.deepcopy(asked)
    engine.parsed_request(asked)
    assert asked == before


def test_what_the_schema_refuses_beside_an_embedding_is_refused() -> None:
    """The rest of the request is looked at as ever."""
    with pytest.raises(ValueError, match="temperature"):
        engine.parsed_request({**request(picture()), "temperature": "hot"})


@pytest.mark.parametrize(
    "messages", [None, "hello", [3], [{"role": "user"}], [{"role": "user", "content": "hi"}]]
)
def test_requests_without_parts_are_left_alone(messages: Any) -> None:
    """Whatever a client sends in the place of messages is upstream's to judge."""
    asked = {"messages": messages}
    assert engine.without_embeddings(asked) == (asked, {})
