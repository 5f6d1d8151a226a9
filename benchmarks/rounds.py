"""One server under load while the others idle: what a round of a benchmark measures."""

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks import load
from benchmarks.process_time import CpuTimes
from tests.servers import Server


def measure(
    servers: Mapping[str, Server],
    name: str,
    model: str,
    served_name: str,
    case: load.Case,
    requests: Sequence[Any],
    lengths: load.Lengths,
    seed: int,
) -> dict[str, Any]:
    """Send ``requests`` to one of the servers.

    Returns the client's figures, processor milliseconds by request and kind of process, and the cores that
    each of the other servers kept busy meanwhile. Raises RuntimeError when a request fails.
    """
    times = {other: CpuTimes(server) for other, server in servers.items()}
    target = load.Target(servers[name].base_url, model, served_name)
    figures = load.run(target, case, requests, lengths, load.Bounds(), seed)
    return {
        "case": case.name,
        "server": name,
        **figures,
        "cpu_ms_per_request": times[name].ms_per(len(requests)),
        "idle_cores": {other: cpu.cores_used() for other, cpu in times.items() if other != name},
    }
