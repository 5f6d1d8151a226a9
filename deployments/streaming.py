"""Joins the pieces of a stream that come faster than a hop between processes is worth."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable


async def joined(pieces: AsyncIterator[str], interval_s: Callable[[], float]) -> AsyncGenerator[str, None]:
    """Pass text on at once, but at most once per ``interval_s()``; what came meanwhile goes together.

    The text is the same, only the number of messages is smaller: a stream slower than the interval is
    passed on piece by piece, and neither the first piece nor the end waits. 0 turns joining off.
    """
    if interval_s() <= 0:
        async for piece in pieces:
            yield piece
        return
    buffer: list[str] = []
    news = asyncio.Event()

    async def read() -> None:
        try:
            async for piece in pieces:
                buffer.append(piece)
                news.set()
        finally:
            news.set()

    reader = asyncio.create_task(read(), name="join-stream")
    loop = asyncio.get_running_loop()
    try:
        while not reader.done() or buffer:
            await news.wait()
            news.clear()
            if buffer:
                sent_s = loop.time()
                text, buffer[:] = "".join(buffer), []
                yield text
                if not reader.done():
                    await asyncio.wait({reader}, timeout=max(0.0, sent_s + interval_s() - loop.time()))
        await reader  # raises what the stream raised, after all that came before it
    finally:
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
