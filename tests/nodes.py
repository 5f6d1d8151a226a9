"""A Ray cluster of several nodes on one machine: real raylets with object stores of their own.

Ray's own ``Cluster`` holds them, in a process of its own (`python -m tests.nodes`), which reads node ids to
kill from its standard input and ends the cluster when that is closed.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from tests.servers import ENVIRONMENT, ROOT, free_port

STORE_BYTES = 200 << 20


class Nodes:
    """The cluster from outside. ``ids`` are node ids, the head's first."""

    def __init__(self, nodes: tuple[dict[str, Any], ...]) -> None:
        environment = {
            **os.environ,
            **ENVIRONMENT,
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
            "RAY_AUTH_MODE": "disabled",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.nodes", json.dumps(nodes)],
            cwd=ROOT,
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        self.address: str
        self.ids: list[str]
        self.address, self.ids = self._answer()

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def kill(self, node_id: str) -> None:
        """SIGKILL everything of a node that Ray started there; its workers follow."""
        assert self.process.stdin is not None
        print(node_id, file=self.process.stdin, flush=True)
        assert self._answer() == node_id

    def stop(self) -> None:
        """End the cluster."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        try:
            self.process.wait(60)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.process.stdout.close()


@contextlib.contextmanager
def running_nodes(*nodes: dict[str, Any]) -> Iterator[Nodes]:
    """The first is the head. A node is given as the ``resources`` and ``labels`` that it carries."""
    running = Nodes(nodes)
    try:
        yield running
    finally:
        running.stop()


def main() -> None:
    """The process that holds the cluster."""
    from ray.cluster_utils import Cluster

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what Ray prints must not come between the answers
    cluster = Cluster()
    for number, node in enumerate(json.loads(sys.argv[1])):
        head = {} if number else {"dashboard_port": free_port(), "include_dashboard": False}
        cluster.add_node(num_cpus=4, object_store_memory=STORE_BYTES, **head, **node)
    nodes = {node.node_id: node for node in (cluster.head_node, *cluster.list_all_nodes())}
    print(json.dumps([cluster.address, list(nodes)]), file=answers, flush=True)
    for line in sys.stdin:
        cluster.remove_node(nodes[line.strip()], allow_graceful=False)
        print(json.dumps(line.strip()), file=answers, flush=True)
    cluster.shutdown()


if __name__ == "__main__":
    main()
