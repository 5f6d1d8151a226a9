"""A constant load of requests whose right answers are known, and what became of each."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

import openai

from tests.asking import ask, ask_async
from tests.servers import Server, client
from tests.truth import LONGEST, Known, Question, fault


def known_answers(reference: Server, requests: list[Any]) -> list[Known]:
    """Requests with their right answers, one at a time from a server that is trusted.

    For requests about media of which nothing is known; those of ``tests.truth`` show a mix-up in words.
    """
    said = [ask(client(reference), request, LONGEST) for request in requests]
    return [
        Known(Question(f"request {number}", request, one.text), one)
        for number, (request, one) in enumerate(zip(requests, said, strict=True))
    ]


@dataclass
class Fate:
    """What became of the requests. ``wrong`` and ``lost`` must stay empty."""

    sent: int = 0
    answered: int = 0
    refused: list[tuple[float, int, str]] = field(default_factory=list)  # time, status, reason
    wrong: list[str] = field(default_factory=list)
    lost: list[tuple[float, str]] = field(default_factory=list)

    def line(self) -> str:
        """One line for a report."""
        return (
            f"sent {self.sent}, answered {self.answered}, refused {len(self.refused)}, "
            f"wrong {len(self.wrong)}, lost {len(self.lost)}"
        )


class Load:
    """Keeps ``at_once`` requests in hand until stopped."""

    def __init__(self, server: Server, known: list[Known], at_once: int, timeout_s: float = 150) -> None:
        self.server = server
        self.known = known
        self.at_once = at_once
        self.timeout_s = timeout_s
        self.fate = Fate()
        self._stop = asyncio.Event()
        self._next = 0

    async def __aenter__(self) -> "Load":
        self._tasks = [asyncio.create_task(self._client()) for _ in range(self.at_once)]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        await asyncio.gather(*self._tasks)

    async def answered(self, more: int, within_s: float = 120) -> None:
        """Wait until ``more`` further requests were answered."""
        goal, until = self.fate.answered + more, time.monotonic() + within_s
        while self.fate.answered < goal:
            assert time.monotonic() < until, f"too slow: {self.fate.line()}"
            await asyncio.sleep(0.05)

    async def _client(self) -> None:
        api = openai.AsyncOpenAI(
            base_url=f"{self.server.base_url}/v1", api_key="none", max_retries=0, timeout=self.timeout_s
        )
        async with api:
            while not self._stop.is_set():
                await self._one(api)

    async def _one(self, api: openai.AsyncOpenAI) -> None:
        known = self.known[self._next % len(self.known)]
        self._next += 1
        self.fate.sent += 1
        try:
            said = await ask_async(api, known.question.messages, LONGEST)
        except openai.APIStatusError as error:
            body = error.body if isinstance(error.body, dict) else {}
            if error.status_code < 500 or (error.status_code in (503, 504) and body.get("message")):
                self.fate.refused.append((time.monotonic(), error.status_code, str(body.get("message"))))
            else:
                self.fate.lost.append((time.monotonic(), f"{error.status_code}: {error.message[:300]}"))
        except openai.APIConnectionError as error:
            self.fate.lost.append((time.monotonic(), repr(error)))
        else:
            self.fate.answered += 1
            wrong = fault(known, said, self.known)
            if wrong is not None:
                self.fate.wrong.append(wrong)
