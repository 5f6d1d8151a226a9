"""Metrics of a running application as Prometheus would get them: from the agents of its Ray cluster."""

import contextlib
import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families

from tests.servers import Server, free_port

OF_RAY = frozenset(
    "Component NodeAddress SessionName Version WorkerId application deployment replica le "
    "otel_scope_name otel_scope_schema_url otel_scope_version".split()
)
"""Labels that Ray, Serve and the exporter add to every metric of a replica."""

Samples = dict[str, list[tuple[dict[str, str], float]]]


def session(server: Server) -> Path:
    """The folder of the server's own Ray session."""
    for process in server.processes():
        with contextlib.suppress(psutil.Error):
            match = re.search(r"--raylet_socket_name=(\S+?)/sockets/", " ".join(process.cmdline()))
            if match:
                return Path(match[1])
    raise AssertionError("no raylet")


def service_discovery(server: Server) -> Path:
    """The file that Ray keeps for Prometheus."""
    return session(server) / "prom_metrics_service_discovery.json"


def scrape(server: Server) -> Samples:
    """Samples by the name of their metric, histograms under the name without ``_bucket``."""
    found: Samples = {}
    targets = [t for group in json.loads(service_discovery(server).read_text()) for t in group["targets"]]
    for target in targets:
        text = httpx.get(f"http://{target}/metrics", timeout=20, trust_env=False).text
        for family in text_string_to_metric_families(text):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            rows = [(dict(s.labels), s.value) for s in family.samples if not s.name.endswith("_created")]
            found.setdefault(name, []).extend(rows)
    return found


def scraped_until(server: Server, enough: Callable[[Samples], Any], within_s: float = 45) -> Samples:
    """Scrape until it has enough, for replicas report to the agents every few seconds.

    A target may not listen yet, or its port be another program's for a moment: that is tried again too.
    """
    until = time.monotonic() + within_s
    samples: Samples = {}
    while True:
        try:
            if enough(samples := scrape(server)):
                return samples
        except httpx.TransportError:
            if time.monotonic() > until:
                raise
        assert time.monotonic() < until, sorted(name for name in samples if "graphserve" in name)
        time.sleep(0.5)


def total(samples: Samples, name: str, **labels: str) -> float:
    """Sum of the samples that have these labels."""
    return sum(value for own, value in samples.get(name, ()) if labels.items() <= own.items())


class Prometheus:
    """A real Prometheus that scrapes one application every second."""

    def __init__(self, base_url: str) -> None:
        self.api = httpx.Client(base_url=base_url, timeout=20, trust_env=False)

    def query(self, expression: str) -> list[Any]:
        """The result of an instant query. An expression that Prometheus cannot take is an AssertionError."""
        answer = self.api.get("/api/v1/query", params={"query": expression}).json()
        assert answer["status"] == "success", f"{expression}\n{answer}"
        return list(answer["data"]["result"])

    def wait(self, expression: str, within_s: float = 40) -> list[Any]:
        """Its result, once there is one."""
        until = time.monotonic() + within_s
        while not (result := self.query(expression)):
            assert time.monotonic() < until, expression
            time.sleep(0.5)
        return result


@contextlib.contextmanager
def prometheus(server: Server, program: str, folder: Path) -> Iterator[Prometheus]:
    """Start one with Ray's own service discovery."""
    port = free_port()
    config = folder / "prometheus.yml"
    job = {"job_name": "ray", "file_sd_configs": [{"files": [str(service_discovery(server))]}]}
    config.write_text(
        json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": [job]})
    )  # JSON is YAML
    process = subprocess.Popen(
        [program, f"--config.file={config}", f"--storage.tsdb.path={folder / 'data'}",
         f"--web.listen-address=127.0.0.1:{port}", "--log.level=warn"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    asked = Prometheus(f"http://127.0.0.1:{port}")
    try:
        until = time.monotonic() + 20
        while True:
            with contextlib.suppress(httpx.TransportError):
                if asked.api.get("/-/ready").status_code == 200:
                    break
            assert time.monotonic() < until, "Prometheus does not start"
            time.sleep(0.1)
        yield asked
    finally:
        asked.api.close()
        process.terminate()
        process.wait(20)
