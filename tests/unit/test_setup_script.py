"""Needs bash: scripts/setup.sh says what is wrong, and does nothing when there is nothing to do."""

import hashlib
import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def _setup(venv: Path, **env: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [ROOT / "scripts" / "setup.sh"],
        env={**os.environ, "VENV": str(venv), **env},
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )


def test_nothing_to_do(tmp_path: Path) -> None:
    """With stamps that match lock file and project it prints nothing, changes nothing and succeeds."""
    digest = {
        name: hashlib.sha256((ROOT / name).read_bytes()).hexdigest()[:16]
        for name in ("requirements/cpu.lock", "pyproject.toml")
    }
    (tmp_path / ".setup-packages").write_text(f"cpu {digest['requirements/cpu.lock']}\n")
    (tmp_path / ".setup-project").write_text(f"{digest['pyproject.toml']}\n")
    run = _setup(tmp_path, STACK="cpu")
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == [".setup-packages", ".setup-project"]


def test_no_python(tmp_path: Path) -> None:
    """Without a Python of the right version it says which is needed and how to name one."""
    run = _setup(tmp_path / "venv", STACK="cpu", PYTHON="python2.7")
    assert run.returncode == 1
    assert "Python 3.11 or 3.12 is needed" in run.stderr
    assert not (tmp_path / "venv").exists()


def test_wrong_stack(tmp_path: Path) -> None:
    """A stack that does not exist is named."""
    run = _setup(tmp_path / "venv", STACK="tpu")
    assert run.returncode == 1
    assert "'tpu'" in run.stderr
