"""The status page in a real browser, over reports that say what a test wants. Needs: Chromium, else skipped.

``GRAPHSERVE_SCREENSHOTS`` names a folder to keep what the pages look like.
"""

import copy
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import browser
from tests.status_server import DESK, PHONE, Said, serving

pytestmark = pytest.mark.skipif(browser.program() is None, reason="no Chromium on this machine")


READY = "document.querySelectorAll('#replicas .card').length === 3"


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
def test_the_page_shows_the_reports(page: Any, size: tuple[int, int], dark: bool, tmp_path: Path) -> None:
    """Every part is there in words, fits the width of a phone and of a desk, and the console stays silent."""
    page.show(page.url, width=size[0], height=size[1], dark=dark)
    page.wait(READY)
    time.sleep(1.2)  # a second look at the same reports, which must change nothing
    page.keep(f"status-{'phone' if size == PHONE else 'desk'}-{'dark' if dark else 'light'}", tmp_path)
    text = page.text()
    for said in (
        "degraded: VisionEncoder", "2.00", "Refused (4xx)", "VisionEncoder", "GraphController",
        "failed", "warming", "ready", "graphs off", "34x30", "<b>capture</b> broke", "all slots taken",
    ):  # fmt: skip
        assert said in text, said
    assert page.value("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.problems == []


def test_states_do_not_hang_on_colour(page: Any) -> None:
    """Each state has a sign of its own beside its word."""
    page.show(page.url, width=DESK[0], height=DESK[1])
    page.wait(READY)
    signs = page.value(
        "Object.fromEntries([...document.querySelectorAll('#replicas .state')]"
        ".map(s => s.textContent.split(' ')).map(([sign, word]) => [word, sign]))"
    )
    assert set(signs) == {"ready", "failed", "warming"}
    assert len(set(signs.values())) == 3


def test_contrast_is_enough_to_read(page: Any) -> None:
    """Text stands out from its ground by 4.5 to 1 in light and in dark."""
    for dark in (False, True):
        page.show(page.url, width=DESK[0], height=DESK[1], dark=dark)
        page.wait(READY)
        colours = page.value(
            "(() => { const v = getComputedStyle(document.documentElement);"
            "return Object.fromEntries(['ground','card','text','quiet','accent','good','warn','bad']"
            ".map(n => [n, v.getPropertyValue('--' + n).trim()])) })()"
        )
        for ground in ("ground", "card"):
            for name in ("text", "quiet", "good", "warn", "bad"):
                ratio = contrast(colours[name], colours[ground])
                assert ratio >= 4.5, (dark, name, ground, ratio)


def contrast(one: str, other: str) -> float:
    """WCAG's contrast of two colours written as #rgb or #rrggbb."""
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def luminance(colour: str) -> float:
    digits = colour.removeprefix("#")
    digits = "".join(2 * d for d in digits) if len(digits) == 3 else digits
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_a_missing_report_is_said_and_the_page_comes_back(page: Any, said: Said, tmp_path: Path) -> None:
    """While no report comes the last one stays, dimmed and with its age; then the page goes on by itself."""
    page.show(page.url, width=DESK[0], height=DESK[1])
    page.wait(READY)
    page.call("Runtime.evaluate", expression="document.querySelector('#replicas details').open = true")
    said.broken = True
    page.wait("!document.querySelector('#notice').hidden")
    page.keep("status-missing", tmp_path)
    assert "503" in page.text()
    assert "old" in page.text()
    assert page.value(READY)
    said.broken = False
    page.wait("document.querySelector('#notice').hidden")
    assert page.value("document.querySelector('#replicas details').open"), (
        "a look closed what a reader opened"
    )


def test_a_report_without_parts_does_not_end_the_page(page: Any, said: Said) -> None:
    """Before the first collection there are no deployments and no replicas; a report of another shape is
    said to be one, and the next good one is shown.
    """
    good = copy.deepcopy(said.status)
    said.graphs["replicas"], said.graphs["recycles"], said.status["deployments"] = [], [], []
    page.show(page.url, width=PHONE[0], height=PHONE[1])
    page.wait("document.querySelector('#updated').textContent.startsWith('As of')")
    said.status = {}
    page.wait("!document.querySelector('#notice').hidden")
    said.status = good
    page.wait("document.querySelector('#notice').hidden")
    page.wait("document.querySelectorAll('.deployment').length === 5")
    assert page.problems == []


def test_a_key_is_asked_for_and_kept_for_the_tab(page: Any, said: Said, tmp_path: Path) -> None:
    """With API keys the page says so, takes one, and sends it from then on."""
    said.key = "secret"
    page.show(page.url, width=PHONE[0], height=PHONE[1])
    page.wait("!document.querySelector('#key').hidden")
    assert "Recent recycles" not in page.text(), "nothing is known yet, so nothing is said"
    page.keep("status-key", tmp_path)
    page.value("document.querySelector('#key-text').value = 'secret'")
    page.value("document.querySelector('#key').requestSubmit()")
    page.wait(READY)
    assert page.value("document.querySelector('#key').hidden")


def test_nothing_from_elsewhere_may_run(said: Said) -> None:
    """The policy of the page allows its own files and no inline code, and the files hold none."""
    with serving(said) as url, httpx.Client(base_url=url, trust_env=False) as api:
        answer = api.get("/")
        policy = dict(part.split(" ", 1) for part in answer.headers["content-security-policy"].split("; "))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert "style=" not in answer.text
        assert "http" not in answer.text.replace("GraphServe", "")
        for name in ("status.js", "try.js", "status.css"):
            assert api.get(f"/{name}").headers["content-security-policy"]
