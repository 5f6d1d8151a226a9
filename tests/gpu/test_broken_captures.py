"""Every known way to break a capture or a replay, each in a process of its own (needs a GPU and vLLM)."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]
CAUSES = {
    "item": "AcceleratorError",
    "synchronize": "AcceleratorError",
    "other_thread_synchronize": None,  # raised there or here, whichever meets it first
    "other_thread_malloc": None,
    "nested_capture": None,
    "cpu_copy": None,
    "out_of_memory": "OutOfMemoryError",
    "python_error": "KeyError",
    "device_assert": "AcceleratorError",
}


def run(cause: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "tests.gpu.broken_capture", cause]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    assert lines, f"{cause}: {done.stderr[-2000:]}"
    found: dict[str, Any] = json.loads(lines[0].removeprefix("RESULT "))
    return found


@pytest.fixture(scope="module")
def results() -> dict[str, dict[str, Any]]:
    """All at once: a process spends its time importing."""
    with ThreadPoolExecutor(len(CAUSES)) as pool:
        return dict(zip(CAUSES, pool.map(run, CAUSES), strict=True))


@pytest.mark.rule("A11")
@pytest.mark.parametrize("cause", CAUSES)
def test_the_original_error_once_then_terminal(cause: str, results: dict[str, dict[str, Any]]) -> None:
    """Whatever broke it: the first error is the cause's own, each later call's the terminal one."""
    found = results[cause]
    print(cause, found["errors"], found["failure"], f"leaked {found['leaked_bytes'] >> 20} MiB")
    first, *later = found["errors"]
    assert first not in ("none", "TerminalGraphError")
    assert CAUSES[cause] in (None, first)
    assert later == ["TerminalGraphError"] * 2
    assert found["failure"]


@pytest.mark.rule("A11")
@pytest.mark.parametrize("cause", CAUSES)
def test_capture_and_replay_failures_are_counted_apart(
    cause: str, results: dict[str, dict[str, Any]]
) -> None:
    """One capture failure, or for a device assert met in a replay one replay failure."""
    stats = results[cause]["stats"]
    expected = (0, 1) if cause == "device_assert" else (1, 0)
    assert (stats["capture_failures"], stats["replay_failures"]) == expected
    assert stats["num_graphs"] == 1
