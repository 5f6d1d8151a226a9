"""What the status page offers to try, in a real browser, over answers that a test scripts. Needs: Chromium.

``GRAPHSERVE_SCREENSHOTS`` names a folder to keep what the pages look like.
"""

import base64
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests import browser
from tests.servers import ROOT
from tests.status_server import DESK, PHONE, Said, serving

pytestmark = pytest.mark.skipif(browser.program() is None, reason="no Chromium on this machine")

ANSWER = "document.querySelector('#answer').textContent"
STATE = "document.querySelector('#try-state').textContent"
FINISHED = "document.querySelector('#ask').textContent === 'Ask'"


def ask(page: Any) -> None:
    page.value("document.querySelector('#try').requestSubmit()")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
def test_the_example_is_sent_as_it_is_shown(
    page: Any, said: Said, size: tuple[int, int], dark: bool, tmp_path: Path
) -> None:
    """The picture and the sound that are shown go out with the question, and the answer stands there."""
    page.show(page.url, width=size[0], height=size[1], dark=dark)
    page.wait("document.querySelector('#try img').naturalWidth === 480")
    page.wait("document.querySelector('#try audio').duration > 0.5")
    ask(page)
    page.wait(f"{STATE}.includes('another-model')")
    page.keep(f"try-{'phone' if size == PHONE else 'desk'}-{'dark' if dark else 'light'}", tmp_path)
    assert page.value(ANSWER) == "The word is seven."
    (body,) = said.asked
    picture, sound, question = body["messages"][0]["content"]
    assert _bytes(picture["image_url"]["url"].split(",")[1]) == (ROOT / "examples/picture.png").read_bytes()
    assert _bytes(sound["input_audio"]["data"]) == (ROOT / "examples/word.wav").read_bytes()
    assert question == {"type": "text", "text": "What do you see and hear?"}
    assert page.value("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.problems == []


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)


def test_an_answer_is_written_as_it_comes_and_can_be_stopped(page: Any, said: Said) -> None:
    """Words stand there before the answer ends; the button, now Stop, ends it and asks again afterwards."""
    said.goes_on.clear()
    page.show(page.url, width=DESK[0], height=DESK[1])
    ask(page)
    page.wait(f"{ANSWER} === 'The word'")
    assert page.value("document.querySelector('#ask').textContent") == "Stop"
    assert page.value("document.querySelector('#answer').getAttribute('aria-busy')") == "true"
    ask(page)
    page.wait(FINISHED)
    assert "stopped" in page.value(STATE)
    said.goes_on.set()
    ask(page)
    page.wait(f"{ANSWER} === 'The word is seven.'")
    assert page.value("document.querySelector('#answer').getAttribute('aria-busy')") == "false"


def test_the_keyboard_is_enough(page: Any, said: Said) -> None:
    """By Tab, Space and Enter alone the picture is left out and the question asked; the focus can be seen."""
    page.show(page.url, width=DESK[0], height=DESK[1])
    page.wait(f"{STATE}.startsWith('Nothing asked')")
    page.press("Tab")
    assert page.value("document.activeElement.id") == "with-picture"
    assert page.value("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    page.press(" ")
    reached = []
    for _ in range(12):  # the player's own controls come between
        page.press("Tab")
        reached.append(page.value("document.activeElement.id"))
        if reached[-1] == "question":
            break
    assert "with-sound" in reached
    page.press("Enter")
    page.wait(f"{STATE}.includes('another-model')")
    assert [part["type"] for part in said.asked[0]["messages"][0]["content"]] == ["input_audio", "text"]


@pytest.mark.parametrize(
    ("status", "reason"), [(400, "the model has no audio"), (503, "the decoder is gone")]
)
def test_a_refusal_is_said_in_the_servers_words(page: Any, said: Said, status: int, reason: str) -> None:
    """A model that takes no sound, or a server in trouble: its sentence stands there, with a sign."""
    said.refusal = (status, reason)
    page.show(page.url, width=PHONE[0], height=PHONE[1])
    ask(page)
    page.wait(f"{STATE}.includes('HTTP {status}: {reason}')")
    assert page.value(STATE).startswith("\u2715")
    assert page.value(ANSWER) == ""


def test_an_answer_that_breaks_off_is_no_answer(page: Any, said: Said) -> None:
    """A stream that ends without its last word is said to have broken off."""
    said.breaks_off = True
    page.show(page.url, width=DESK[0], height=DESK[1])
    ask(page)
    page.wait(f"{STATE}.includes('broke off')")
    assert page.value(ANSWER) == "The word"


def test_with_keys_the_example_asks_for_one(page: Any, said: Said) -> None:
    """Without a key the server's 401 stands there beside the field for one; with it the example is sent."""
    said.key = "secret"
    page.show(page.url, width=PHONE[0], height=PHONE[1])
    page.value("sessionStorage.clear()")
    page.wait("!document.querySelector('#key').hidden")
    ask(page)
    page.wait(f"{STATE}.includes('HTTP 401: a key is needed')")
    page.value("document.querySelector('#key-text').value = 'secret'")
    page.value("document.querySelector('#key').requestSubmit()")
    ask(page)
    page.wait(f"{ANSWER} === 'The word is seven.'")
    page.value("sessionStorage.clear()")


def test_the_sound_comes_in_pieces_where_asked_for(said: Said) -> None:
    """A player that asks for a range gets that range."""
    whole = (ROOT / "examples/word.wav").read_bytes()
    with serving(said) as url, httpx.Client(base_url=url, trust_env=False) as api:
        part = api.get("/word.wav", headers={"Range": "bytes=0-99"})
        assert (part.status_code, part.content) == (206, whole[:100])
        assert part.headers["content-type"] == "audio/wav"
