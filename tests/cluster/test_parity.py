"""The divided application answers what vLLM's own undivided server answers, token for token.

Needs: Ray, vLLM on the CPU, two servers at once (about 5 GB of memory). Real HTTP, the official client.
"""

import pytest

from tests.asking import check_parity
from tests.cases import CASES
from tests.servers import Server, client


@pytest.mark.parametrize("name", CASES)
def test_tokens_equal_the_undivided_run(app: Server, undivided: Server, name: str) -> None:
    """Whole and streamed, each case's tokens, text, stop reason and prompt length equal vLLM's own."""
    check_parity(client(app), client(undivided), CASES[name])
