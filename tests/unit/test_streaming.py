"""Joining the pieces of a stream."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from deployments.streaming import joined
from policies.streaming import interval_s


async def stream(
    pieces: list[str], pause_s: float = 0.0, error: Exception | None = None
) -> AsyncIterator[str]:
    for piece in pieces:
        yield piece
        await asyncio.sleep(pause_s)
    if error is not None:
        raise error


PIECES = [f"piece {n};" for n in range(50)]


@pytest.mark.parametrize("wait_s", [0.0, 0.001, 0.05])
async def test_the_text_is_the_same(wait_s: float) -> None:
    """Whatever the interval, the joined pieces are the stream's text in order."""
    assert "".join([text async for text in joined(stream(PIECES), lambda: wait_s)]) == "".join(PIECES)


async def test_a_fast_stream_takes_few_messages() -> None:
    """Fifty pieces within one interval become two messages at most."""
    messages = [text async for text in joined(stream(PIECES), lambda: 0.2)]
    assert len(messages) <= 2


async def test_a_slow_stream_is_passed_on_piece_by_piece() -> None:
    """Pieces further apart than the interval are not held back for company."""
    messages = [text async for text in joined(stream(PIECES[:4], pause_s=0.03), lambda: 0.005)]
    assert messages == PIECES[:4]


async def test_the_first_piece_does_not_wait() -> None:
    """The time to the first token does not grow by the interval."""
    texts = joined(stream(PIECES, pause_s=0.01), lambda: 5.0)
    assert await asyncio.wait_for(anext(texts), 1) == PIECES[0]
    await texts.aclose()


@pytest.mark.parametrize("error", [None, ValueError("broke")])
async def test_the_end_does_not_wait(error: Exception | None) -> None:
    """An answer is over when its last piece is there, not an interval later; so is one that breaks off."""
    texts = joined(stream(PIECES[:5], pause_s=0.01, error=error), lambda: 5.0)
    seen = ""
    with contextlib.suppress(ValueError):
        async with asyncio.timeout(1):
            async for text in texts:
                seen += text
    assert seen == "".join(PIECES[:5])


async def test_an_error_comes_after_what_came_before_it() -> None:
    """A stream that breaks gives its text first and its error then."""
    texts = joined(stream(PIECES[:3], error=ValueError("broke")), lambda: 0.01)
    seen = ""
    while len(seen) < len("".join(PIECES[:3])):
        seen += await anext(texts)
    assert seen == "".join(PIECES[:3])
    with pytest.raises(ValueError, match="broke"):
        await anext(texts)


async def test_closing_it_closes_the_stream() -> None:
    """A client that goes away ends the source, which frees the engine."""
    closed = asyncio.Event()

    async def endless() -> AsyncIterator[str]:
        try:
            while True:
                yield "x"
                await asyncio.sleep(0.001)
        finally:
            closed.set()

    source = endless()
    texts = joined(source, lambda: 0.01)
    await anext(texts)
    await texts.aclose()
    await source.aclose()
    assert closed.is_set()


def test_few_streams_wait_no_longer_than_the_least() -> None:
    """As long as all together stay under the rate, each sends as often as it may."""
    assert [interval_s(n, 0.02, 500) for n in (0, 1, 10)] == [0.02] * 3


def test_many_streams_share_the_rate() -> None:
    """However many they are, together they send no more messages a second than the rate."""
    for streams in (11, 32, 256):
        assert streams / interval_s(streams, 0.02, 500) == pytest.approx(500)


def test_nothing_waits_where_joining_is_off() -> None:
    """0 stays 0 with any number of streams."""
    assert interval_s(1000, 0.0, 500) == 0.0
