"""One chat request from end to end: media fetched, encoded, handed by reference to the decoder."""

import asyncio
import contextlib
import hashlib
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any

from app.chat_parts import MediaPart, find_media, with_embeddings
from app.embedding_cache import EmbeddingCache, Encoded
from app.failures import classify, kind_of
from app.http_errors import HttpError, error_event, from_client_error
from app.media_fetch import MediaFetcher
from app.plain_text import PlainText
from deployments import tracing
from deployments.errors import ClientError
from deployments.families.base import Family
from deployments.messages import ChatHead, EncodeReceipt, MediaItem
from deployments.metrics import IngressMetrics
from policies.limits import MediaLimits
from policies.retry import ErrorKind, Failure, GiveUp, next_step

logger = logging.getLogger("ray.serve")


@dataclass(frozen=True)
class Answer:
    """What goes back: a status and either a whole body or an iterator of server-sent events.

    Who takes ``events`` calls ``cancel`` when done with them, read to the end or not begun.
    """

    status: int
    body: str | None = None
    events: AsyncIterator[str] | None = None
    cancel: Callable[[], None] = lambda: None
    media: str = "none"  # the encoders it took, joined by "+"


class ChatFront:
    """Turns requests into answers. Holds handles and references, never a tensor."""

    def __init__(
        self,
        family: Family,
        identity: str,
        encoders: dict[str, Any],
        decoder: Any,
        fetcher: MediaFetcher,
        limits: MediaLimits,
        cache: EmbeddingCache,
        deadline_s: float,
        control_tokens: tuple[str, ...] = (),
        metrics: IngressMetrics | None = None,
    ) -> None:
        self.family = family
        self.identity = identity
        self.encoders = {
            name: handle.options(stream=True, _by_reference=True) for name, handle in encoders.items()
        }
        self.decoder = decoder.options(stream=True, _by_reference=True)
        self.fetcher = fetcher
        self.limits = limits
        self.cache = cache
        self.plain_text = PlainText(control_tokens, family.placeholders)
        self.deadline_s = deadline_s
        self.metrics = metrics or IngressMetrics()
        self._ending: set[asyncio.Task[None]] = set()

    async def answer(self, request: dict[str, Any], request_id: str) -> Answer:
        """Answer one request. Raises HttpError for everything that is refused."""
        deadline_s = time.monotonic() + self.deadline_s
        try:
            async with asyncio.timeout(self.deadline_s) as deadline:
                media = find_media(request, self.family.encoders, self.limits.max_parts)
                ready = with_embeddings(request, media)
                ready = self.plain_text(ready, bool(media))
                items = await _all(self._item(part, request_id) for part in media)
                answer = await self._decode(ready, media, items, deadline_s)
                return replace(answer, media=media_label(media))
        except TimeoutError:
            if not deadline.expired():
                raise
            raise HttpError(504, f"the request took longer than {self.deadline_s:g} s") from None

    # ---- media ----

    async def _item(self, part: MediaPart, request_id: str) -> tuple[str, MediaItem]:
        """Fetch one medium and read its key off the header."""
        try:
            begun = time.monotonic()
            data = await self._bytes(part)
            ended, source = time.monotonic(), source_label(part)
            self.metrics.fetched(source, len(data), ended - begun)
            tracing.note("fetch", begun, ended, encoder=part.encoder, source=source, bytes=len(data))
            # Off the event loop: a hostile header or a hash of 32 MiB can cost a quarter of a second.
            key, uuid = await asyncio.to_thread(self._keys, part.encoder, data)
        except ClientError as error:
            self.metrics.rejected("fetch", error.code or "other", error.status)
            raise from_client_error(error, part.param) from error
        return part.encoder, MediaItem(data, key, uuid, request_id)

    def _keys(self, encoder: str, data: bytes) -> tuple[str, str]:
        """The media key, and the hash of all that the embedding depends on."""
        digest = hashlib.sha256(f"{self.identity}\0{encoder}\0".encode())
        digest.update(data)
        return self.family.media_key(encoder, data), digest.hexdigest()

    async def _bytes(self, part: MediaPart) -> bytes:
        if part.url is not None:
            return await self.fetcher.fetch(part.url)
        assert part.base64 is not None
        return await self.fetcher.from_base64(part.base64)

    # ---- encoders ----

    async def _encoded(self, encoder: str, item: MediaItem, param: str, deadline_s: float) -> Encoded:
        """The embedding of one item, from the cache or from an encoder, tried again where that helps."""

        async def once(avoid: frozenset[str]) -> Encoded:
            return await self.cache.get(item.uuid, lambda: self._encode(encoder, item, avoid))

        encoded: Encoded = await self._persist(once, deadline_s, encoder, param)
        return encoded

    async def _encode(self, encoder: str, item: MediaItem, avoid: frozenset[str]) -> Encoded:
        """One encode. The receipt is read, the embedding stays where it is."""
        begun = time.monotonic()
        call = self.encoders[encoder].encode.remote(item, shape_key=item.media_key, avoid=tuple(avoid))
        try:
            refs = await call._to_object_ref_gen()  # waits for a replica with room
            receipt: EncodeReceipt | ClientError = await (await refs.__anext__())
            embedding = None if isinstance(receipt, ClientError) else await refs.__anext__()
        except asyncio.CancelledError:
            call.cancel()
            raise
        ending = asyncio.create_task(_to_its_end(refs))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        if isinstance(receipt, ClientError):
            raise receipt
        self.metrics.encoded(receipt, time.monotonic() - begun)
        return Encoded(receipt, embedding)

    # ---- decoder ----

    async def _decode(
        self,
        request: dict[str, Any],
        media: list[MediaPart],
        items: list[tuple[str, MediaItem]],
        deadline_s: float,
    ) -> Answer:
        """Encode what must be, and start the decoder on it; again, as long as nothing was streamed."""

        deaths = 0

        async def once(avoid: frozenset[str]) -> Answer:
            nonlocal deaths
            encoded = await _all(
                self._encoded(encoder, item, part.param, deadline_s)
                for part, (encoder, item) in zip(media, items, strict=True)
            )
            begun = time.monotonic()
            call = self.decoder.chat.remote(request, *(e.ref for e in encoded))
            try:
                head: ChatHead = await anext(call)
                answered = time.monotonic()
                self.metrics.handed_over(answered - begun - head.spent_s, media_label(media))
                if not head.streaming:
                    self.metrics.spent("answer", head.spent_s)
                    return Answer(head.status, body=await anext(call))
                first: str = await anext(call)
                self.metrics.spent("first_token", head.spent_s + time.monotonic() - answered)
            except asyncio.CancelledError:
                call.cancel()
                raise
            except Exception as error:
                kind = kind_of(error)
                deaths += kind is ErrorKind.DIED
                # A decoder that dies takes no embedding along. What dies twice may be where one lay.
                if kind is not ErrorKind.FULL and (kind is not ErrorKind.DIED or deaths > 1):
                    for (_, item), held in zip(items, encoded, strict=True):
                        self.cache.forget(item.uuid, held)
                raise
            running = _Running(call)
            return Answer(head.status, events=self._events(running, first, deadline_s), cancel=running.cancel)

        answer: Answer = await self._persist(once, deadline_s, "decoder", None)
        return answer

    async def _events(self, running: "_Running", first: str, deadline_s: float) -> AsyncIterator[str]:
        """Pass the decoder's events on; end with an error event when it breaks off."""
        try:
            yield first
            while True:
                try:
                    async with asyncio.timeout(deadline_s - time.monotonic()) as deadline:
                        piece: str = await anext(running.call)
                except StopAsyncIteration:
                    running.ended = True
                    return
                except TimeoutError:
                    if not deadline.expired():
                        raise
                    self.metrics.attempt_failed("decoder", "deadline_in_stream")
                    yield error_event(HttpError(504, f"the request took longer than {self.deadline_s:g} s"))
                    return
                yield piece
        except Exception as error:
            self.metrics.attempt_failed("decoder", "broken_stream")
            logger.warning("the decoder broke off in mid-stream: %r", error)
            yield error_event(HttpError(503, "the decoder broke off in mid-stream; the answer is incomplete"))
        finally:
            running.cancel()

    # ---- trying again ----

    async def _persist(
        self,
        once: Callable[[frozenset[str]], Awaitable[Any]],
        deadline_s: float,
        part: str,
        param: str | None,
    ) -> Any:
        """Call ``once``, which asks ``part``, until it works or the retry policy gives up."""
        attempts, avoid = 0, frozenset[str]()
        while True:
            attempts += 1
            try:
                return await once(avoid)
            except (HttpError, asyncio.CancelledError):
                raise
            except Exception as error:
                kind, cause = classify(error)
                if isinstance(cause, ClientError):
                    self.metrics.rejected("encode", cause.code or "other", cause.status)
                    raise from_client_error(cause, param) from error
                self.metrics.attempt_failed(part, kind.value)
                where = getattr(cause, "replica_id", None)
                failure = Failure(kind, attempts, deadline_s, replica_id=where, excluded=avoid)
                step = next_step(failure, time.monotonic(), jitter=random.random())
                if isinstance(step, GiveUp):
                    raise HttpError(step.status, f"{step.reason}: {cause}", param) from error
                logger.warning(
                    "attempt %d failed (%s: %s), the next in %.2f s", attempts, kind, cause, step.after_s
                )
                avoid = step.exclude
                await asyncio.sleep(step.after_s)


@dataclass
class _Running:
    """A streaming call of the decoder, cancelled at most once and not after its end."""

    call: Any
    ended: bool = False

    def cancel(self) -> None:
        if not self.ended:
            self.ended = True
            self.call.cancel()


def media_label(media: list[MediaPart]) -> str:
    """The encoders of a request's media, joined by "+"; "none" without media."""
    return "+".join(sorted({part.encoder for part in media})) or "none"


def source_label(part: MediaPart) -> str:
    """Where a medium comes from: its URL's scheme as far as it is one that may be taken, or base64."""
    if part.url is None:
        return "base64"
    scheme = part.url[: max(part.url.find(":"), 0)].lower()
    return scheme if scheme in ("data", "https", "http", "file") else "other"


async def _to_its_end(refs: Any) -> None:
    """Read a stream whose last item is there to its end, so that Serve counts the call as done."""
    with contextlib.suppress(Exception):  # whatever becomes of the replica, its answer was whole
        await anext(refs, None)


async def _all(jobs: Any) -> list[Any]:
    """Run jobs together; the first failure cancels the others and is raised as it is."""
    tasks = [asyncio.ensure_future(job) for job in jobs]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
