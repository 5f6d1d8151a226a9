"""Media of a request: found in order, replaced in place, and nothing else is taken for media."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.chat_parts import find_media, with_embeddings
from app.http_errors import HttpError
from deployments.messages import EMBEDDING_PART
from tests.fakes import FakeFamily

ENCODERS = FakeFamily.encoders

texts = st.one_of(
    st.text(max_size=5),
    st.builds(lambda t: {"type": "text", "text": t}, st.text(max_size=5)),
    st.builds(lambda t: {"type": "refusal", "refusal": t}, st.text(max_size=5)),
)
media = st.one_of(
    st.builds(lambda u: {"type": "image_url", "image_url": {"url": u}}, st.text(min_size=1, max_size=5)),
    st.builds(lambda u: {"type": "audio_url", "audio_url": u}, st.text(min_size=1, max_size=5)),
    st.builds(
        lambda d, f: {"type": "input_audio", "input_audio": {"data": d, "format": f}},
        st.text(max_size=5),
        st.sampled_from(["wav", "mp3", "flac", "ogg"]),
    ),
)
contents = st.one_of(st.none(), st.text(max_size=5), st.lists(st.one_of(texts, media), max_size=6))
requests = st.lists(
    st.builds(lambda role, content: {"role": role, "content": content}, st.just("user"), contents),
    min_size=1,
    max_size=4,
).map(lambda messages: {"messages": messages, "temperature": 0})


def is_media(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") in ("image_url", "audio_url", "input_audio")


def places(messages: list[dict[str, Any]], wanted: Any) -> list[tuple[int, int]]:
    lists = [(i, m["content"]) for i, m in enumerate(messages) if isinstance(m["content"], list)]
    return [(i, j) for i, content in lists for j, part in enumerate(content) if wanted(part)]


@given(requests)
def test_embedding_parts_stand_where_media_stood(request_body: dict[str, Any]) -> None:
    """As many embedding parts as media, numbered in order, in the same places; all else untouched."""
    before = copy.deepcopy(request_body)
    found = find_media(request_body, ENCODERS, 100)
    filled = with_embeddings(request_body, found)
    expected = places(before["messages"], is_media)
    assert [(m.message, m.part) for m in found] == expected
    parts = [filled["messages"][i]["content"][j] for i, j in expected]
    assert parts == [{"type": EMBEDDING_PART, "index": n} for n in range(len(expected))]
    for (i, j), _ in zip(expected, parts, strict=True):
        filled["messages"][i]["content"][j] = before["messages"][i]["content"][j]
    assert filled == before
    assert request_body == before, "the client's request must not change: it is tried again"


def test_each_medium_goes_to_its_encoder_with_its_path() -> None:
    """Pictures go to vision, sounds to audio, and each knows the path a client will read in an error."""
    content = [
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": "data:,x"}},
        {"type": "input_audio", "input_audio": {"data": "eA==", "format": "wav"}},
    ]
    found = find_media({"messages": [{"role": "user", "content": content}]}, ENCODERS, 9)
    assert [(m.encoder, m.url, m.base64, m.param) for m in found] == [
        ("vision", "data:,x", None, "messages[0].content[1].image_url"),
        ("audio", None, "eA==", "messages[0].content[2].input_audio"),
    ]


def refused(content: Any, **fields: Any) -> HttpError:
    with pytest.raises(HttpError) as caught:
        find_media({"messages": [{"role": "user", "content": content}], **fields}, ENCODERS, 3)
    assert caught.value.status == 400
    return caught.value


@pytest.mark.parametrize(
    "kind",
    [
        EMBEDDING_PART,
        "image_embeds",
        "audio_embeds",
        "prompt_embeds",
        "image_pil",
        "video_url",
        "input_image",
    ],
)
def test_parts_that_are_not_for_clients_are_refused(kind: str) -> None:
    """Nobody from outside can hand the decoder an embedding, an object, or our own inner part."""
    part = {"type": kind, kind: {"x": 1}, "index": 0, "uuid": "u"}
    assert refused([part]).param == f"messages[0].content[0].{kind}"


@pytest.mark.parametrize(
    "smuggled",
    [
        {"uuid": "u", "image_url": {"url": "http://169.254.169.254/"}},
        {"uuid": "hash of somebody else's picture", "image_embeds": None},
        {"uuid": "u"},
        {"prompt_embeds": {}},
        {"input_audio": {}},
        {"tool_reference": "x"},
    ],
)
@pytest.mark.parametrize("text", [{"type": "text", "text": "t"}, {"type": "refusal", "refusal": "t"}])
def test_a_part_of_text_holds_text_alone(text: dict[str, Any], smuggled: dict[str, Any]) -> None:
    """Upstream goes by keys once there is a uuid, so a part that says it is text must hold nothing else."""
    error = refused(["hello", {**text, **smuggled}])
    assert error.param == f"messages[0].content[1].{next(iter(smuggled))}"


@pytest.mark.parametrize("name", ["mm_processor_kwargs", "media_io_kwargs"])
def test_fields_that_would_change_the_processing_are_refused(name: str) -> None:
    """Options of media processing would reach the decoder only, where no media is processed."""
    assert refused("hello", **{name: {"max_slice_nums": 1}}).param == name


@pytest.mark.parametrize(
    ("content", "param"),
    [
        ({"type": "text", "text": "one part without a list"}, "messages[0].content"),
        (7, "messages[0].content"),
        ([7], "messages[0].content[0]"),
        ([{"image_url": {"url": "data:,x"}}], "messages[0].content[0]"),
        ([{"type": 7}], "messages[0].content[0]"),
        ([{"type": "text"}], "messages[0].content[0].text"),
        ([{"type": "text", "text": None}], "messages[0].content[0].text"),
        ([{"type": "image_url", "image_url": {}}], "messages[0].content[0].image_url"),
        ([{"type": "image_url", "image_url": ""}], "messages[0].content[0].image_url"),
        ([{"type": "image_url", "image_url": ["x"]}], "messages[0].content[0].image_url"),
        ([{"type": "input_audio", "input_audio": "eA=="}], "messages[0].content[0].input_audio"),
        (
            [{"type": "input_audio", "input_audio": {"data": "eA==", "format": ["wav"]}}],
            "messages[0].content[0].input_audio.format",
        ),
    ],
)
def test_malformed_parts_are_refused_by_path(content: Any, param: str) -> None:
    """Whatever stands where a part should stand, the answer is a 400 that names the place."""
    assert refused(content).param == param


def test_more_parts_than_allowed_are_refused_at_the_first_too_many() -> None:
    """The limit holds over the whole request, and the error names the first part beyond it."""
    part = {"type": "image_url", "image_url": {"url": "data:,x"}}
    assert refused([part] * 5).param == "messages[0].content[3].image_url"


@pytest.mark.parametrize("messages", [None, [], {}, "hello", ["hello"], [None]])
def test_messages_that_are_none_hold_no_media(messages: Any) -> None:
    """They are upstream's to refuse, in its own words, and never an exception here."""
    assert find_media({"messages": messages}, ENCODERS, 3) == []
    assert with_embeddings({"messages": messages}, []) == {"messages": messages}


@pytest.mark.parametrize(
    ("kind", "lacks"), [("input_audio", "audio"), ("audio_url", "audio"), ("video_url", "video")]
)
def test_media_that_the_model_has_no_encoder_for_is_refused_by_name(kind: str, lacks: str) -> None:
    """A model without audio says so, and what it takes instead."""
    pictures_only = tuple(spec for spec in ENCODERS if spec.encoder == "vision")
    part = {"type": kind, kind: {"data": "AAAA", "format": "wav", "url": "https://example.com/a"}}
    with pytest.raises(HttpError, match=f"the model has no {lacks}.*it takes text, image_url") as refused:
        find_media({"messages": [{"role": "user", "content": [part]}]}, pictures_only, 8)
    assert (refused.value.status, refused.value.param) == (400, f"messages[0].content[0].{kind}")
