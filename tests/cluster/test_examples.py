"""The programs in examples/ run and print what they promise. Needs the running application."""

import json
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests import browser
from tests.servers import ROOT, Server
from training import example


def _run(name: str, *arguments: str) -> str:
    command = [sys.executable, str(ROOT / "examples" / name), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_ask_prints_what_is_true(app: Server) -> None:
    """A picture and a sound from disk get the true answer, and at temperature 0 the same one again."""
    first, second = (_run("ask.py", "--base-url", f"{app.base_url}/v1") for _ in range(2))
    assert first == second
    answer, usage = first.rsplit("[", 1)
    assert answer.strip() == example.TRUTH
    counts = re.search(r"graphserve-toy: (\d+) tokens in, (\d+) out", usage)
    assert counts is not None
    # A picture that is cut into slices and a second of speech: far more tokens than the words alone.
    assert int(counts[1]) > 500
    assert int(counts[2]) > 0


def test_encoders_run_without_serve() -> None:
    """The vision encoder alone: one embedding of the promised shape, and every call counted."""
    printed = _run("encoders_without_serve.py")
    promised = re.search(r"prepared: shape (\S+), (\d+) tokens", printed)
    assert promised is not None
    assert f"shape by the header alone: {promised[1]}" in printed
    assert printed.count(f"({promised[2]}, 256)") == 3
    assert "'graph_hits': 0" in printed
    assert "'ineligible_misses': 3" in printed


def _blocks(kind: str) -> list[str]:
    """Fenced blocks of the README of one kind ("" for those that name none)."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    return [body for name, body in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S) if name == kind]


def test_readme_shows_what_curl_gets(app: Server) -> None:
    """The body of the README's curl command gets the answer that stands below it."""
    (command,) = [block for block in _blocks("") if block.startswith("curl")]
    request = json.loads(command.split("-d '")[1].rstrip().removesuffix("'"))
    answer = httpx.post(f"{app.base_url}/v1/chat/completions", json=request, timeout=60).json()
    (shown,) = map(json.loads, _blocks("json"))
    assert answer["choices"][0]["message"]["content"] == shown["choices"][0]["message"]["content"]
    assert answer["choices"][0]["finish_reason"] == shown["choices"][0]["finish_reason"]
    assert {name: answer["usage"][name] for name in shown["usage"]} == shown["usage"]


def test_readme_shows_what_its_program_prints(app: Server) -> None:
    """The README's program prints the words that stand below it, and they are true."""
    (program,) = _blocks("python")
    code = program.replace("http://127.0.0.1:8000", app.base_url)
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() in [block.strip() for block in _blocks("")]
    assert done.stdout.strip() == example.TRUTH


@pytest.mark.skipif(browser.program() is None, reason="no Chromium on this machine")
def test_the_status_page_gets_the_same_answer(app: Server, tmp_path: Path) -> None:
    """Asked from the page that the application serves, the example gets the true answer too."""
    with browser.browsing(tmp_path / "profile") as page:
        page.show(f"{app.base_url}/", width=1280, height=900)
        page.wait("document.querySelectorAll('.deployment').length === 5")
        page.value("document.querySelector('#try').requestSubmit()")
        page.wait("document.querySelector('#try-state').textContent.includes('answered in')", within_s=60)
        page.keep("try-real", tmp_path)
        assert page.value("document.querySelector('#answer').textContent") == example.TRUTH
        assert page.problems == []
