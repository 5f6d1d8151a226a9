"""One running application and one undivided vLLM for all cluster tests that change neither."""

from collections.abc import Iterator

import pytest
from openai import AsyncOpenAI, OpenAI

from tests.servers import Server, running_app, running_undivided
from toy_model.write import ensure

MODEL = "graphserve-toy"


@pytest.fixture(scope="session")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_app(tmp_path_factory.mktemp("app")) as server:
        yield server


@pytest.fixture(scope="session")
def undivided(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_undivided(tmp_path_factory.mktemp("undivided"), str(ensure())) as server:
        yield server


def client(server: Server) -> OpenAI:
    """The official client, which must not try again by itself: we want to see every failure."""
    return OpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0, timeout=120)


def async_client(server: Server) -> AsyncOpenAI:
    """The same, asynchronous."""
    return AsyncOpenAI(base_url=f"{server.base_url}/v1", api_key="none", max_retries=0, timeout=120)
