"""The whole application on one card, encoder graphs on, against undivided vLLM on the same card.

Needs: one NVIDIA GPU with 16 GB or more, Ray, vLLM's CUDA build.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.asking import ask_crowd, check_parity
from tests.cases import CASES
from tests.servers import Server, client, running_app, running_undivided
from tests.truth import LONGEST, crowd, fault, right_alone
from toy_model.write import ensure

ENGINE = {"max_model_len": 8192, "gpu_memory_utilization": 0.2, "max_num_seqs": 64}


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    args = {"embedding_cache_bytes": 0}  # every request must reach an encoder
    with running_app(tmp_path_factory.mktemp("app"), args, source="configs/toy-gpu.yaml") as server:
        yield server


@pytest.fixture(scope="module")
def undivided(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("undivided")
    with running_undivided(folder, str(ensure()), engine=ENGINE) as server:
        yield server


def totals(server: Server) -> dict[str, Any]:
    report = httpx.get(f"{server.base_url}/v1/graphs", timeout=20, trust_env=False).json()
    return dict(report["totals"])


@pytest.mark.parametrize("name", CASES)
def test_tokens_equal_the_undivided_run(app: Server, undivided: Server, name: str) -> None:
    """Eagerly, at the capturing call and in replay, each case's tokens equal vLLM's own."""
    check_parity(client(app), client(undivided), CASES[name], times=2)


def test_a_crowd_gets_no_answer_mixed_up(app: Server, undivided: Server) -> None:
    """64 different questions, 16 at once, graphs on: each answer is the true one and the undivided run's."""
    known = right_alone(undivided, crowd(seed=64), 64)
    asked = [each.question.messages for each in known]
    answers = asyncio.run(ask_crowd(app.base_url, asked, at_once=16, max_tokens=LONGEST))
    wrong = (fault(one, said, known) for one, said in zip(known, answers, strict=True))
    assert [words for words in wrong if words] == []


def test_graphs_were_hit(app: Server) -> None:
    """What the tests above proved was proven on replays: both encoders counted hits and hold graphs."""
    for encoder, counts in totals(app).items():
        assert counts["graph_hits"] > 0, (encoder, counts)
        assert 0 < counts["num_graphs"] <= 4, (encoder, counts)
        assert counts["capture_failures"] == 0, (encoder, counts)
