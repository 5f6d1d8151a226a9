"""The in-process application as a fixture, loaded only by the tests that take it."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.local.in_process import App


@pytest.fixture
def local_app(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> "Iterator[App]":
    """A running application; an indirect parameter gives arguments of its config."""
    from tests.local.in_process import running_app

    yield from running_app(monkeypatch, getattr(request, "param", {}))
