"""Serve's log beside vLLM's. Needs: vLLM."""

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import contextlib, logging, logging.handlers, sys
from deployments.upstream.logs import logs_kept
from vllm.config.logging import LoggingConfig
from vllm.logger import configure_logging
file = logging.handlers.RotatingFileHandler(sys.argv[1])
logger = logging.getLogger("ray.serve")
logger.addHandler(logging.handlers.MemoryHandler(1, target=file))
logger.setLevel("INFO")
for n in range(2):
    with {context}():
        logger.info("inside")
        configure_logging(LoggingConfig())
    logger.info("after")
"""


def written(context: str, folder: Path) -> list[str]:
    """What stands in a log like Serve's after vLLM configured logging, in a process of its own."""
    file = folder / "log"
    program = PROGRAM.format(context=context)
    subprocess.run([sys.executable, "-c", program, str(file)], check=True, capture_output=True, timeout=120)
    return file.read_text().splitlines()


def test_a_replicas_log_goes_on_after_vllm_has_configured_logging(tmp_path: Path) -> None:
    """vLLM's configuration ends such a log; with ours around it no line is lost, once or twice."""
    assert written("logs_kept", tmp_path) == ["inside", "after"] * 2
    (tmp_path / "log").unlink()
    assert written("contextlib.nullcontext", tmp_path) == ["inside"], "mended upstream: logs_kept can go"
