"""Parity in bfloat16, one request at a time. Needs: Ray, vLLM on the CPU, two servers at once.

One at a time, for continuous batching promises no equal bits in bfloat16.
"""

from collections.abc import Iterator

import pytest

from tests.asking import check_parity
from tests.cases import CASES
from tests.servers import Server, client, running_app, running_undivided
from toy_model.write import ensure

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_app(tmp_path_factory.mktemp("app-bf16"), {"dtype": "bfloat16"}) as server:
        yield server


@pytest.fixture(scope="module")
def half_undivided(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("undivided-bf16")
    with running_undivided(folder, str(ensure()), dtype="bfloat16") as server:
        yield server


@pytest.mark.parametrize("name", CASES)
def test_tokens_equal_the_undivided_run(half: Server, half_undivided: Server, name: str) -> None:
    """Each case's tokens equal vLLM's own in bfloat16, whole and streamed."""
    check_parity(client(half), client(half_undivided), CASES[name])
