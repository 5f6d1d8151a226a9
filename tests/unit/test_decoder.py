"""The decoder's door: embeddings put in their places, and none that would harm the engine let in."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from deployments.decoder import Decoder, DecoderOptions
from deployments.errors import GraphServeError
from deployments.messages import EMBEDDING_PART, ChatHead, EncodedMedia
from policies.decoder_gpus import DecoderGpus
from tests.fakes import FakeChatEngine, FakeFamily

DecoderClass = Decoder.func_or_class  # type: ignore[attr-defined]
GOOD = EncodedMedia("u", "vision", "float32", np.ones((2, 4), np.float32), {"tokens": np.asarray([2])})


class Exited(Exception):
    """In the place of the process's end."""


def decoder(engine: FakeChatEngine, family: FakeFamily | None = None) -> Any:
    options = DecoderOptions("model", "name", "float32", False, None)
    return DecoderClass(options, family or FakeFamily(), engine)


def request(*parts: Any, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": list(parts)}], **fields}


def slot(index: int) -> dict[str, Any]:
    return {"type": EMBEDDING_PART, "index": index}


async def chat(one: Any, body: dict[str, Any], *embeddings: EncodedMedia) -> list[Any]:
    return [piece async for piece in one.chat(body, *embeddings)]


async def test_each_embedding_stands_where_its_index_says() -> None:
    """Parts of text, plain strings among them, stay; the i-th embedding fills the place with index i."""
    engine = FakeChatEngine()
    first, second = GOOD, replace(GOOD, uuid="v", encoder="audio")
    body = request("before", slot(1), {"type": "text", "text": "between"}, slot(0))
    head, _ = await chat(decoder(engine), body, first, second)
    assert head == ChatHead(200, False)
    content = engine.requests[0]["messages"][0]["content"]
    assert content[0] == "before"
    assert [p.get("uuid") for p in content[1:]] == ["v", None, "u"]
    assert [p["type"] for p in content[1:]] == ["audio_embeds", "text", "vision_embeds"]
    assert body["messages"][0]["content"][1] == slot(1), "the request must not change: it is tried again"


async def test_a_message_of_plain_text_passes() -> None:
    """Content that is a string or absent is left alone."""
    engine = FakeChatEngine()
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": None}]
    one = decoder(engine)
    assert one._fill({"messages": messages, "n": 2}, ()) == {"messages": messages, "n": 2}


def with_value(value: float) -> np.ndarray:
    data = np.ones((2, 4), np.float32)
    data[1, 3] = value
    return data


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (replace(GOOD, data=np.ones((2, 5), np.float32)), "hidden size 4"),
        (replace(GOOD, data=np.ones((8,), np.float32)), "hidden size 4"),
        (replace(GOOD, data=np.ones((1, 2, 4), np.float32)), "hidden size 4"),
        (replace(GOOD, data=np.ones((3, 4), np.float32)), "3 tokens where 2 belong"),
        (replace(GOOD, data=with_value(np.nan)), "not finite"),
        (replace(GOOD, data=with_value(-np.inf)), "not finite"),
        (replace(GOOD, data=np.zeros((2, 4), np.uint16), dtype="bfloat16"), "takes float32"),
    ],
    ids=["width", "rank1", "rank3", "tokens", "nan", "inf", "dtype"],
)
async def test_an_embedding_that_does_not_fit_never_reaches_the_engine(bad: EncodedMedia, why: str) -> None:
    """Shape, dtype, token count and finiteness are checked before upstream sees it; the replica lives."""
    engine = FakeChatEngine()
    one = decoder(engine)
    with pytest.raises(GraphServeError, match=why):
        await chat(one, request(slot(0)), bad)
    assert engine.requests == []
    assert len(await chat(one, request(slot(0)), GOOD)) == 2


async def test_a_dead_engine_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Upstream answers for a dead engine with an error body: the replica leaves instead of passing it on."""
    engine = FakeChatEngine()
    one = decoder(engine)

    def leave(code: int) -> None:
        raise Exited(code)

    monkeypatch.setattr("deployments.decoder.os._exit", leave)
    pieces = one.chat(request("hi", "there", stream=True))
    assert await anext(pieces) == ChatHead(200, True)
    engine.dead = True
    with pytest.raises(Exited):
        await anext(pieces)


async def test_encoder_weights_in_the_decoder_fail_the_start() -> None:
    """A decoder that loaded an encoder's modules never becomes ready."""
    engine = FakeChatEngine()
    one = decoder(engine)
    await one.check_health()
    engine.loaded_modules = lambda: _modules("language_model", "eye")  # type: ignore[method-assign]
    with pytest.raises(GraphServeError, match="eye"):
        await decoder(engine).check_health()


async def _modules(*names: str) -> tuple[str, ...]:
    return names


async def test_gpus_that_do_not_fit_fail_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder whose replica has other GPUs than vLLM divides over never starts an engine."""
    monkeypatch.setattr("deployments.decoder.held_gpus", lambda: DecoderGpus(2))
    with pytest.raises(GraphServeError, match=r"over 1 GPU .* is 2: set it to 1"):
        await decoder(FakeChatEngine()).check_health()


async def test_an_engine_on_a_neighbours_gpu_fails_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder whose engine holds its model on another GPU than Ray's never becomes ready."""
    engine = FakeChatEngine()
    engine.device_uuids = lambda: _modules("aaaa")  # type: ignore[method-assign]
    monkeypatch.setattr("deployments.decoder.assigned_gpus", lambda: ("1",))
    monkeypatch.setattr("deployments.placement.uuids_of_machine", lambda: ("aaaa", "bbbb"))
    with pytest.raises(GraphServeError, match=r"the decoder runs on GPU 0 \(aaaa\)"):
        await decoder(engine).check_health()
