"""The divided application answers what vLLM's own undivided server answers, token for token.

Needs: Ray, vLLM on the CPU, two servers at once (about 5 GB of memory). Real HTTP, the official client.
"""

import asyncio

import pytest

from tests.asking import ask_crowd, check_parity
from tests.cases import CASES, crowd_request
from tests.servers import Server, client


@pytest.mark.parametrize("name", CASES)
def test_tokens_equal_the_undivided_run(app: Server, undivided: Server, name: str) -> None:
    """Whole and streamed, each case's tokens, text, stop reason and prompt length equal vLLM's own."""
    check_parity(client(app), client(undivided), CASES[name])


def test_a_crowd_gets_no_answer_mixed_up(app: Server, undivided: Server) -> None:
    """64 different requests, 16 at once: each answer equals its own undivided answer, all differ."""
    requests = [crowd_request(number) for number in range(64)]
    expected = asyncio.run(ask_crowd(undivided.base_url, requests, at_once=1))
    assert len({said.tokens for said in expected}) == len(expected)
    assert asyncio.run(ask_crowd(app.base_url, requests, at_once=16)) == expected
