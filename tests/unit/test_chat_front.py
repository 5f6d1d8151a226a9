"""One request through ChatFront with scripted handles: what is tried again, what is not, how it ends."""

import asyncio
import base64
import json
from typing import Any

import pytest
import ray.exceptions
from ray.serve.exceptions import BackPressureError

from app import chat
from app.chat import Answer, ChatFront
from app.embedding_cache import EmbeddingCache
from app.http_errors import HttpError
from app.media_fetch import FetchOptions, MediaFetcher
from deployments.errors import ClientError, TerminalError, TransientError
from deployments.messages import EMBEDDING_PART, ChatHead
from policies.limits import MediaLimits
from tests.fakes import HANG, LOST, FakeDecoderHandle, FakeEncoderHandle, FakeFamily

STREAM = [ChatHead(200, True), "data: one\n\n", "data: two\n\n", "data: [DONE]\n\n"]
DIED = ray.exceptions.ActorDiedError()


class Setting:
    """A ChatFront and its scripted neighbours."""

    def __init__(
        self,
        vision: FakeEncoderHandle,
        audio: FakeEncoderHandle,
        decoder: FakeDecoderHandle,
        deadline_s: float,
    ) -> None:
        self.vision, self.audio, self.decoder = vision, audio, decoder
        limits = MediaLimits()
        self.front = ChatFront(
            FakeFamily(),
            "identity",
            {"vision": vision, "audio": audio},
            decoder,
            MediaFetcher(FetchOptions(), limits),
            limits,
            EmbeddingCache(1 << 20),
            deadline_s,
        )

    async def ask(self, *parts: Any) -> Answer:
        request = {"messages": [{"role": "user", "content": list(parts)}]}
        return await asyncio.wait_for(self.front.answer(request, "request-1"), 20)

    async def refused(self, *parts: Any) -> HttpError:
        with pytest.raises(HttpError) as caught:
            await self.ask(*parts)
        return caught.value


def setting(
    *,
    vision: tuple[Any, ...] = (),
    audio: tuple[Any, ...] = (),
    decoder: tuple[Any, ...] = (),
    deadline_s: float = 15.0,
) -> Setting:
    return Setting(
        FakeEncoderHandle(*vision), FakeEncoderHandle(*audio), FakeDecoderHandle(*decoder), deadline_s
    )


@pytest.fixture(autouse=True)
def _shortest_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat.random, "random", lambda: 0.999)


def picture(content: str = "4x4:cat") -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:,{content}"}}


