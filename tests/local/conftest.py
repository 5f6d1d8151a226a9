"""The in-process application and the status page as fixtures, loaded only by the tests that take them."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests import browser
    from tests.local.in_process import App
    from tests.status_server import Said


@pytest.fixture
def local_app(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> "Iterator[App]":
    """A running application; an indirect parameter gives arguments of its config."""
    from tests.local.in_process import running_app

    yield from running_app(monkeypatch, getattr(request, "param", {}))


@pytest.fixture
def said() -> "Said":
    """What the server behind the status page says."""
    from tests.status_server import Said

    return Said()


@pytest.fixture(scope="session")
def tab(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[browser.Page]":
    """A tab of a real browser."""
    from tests import browser

    with browser.browsing(tmp_path_factory.mktemp("profile")) as page:
        yield page


@pytest.fixture
def page(said: "Said", tab: "browser.Page") -> "Iterator[browser.Page]":
    """The tab, with the status page's address in ``url``."""
    from tests.status_server import serving

    with serving(said) as url:
        tab.url = url  # type: ignore[attr-defined]
        yield tab
        tab.call("Page.navigate", url="about:blank")  # or it would go on asking
