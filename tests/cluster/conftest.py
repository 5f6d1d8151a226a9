"""One running application and one undivided vLLM for all cluster tests that change neither."""

from collections.abc import Iterator

import pytest

from tests.servers import Server, running_app, running_undivided
from toy_model.write import ensure


@pytest.fixture(scope="session")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    # Short queues, so that a burst meets their ends; no other test has more than 50 in hand.
    queues = {"VisionEncoder": {"max_ongoing_requests": 16, "max_queued_requests": 48}}
    args = {"max_requests": 96, "log_encoding": "JSON"}
    with running_app(tmp_path_factory.mktemp("app"), args, queues) as server:
        yield server


@pytest.fixture(scope="session")
def undivided(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_undivided(tmp_path_factory.mktemp("undivided"), str(ensure())) as server:
        yield server
