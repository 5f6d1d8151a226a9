"""Breaks one capture or replay in a process of its own and prints what the adapter made of it, as JSON.

``python -m tests.gpu.broken_capture CAUSE``; run by ``test_broken_captures.py``.
"""

import json
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch

from deployments.errors import TerminalGraphError
from deployments.graphs.cuda import CudaBackend
from deployments.graphs.exact_shape import ExactShapeGraphs, Inputs
from policies.admission import GraphOptions

WEIGHT = None
INNER = torch.cuda.CUDAGraph()  # kept, for a graph that dies half captured takes the process with it


def work(inputs: Inputs) -> torch.Tensor:
    """Something that allocates in the pool."""
    x = inputs["x"]
    assert x is not None
    return torch.relu(x @ WEIGHT) @ WEIGHT


def other_thread(action: Callable[[], Any]) -> None:
    """Run it elsewhere and wait, as a careless preprocessing thread would."""
    thread = threading.Thread(target=action)
    thread.start()
    thread.join()


CAUSES: dict[str, Callable[[torch.Tensor], Any]] = {
    "item": lambda x: x.sum().item(),
    "synchronize": lambda x: torch.cuda.synchronize(),
    "other_thread_synchronize": lambda x: other_thread(torch.cuda.synchronize),
    "other_thread_malloc": lambda x: other_thread(lambda: torch.empty(1 << 30, device="cuda")),
    "nested_capture": lambda x: INNER.capture_begin(),
    "cpu_copy": lambda x: x.cpu(),
    "out_of_memory": lambda x: torch.empty(1 << 42, dtype=torch.uint8, device="cuda"),
    "python_error": lambda x: {}["missing"],
}


def main(cause: str) -> dict[str, Any]:
    """One healthy graph, then the broken one, then what a caller sees."""
    global WEIGHT
    WEIGHT = torch.randn(2048, 2048, device="cuda")

    def function(inputs: Inputs) -> torch.Tensor:
        out = work(inputs)
        x = inputs["x"]
        assert x is not None
        if cause == "device_assert":
            index = x[:, 0].long()  # rows of zeros are in range, a large value is not
            out = out + WEIGHT[index][:, :1]
        elif len(x) == 200 and torch.cuda.is_current_stream_capturing():
            CAUSES[cause](out)
        return out

    adapter = ExactShapeGraphs("toy", function, GraphOptions(min_free_bytes=0), CudaBackend("cuda:0"))
    healthy, broken = torch.zeros(100, 2048, device="cuda"), torch.zeros(200, 2048, device="cuda")
    for _ in range(3):
        adapter({"x": healthy}, batch_size=1)
    errors = []
    last = healthy.clone()
    if cause == "device_assert":
        last[:] = 1e6
        calls = [last, healthy, broken]
    else:
        adapter({"x": broken}, batch_size=1)
        calls = [broken, broken, healthy]
    for x in calls:
        try:
            adapter({"x": x}, batch_size=1)
            errors.append("none")
        except TerminalGraphError:
            errors.append("TerminalGraphError")
        except BaseException as error:
            errors.append(type(error).__name__)
    return {
        "errors": errors,
        "failure": adapter.failure,
        "leaked_bytes": adapter.leaked_bytes,
        "stats": adapter.get_cumulative_stats(),
    }


if __name__ == "__main__":
    with torch.inference_mode():
        print("RESULT " + json.dumps(main(sys.argv[1])), flush=True)
    os._exit(0)