def sound(content: str = "f9:meow") -> dict[str, Any]:
    data = base64.b64encode(content.encode()).decode()
    return {"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}


async def said(answer: Answer) -> list[str]:
    assert answer.events is not None
    return [event async for event in answer.events]


def error_of(event: str) -> dict[str, Any]:
    first, done = event.strip().split("\n\n")
    assert done == "data: [DONE]"
    error: dict[str, Any] = json.loads(first.removeprefix("data: "))["error"]
    return error


# ---- what goes where ----


async def test_text_touches_no_encoder() -> None:
    """A request of text alone goes to the decoder as it is."""
    s = setting()
    assert (await s.ask("hello", {"type": "text", "text": "you"})).body == "{}"
    assert s.vision.items == s.audio.items == []
    assert s.decoder.requests[0]["messages"][0]["content"] == ["hello", {"type": "text", "text": "you"}]


async def test_embeddings_go_to_the_decoder_in_order_of_the_parts() -> None:
    """The i-th reference belongs to the i-th medium, whichever encoder made it."""
    s = setting()
    await s.ask(sound("f9:a"), "between", picture("4x4:b"), picture("2x2:c"))
    content = s.decoder.requests[0]["messages"][0]["content"]
    assert [p.get("index") if isinstance(p, dict) else p for p in content] == [0, "between", 1, 2]
    assert {p["type"] for p in content if isinstance(p, dict)} == {EMBEDDING_PART}
    uuids = [ref.value.uuid for ref in s.decoder.refs[0]]
    assert uuids == [s.audio.items[0].uuid, *(item.uuid for item in s.vision.items)]
    assert [(i.data, i.media_key) for i in s.vision.items] == [(b"4x4:b", "4x4"), (b"2x2:c", "2x2")]


async def test_the_same_medium_is_encoded_once() -> None:
    """Equal bytes in one request and in the next cost one encode; the other encoder's are its own."""
    s = setting()
    await s.ask(picture("4x4:x"), picture("4x4:x"), sound("4x4:x"))
    await s.ask(picture("4x4:x"))
    assert (len(s.vision.items), len(s.audio.items)) == (1, 1)
    assert s.vision.items[0].uuid != s.audio.items[0].uuid
    assert len(s.decoder.refs[0]) == 3


# ---- encoders that fail ----


@pytest.mark.parametrize(
    "error",
    [
        DIED,
        TerminalError("failed for good", "r1"),
        TransientError("busy", "r1"),
        TimeoutError("raised in the replica, not our deadline"),
        ray.exceptions.GetTimeoutError("late"),
        ValueError("odd"),
    ],
    ids=lambda e: type(e).__name__,
)
async def test_an_encode_that_failed_is_tried_again(error: Exception) -> None:
    """The client sees no error when another try succeeds, and that replica is avoided where known."""
    s = setting(vision=(error, error))
    assert (await s.ask(picture())).status == 200
    assert len(s.vision.items) == 3
    where = getattr(error, "replica_id", None)
    assert s.vision.avoided[1:] == [(where,) if where else ()] * 2


async def test_bad_media_is_not_tried_again_and_names_its_part() -> None:
    """A client's fault is answered at once, by the path of the part at fault."""
    s = setting(audio=(ClientError("this part is damaged", code="media_invalid"),))
    error = await s.refused("listen", sound())
    assert (error.status, error.param, error.code) == (
        400,
        "messages[0].content[1].input_audio",
        "media_invalid",
    )
    assert len(s.audio.items) == 1
    assert s.decoder.requests == []


async def test_a_bad_header_is_refused_before_any_encoder() -> None:
    """What the header alone shows to be bad costs no encoder a thing."""
    s = setting()
    error = await s.refused(picture("4x4:good"), picture("bad:x"))
    assert (error.status, error.param) == (400, "messages[0].content[1].image_url")
    assert s.vision.items == []


async def test_when_nothing_helps_the_answer_is_503_with_a_reason() -> None:
    """Tries are bounded, and the client learns what failed and for which part."""
    s = setting(vision=[TerminalError("graphs failed for good", "r1")] * 20)
    error = await s.refused(picture())
    assert (error.status, error.param) == (503, "messages[0].content[0].image_url")
    assert "graphs failed for good" in error.message
    assert 1 < len(s.vision.items) < 20


async def test_the_first_failure_cancels_the_others() -> None:
    """When one medium is refused, the encodes of the others stop at once instead of at the deadline."""
    s = setting(vision=(HANG,), audio=(ClientError("bad"),))
    error = await asyncio.wait_for(s.refused(picture(), sound()), 3)
    assert error.param == "messages[0].content[1].input_audio"
    assert [call.cancelled for call in s.vision.calls] == [1]


async def test_an_embedding_that_was_lost_is_encoded_again() -> None:
    """The decoder finds the object gone: the cached reference is dropped and the medium encoded anew."""
    s = setting(vision=(LOST,))
    assert (await s.ask(picture(), "text")).status == 200
    assert (len(s.vision.items), len(s.decoder.requests)) == (2, 2)


async def test_a_full_queue_is_429_at_once() -> None:
    """An encoder's queue that is full is neither asked again nor a reason to encode anything anew."""
    s = setting(vision=(BackPressureError(8, 8),))
    error = await s.refused("look", picture())
    assert (error.status, error.param) == (429, "messages[0].content[1].image_url")
    assert error.response().headers["retry-after"] == "1"
    assert len(s.vision.items) == 1


async def test_a_full_decoder_is_429_and_the_embeddings_stay() -> None:
    """A decoder's queue that is full loses no embedding: the next try finds it in the cache."""
    s = setting(decoder=([BackPressureError(8, 8)],))
    assert (await s.refused(picture())).status == 429
    assert (await s.ask(picture())).status == 200
    assert len(s.vision.items) == 1


async def test_a_decoder_that_died_takes_no_embedding_along() -> None:
    """The next replica gets the embedding that is held; nothing is encoded anew."""
    s = setting(decoder=([DIED],))
    assert (await s.ask(picture())).status == 200
    assert (len(s.vision.items), len(s.decoder.requests)) == (1, 2)


async def test_an_embedding_is_made_again_where_the_dead_may_be_its_own_replica() -> None:
    """A loss that shows as a dead actor heals too: at the second death the medium is encoded anew."""
    s = setting(decoder=([DIED], [DIED]))
    assert (await s.ask(picture())).status == 200
    assert (len(s.vision.items), len(s.decoder.requests)) == (2, 3)


# ---- deadlines ----


async def test_an_encoder_that_hangs_is_504_and_cancelled() -> None:
    """Past the deadline the client gets an answer and the encode is called off."""
    s = setting(vision=(HANG,), deadline_s=0.2)
    error = await s.refused(picture())
    assert error.status == 504
    assert [call.cancelled for call in s.vision.calls] == [1]


async def test_a_decoder_that_hangs_is_504_and_cancelled() -> None:
    """The same for a decoder that says nothing."""
    s = setting(decoder=([HANG],), deadline_s=0.2)
    assert (await s.refused("hello")).status == 504
    assert [call.cancelled for call in s.decoder.calls] == [1]


async def test_the_deadline_holds_in_mid_stream() -> None:
    """A stream that stalls ends with an error event, not in silence, and the call is called off."""
    s = setting(decoder=([*STREAM[:2], HANG],), deadline_s=0.3)
    events = await said(await s.ask("hello"))
    assert events[0] == STREAM[1]
    assert error_of(events[1])["code"] == 504
    assert [call.cancelled for call in s.decoder.calls] == [1]


# ---- the decoder's answer ----


async def test_a_stream_is_passed_on_whole_and_not_cancelled_after_its_end() -> None:
    """Every event in order; cancelling what has ended would be a message for nothing."""
    s = setting(decoder=(STREAM,))
    answer = await s.ask("hello")
    assert await said(answer) == STREAM[1:]
    answer.cancel()
    assert s.decoder.calls[0].cancelled == 0


async def test_the_decoders_own_refusal_is_passed_on() -> None:
    """A status and body of upstream's serving reach the client as they are, once."""
    s = setting(decoder=([ChatHead(400, False), '{"error": 1}'],))
    answer = await s.ask("hello")
    assert (answer.status, answer.body) == (400, '{"error": 1}')
    assert len(s.decoder.requests) == 1


@pytest.mark.parametrize("items", [[DIED], [ChatHead(200, True), DIED], [ChatHead(200, False), DIED]])
async def test_a_decoder_that_dies_before_the_first_event_is_tried_again(items: list[Any]) -> None:
    """As long as the client has seen nothing, a dead decoder is no error of the request."""
    s = setting(decoder=(items, STREAM))
    assert await said(await s.ask(picture())) == STREAM[1:]
    assert len(s.decoder.requests) == 2


async def test_a_break_in_mid_stream_ends_with_an_error_event() -> None:
    """What was sent cannot be taken back: the rest is an error and [DONE], and no second try."""
    s = setting(decoder=([*STREAM[:3], DIED], STREAM))
    events = await said(await s.ask("hello"))
    assert events[:2] == STREAM[1:3]
    assert error_of(events[2])["code"] == 503
    assert len(s.decoder.requests) == 1


async def test_a_timeout_error_of_the_decoders_is_a_break_and_not_our_deadline() -> None:
    """Only our own deadline is told as one."""
    s = setting(decoder=([*STREAM[:2], TimeoutError("inside")],))
    assert error_of((await said(await s.ask("hello")))[1])["code"] == 503


async def test_a_client_that_leaves_in_mid_stream_cancels_the_decoder() -> None:
    """Closing the events calls the decoder off, once."""
    s = setting(decoder=([*STREAM[:2], HANG],))
    answer = await s.ask("hello")
    assert answer.events is not None
    await anext(answer.events)
    await answer.events.aclose()  # type: ignore[attr-defined]
    answer.cancel()
    assert s.decoder.calls[0].cancelled == 1


async def test_a_client_that_leaves_before_the_first_event_cancels_the_decoder() -> None:
    """Events that nobody began to read hold no request in the decoder."""
    s = setting(decoder=(STREAM,))
    answer = await s.ask("hello")
    answer.cancel()
    assert s.decoder.calls[0].cancelled == 1


async def test_a_client_that_leaves_while_encoding_cancels_the_encoder() -> None:
    """The request's task is cancelled: so is its encode, and nothing of it stays in the cache."""
    s = setting(vision=(HANG,))
    task = asyncio.create_task(s.ask(picture()))
    while not s.vision.calls:
        await asyncio.sleep(0)
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert s.vision.calls[0].cancelled == 1
    assert not s.front.cache._running
