"""The routing simulation, confirmed on a real Serve with four replicas. Needs Ray; no vLLM, no GPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.routing_sim import GAIN_TARGETS, Setup, Simulation

ROOT = Path(__file__).parents[2]


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("trace", GAIN_TARGETS)
def test_serve_hits_as_often_as_the_simulation_says(trace: str, tmp_path: Path) -> None:
    """On a real Serve the router's gain meets its target and its hit rate is near the simulated one."""
    figures = tmp_path / "figures.json"
    command = [sys.executable, "-m", "benchmarks.routing_serve", "--trace", trace, "--json", str(figures)]
    done = subprocess.run(command, cwd=ROOT, timeout=500, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = json.loads(figures.read_text())["rows"]
    simulated = Simulation(Setup(trace=trace, policy="ours", load=0.5, requests=4_000)).run()
    assert row["ours"]["hit_rate"] >= simulated.hit_rate - 0.1
