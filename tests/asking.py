"""Chat requests and their answers, in the form that parity is judged by."""

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import httpx
from openai import AsyncOpenAI, OpenAI

MODEL = "graphserve-toy"


@dataclass(frozen=True)
class Said:
    """An answer: its text, its tokens one by one, and what it cost."""

    text: str
    tokens: tuple[str, ...]
    prompt_tokens: int
    finish_reason: str


def user(*parts: dict[str, Any]) -> list[dict[str, Any]]:
    """One user message of these parts."""
    return [{"role": "user", "content": list(parts)}]


def text(words: str) -> dict[str, Any]:
    """A text part."""
    return {"type": "text", "text": words}


def as_text(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same messages for the undivided server, which reads control tokens unless they are broken."""
    broken = json.dumps(messages, ensure_ascii=False).replace("<|", "<\u200b|")
    return list(json.loads(broken))


def _options(messages: list[dict[str, Any]], max_tokens: int) -> dict[str, Any]:
    return {
        "model": MODEL,
        "messages": messages,
        "max_tokens": max_tokens,
        "temperature": 0,
        "logprobs": True,
    }


def ask(client: OpenAI, messages: list[dict[str, Any]], max_tokens: int = 24) -> Said:
    """Ask greedily and wait for the whole answer."""
    return _whole(client.chat.completions.create(**_options(messages, max_tokens)))


async def ask_async(client: AsyncOpenAI, messages: list[dict[str, Any]], max_tokens: int = 24) -> Said:
    """The same, beside others."""
    return _whole(await client.chat.completions.create(**_options(messages, max_tokens)))


def ask_streamed(client: OpenAI, messages: list[dict[str, Any]], max_tokens: int = 24) -> Said:
    """Ask greedily and put the streamed answer together."""
    options = _options(messages, max_tokens)
    chunks = client.chat.completions.create(**options, stream=True, stream_options={"include_usage": True})
    return _joined(chunks)


def _whole(answer: Any) -> Said:
    choice = answer.choices[0]
    tokens = tuple(entry.token for entry in choice.logprobs.content)
    return Said(choice.message.content, tokens, answer.usage.prompt_tokens, choice.finish_reason)


def _joined(chunks: Iterable[Any]) -> Said:
    words: list[str] = []
    tokens: list[str] = []
    prompt_tokens, reason = -1, ""
    for chunk in chunks:
        if chunk.usage is not None:
            prompt_tokens = chunk.usage.prompt_tokens
        for choice in chunk.choices:
            words.append(choice.delta.content or "")
            tokens += [entry.token for entry in (choice.logprobs.content if choice.logprobs else [])]
            reason = choice.finish_reason or reason
    return Said("".join(words), tuple(tokens), prompt_tokens, reason)


def check_parity(client: OpenAI, reference: OpenAI, messages: list[dict[str, Any]], times: int = 1) -> Said:
    """Assert that the whole and the streamed answer equal the reference's, token for token.

    ``times`` more whole answers are compared after the streamed one. Returns the reference's answer.
    """
    expected = ask(reference, messages)
    check_said(client, expected, messages)
    for _ in range(times - 1):
        assert ask(client, messages) == expected
    return expected


def check_said(client: OpenAI, expected: Said, messages: list[dict[str, Any]]) -> None:
    """Assert that the whole and the streamed answer are this one, token for token."""
    assert len(expected.tokens) > 0
    assert ask(client, messages) == expected
    assert ask_streamed(client, messages) == expected


async def ask_crowd(
    base_url: str, requests: list[Any], at_once: int, max_tokens: int = 24, timeout_s: float = 120
) -> list[Said]:
    """Every request's answer, at most ``at_once`` in hand."""
    gate = asyncio.Semaphore(at_once)
    async with AsyncOpenAI(
        base_url=f"{base_url}/v1", api_key="none", max_retries=0, timeout=timeout_s
    ) as api:

        async def one(request: Any) -> Said:
            async with gate:
                return await ask_async(api, request, max_tokens)

        return await asyncio.gather(*map(one, requests))


def prompt_ids(base_url: str, messages: list[dict[str, Any]]) -> list[int]:
    """The tokens that the engine is given for these messages. Raises where the answer is no 200."""
    body = {"model": MODEL, "messages": messages, "max_tokens": 2, "return_token_ids": True}
    answer = httpx.post(f"{base_url}/v1/chat/completions", json=body, timeout=60, trust_env=False)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["prompt_token_ids"])


def check_written_is_text(base_url: str, written: str, picture: dict[str, Any]) -> None:
    """Assert that a medium's marks in a client's text give no place to a medium.

    The picture's tokens stand once, at the prompt's end, whether the text is a part or a turn before it.
    """
    plain = prompt_ids(base_url, user(picture))
    place = max(set(plain), key=plain.count)
    end = plain[plain.index(place) :]
    turn_before = [{"role": "user", "content": written}, {"role": "assistant", "content": "Yes"}]
    for messages in (user(text(written), picture), [*turn_before, *user(picture)]):
        ids = prompt_ids(base_url, messages)
        assert ids[-len(end) :] == end
        assert ids.count(place) == end.count(place)
