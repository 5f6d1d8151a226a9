"""The address that ``make serve`` listens on, and whether it is free. Needs: nothing."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from app.serve import address, taken

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("http_options", "expected"),
    [
        (None, "http://127.0.0.1:8000"),
        ({"host": "0.0.0.0", "port": 9000}, "http://127.0.0.1:9000"),
        ({"host": "localhost"}, "http://localhost:8000"),
        ({"host": "::"}, "http://[::1]:8000"),
        ({"host": "fd00::7", "port": 80}, "http://[fd00::7]:80"),
    ],
)
def test_the_address_can_be_called(http_options: dict[str, object] | None, expected: str) -> None:
    """Every interface is called by the loopback address, and IPv6 stands in brackets."""
    assert address({"http_options": http_options}) == expected


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_a_port_is_taken_while_somebody_listens(host: str) -> None:
    """A listener takes it, on one interface or all; without one it is free."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert taken({"http_options": {"host": host, "port": port}})
    assert not taken({"http_options": {"host": host, "port": port}})


def test_anothers_answer_is_not_taken_for_ours(tmp_path: Path) -> None:
    """Where another program has the port ``make serve`` starts nothing and names the address."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        config = tmp_path / "config.yaml"
        config.write_text(f"http_options: {{port: {listener.getsockname()[1]}}}\napplications: []\n")
        done = subprocess.run(
            [sys.executable, "-m", "app.serve", str(config)],
            cwd=ROOT,
            env={"PATH": "/usr/bin", "RAY_ADDRESS": "local", "PYTHONPATH": str(ROOT)},
            check=False,
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 2
    assert "another program listens" in done.stderr
