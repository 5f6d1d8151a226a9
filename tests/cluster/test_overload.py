"""More requests at once than there is room for. Needs: Ray, vLLM on the CPU."""

import asyncio
import base64
import statistics
import time
from collections import Counter
from io import BytesIO
from typing import Any

import httpx
import openai
import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from tests import media
from tests.asking import Said, ask, ask_async, text, user
from tests.servers import Server, client
from tests.truth import LONGEST, Known, fault, pictures, right_alone

BURST = 200
PICTURES = 10
Refused = tuple[int, str, str | None]
"""Status, reason, Retry-After."""


@pytest.fixture(scope="module")
def few(app: Server) -> list[Known]:
    """Questions about a few pictures, answered rightly when asked alone."""
    return right_alone(app, pictures(((90, 70),), seed=3000), PICTURES)


def request(known: Known, copy: int = 0) -> Any:
    """The question about a picture; each copy is another file, so that it is encoded for itself."""
    picture, _ = known.question.messages[0]["content"]
    info = PngInfo()
    info.add_text("copy", str(copy))
    with Image.open(BytesIO(base64.b64decode(picture["image_url"]["url"].split(",")[1]))) as image:
        data = media.image_bytes(image, pnginfo=info)
    return user(dict(media.image_part(data)), text("What is in the picture?"))


async def one(api: openai.AsyncOpenAI, asked: Any) -> Said | Refused:
    """The answer or the refusal; anything else raises, so does a request that hangs."""
    try:
        return await asyncio.wait_for(ask_async(api, asked, LONGEST), 100)
    except openai.APIStatusError as error:
        body = error.body if isinstance(error.body, dict) else {}
        return error.status_code, str(body.get("message", "")), error.response.headers.get("retry-after")


async def burst(app: Server, asked: list[Any]) -> list[Said | Refused]:
    limits = httpx.Limits(max_connections=None)
    async with (
        httpx.AsyncClient(limits=limits, timeout=120, trust_env=False) as http,
        openai.AsyncOpenAI(
            base_url=f"{app.base_url}/v1", api_key="none", max_retries=0, http_client=http
        ) as api,
    ):
        return list(await asyncio.gather(*(one(api, each) for each in asked)))


def median_s(app: Server, few: list[Known], copies: range) -> float:
    """Seconds of one request at a time."""
    took = []
    for copy in copies:
        begun = time.monotonic()
        ask(client(app), request(few[copy % PICTURES], copy), LONGEST)
        took.append(time.monotonic() - begun)
    return statistics.median(took)


def in_hand(app: Server) -> float:
    """Requests in the decoder and seconds of work in the vision encoder, by the last collection."""
    report = httpx.get(f"{app.base_url}/v1/graphs", timeout=20, trust_env=False).json()
    waiting = sum(r["queued_s"] for r in report["replicas"])
    return float(waiting + sum(d["unfinished_requests"] for d in report["decoders"]))


async def test_a_burst_is_answered_or_refused_and_leaves_nothing_behind(
    app: Server, few: list[Known]
) -> None:
    """Of 200 requests with pictures each is answered right or refused with 429, and then all is as before."""
    before_s = median_s(app, few, range(1000, 1015))
    asked = [few[n % PICTURES] for n in range(BURST)]
    begun = time.monotonic()
    fates = await burst(app, [request(known, 1 + n) for n, known in enumerate(asked)])
    took_s = time.monotonic() - begun

    refused = [fate for fate in fates if not isinstance(fate, Said)]
    for status, reason, retry_after in refused:
        assert (status, retry_after) == (429, "1")
        assert "try again shortly" in reason
    answered = [(known, fate) for known, fate in zip(asked, fates, strict=True) if isinstance(fate, Said)]
    assert [wrong for known, fate in answered if (wrong := fault(known, fate, few))] == []
    assert 0 < len(refused) < BURST

    while in_hand(app):
        assert time.monotonic() - begun < 100, "work is left that nobody waits for"
        await asyncio.sleep(0.2)
    after_s = median_s(app, few, range(2000, 2015))
    print(f"{BURST - len(refused)} answered in {took_s:.1f} s, refused {Counter(r[1] for r in refused)}")
    print(f"median of one at a time {before_s * 1e3:.0f} ms before, {after_s * 1e3:.0f} ms after")
    assert after_s < 2 * before_s + 0.05


async def test_a_client_that_leaves_takes_no_other_with_it(app: Server, few: list[Known]) -> None:
    """Two ask about a picture whose encode waits for a replica; one goes away, the other is answered."""
    async with openai.AsyncOpenAI(base_url=f"{app.base_url}/v1", api_key="none", max_retries=0) as api:
        others = [asyncio.create_task(one(api, request(few[n % PICTURES], 5000 + n))) for n in range(40)]
        await asyncio.sleep(0.1)  # so that the queue is before ours
        first = asyncio.create_task(one(api, request(few[0], 6000)))
        await asyncio.sleep(0.05)
        second = asyncio.create_task(one(api, request(few[0], 6000)))
        await asyncio.sleep(0.05)
        assert not first.done()
        first.cancel()
        assert await second == few[0].said
        await asyncio.gather(*others)
