"""The programs in examples/ run and print what they promise. Needs the running application."""

import re
import subprocess
import sys

from tests.servers import ROOT, Server


def _run(name: str, *arguments: str) -> str:
    command = [sys.executable, str(ROOT / "examples" / name), *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_ask_prints_the_same_answer_twice(app: Server) -> None:
    """A picture and a sound from disk give an answer, and at temperature 0 the same one again."""
    first, second = (_run("ask.py", "--base-url", f"{app.base_url}/v1") for _ in range(2))
    assert first == second
    answer, usage = first.rsplit("[", 1)
    assert answer.strip()
    counts = re.search(r"graphserve-toy: (\d+) tokens in, (\d+) out", usage)
    assert counts is not None
    # A picture that is cut into slices and two seconds of speech: far more tokens than the words alone.
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
    assert "'ineligible_misses': 6" in printed
