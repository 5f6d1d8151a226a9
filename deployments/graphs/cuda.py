"""The CUDA half of the exact-shape adapter: streams, pools, memory, and upstream's manager."""

import contextlib
import gc
import logging
from collections.abc import Callable, Hashable, Iterator, Mapping
from typing import Any

import torch

from policies.admission import CallFacts

logger = logging.getLogger(__name__)

Inputs = Mapping[str, torch.Tensor | None]
Function = Callable[[Inputs], torch.Tensor]


@contextlib.contextmanager
def nothing_collected() -> Iterator[None]:
    """Python's garbage collector leaves alone what is there now, whoever calls it meanwhile.

    Garbage may hold a CUDA graph, and a graph that is destroyed breaks a capture that is under way.
    Serve freezes what a replica has at its start, so that no collection walks through it: that stays so.
    """
    frozen_before = gc.get_freeze_count() > 0
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
        if frozen_before:
            gc.collect()
            gc.freeze()


class CudaBackend:
    """Implements ``GraphBackend`` on one device; on a machine without CUDA every call is ineligible.

    With ``share_pools`` all graphs of one replay stream share one memory pool and one capture
    stream; without, each graph has its own.
    """

    def __init__(self, device: torch.device | str, share_pools: bool = True) -> None:
        self.device = torch.device(device)
        self.share_pools = share_pools
        self._shared: dict[Hashable, tuple[Any, torch.cuda.Stream]] = {}
        self._own: list[tuple[Any, torch.cuda.Stream]] = []  # kept as long as their graphs
        self._reserved_before = 0

    def facts(self, inputs: Inputs, batch_size: int) -> CallFacts:
        """Read eligibility off the inputs and the calling thread."""
        tensors = [value for value in inputs.values() if isinstance(value, torch.Tensor)]
        on_cuda = any(value.is_cuda for value in tensors)
        return CallFacts(
            batch_size=batch_size,
            devices=frozenset(str(value.device) for value in tensors),
            grad_enabled=torch.is_grad_enabled(),
            autocast=torch.is_autocast_enabled("cuda"),
            capturing=on_cuda and torch.cuda.is_current_stream_capturing(),
        )

    def usable(self) -> bool:
        """Whether this is a CUDA device."""
        return self.device.type == "cuda"

    def stream(self) -> Hashable:
        """The current stream's handle."""
        return torch.cuda.current_stream(self.device).cuda_stream

    def free_bytes(self) -> int:
        """Free device memory, as the driver says; blocks cached by torch count as used."""
        return torch.cuda.mem_get_info(self.device)[0]

    def capture(self, function: Function, inputs: Inputs) -> "SyncedGraph":
        """Capture on a side stream once earlier replays and output clones have finished."""
        from deployments.upstream.encoder_graphs import ExactShapeGraph

        graph = ExactShapeGraph(function, inputs, self.device)
        self.capture_all(graph)
        return SyncedGraph(graph, torch.cuda.current_stream(self.device))

    def capture_all(self, manager: Any) -> None:
        """Let ``manager`` capture into the pool of the current stream, between two waits."""
        replay_stream = torch.cuda.current_stream(self.device)
        replay_stream.synchronize()  # earlier replays and clones: the pool may be reused from here on
        self._reserved_before = torch.cuda.memory_reserved(self.device)
        pool, capture_stream = self._pool(replay_stream.cuda_stream)
        capture_stream.wait_stream(replay_stream)
        # Our own stream context: torch.cuda.graph does not restore the stream when a capture breaks.
        with torch.cuda.stream(capture_stream), nothing_collected():
            manager.capture(pool)
        replay_stream.wait_stream(capture_stream)

    def finish(self) -> None:
        """Wait for the current stream."""
        torch.cuda.current_stream(self.device).synchronize()

    def release_failed(self) -> int:
        """Collect what the broken capture left; what this process still holds more than before is lost.

        After some failures the allocator frees nothing any more until the process ends.
        """
        try:
            gc.collect()
            torch.cuda.empty_cache()
        except Exception:  # a dead context: the process holds what it held
            logger.exception("memory could not be released after a failed capture")
        return max(0, torch.cuda.memory_reserved(self.device) - self._reserved_before)

    def is_device_error(self, error: BaseException) -> bool:
        """Device errors kill the context; running out of memory does not.

        Libraries such as cuBLAS report a dead context as a plain RuntimeError.
        """
        if isinstance(error, torch.OutOfMemoryError):
            return False
        accelerator_error = getattr(torch, "AcceleratorError", None)
        if accelerator_error is not None and isinstance(error, accelerator_error):
            return True
        return isinstance(error, RuntimeError) and "CUDA error" in str(error)

    def _pool(self, stream: Hashable) -> tuple[Any, torch.cuda.Stream]:
        if self.share_pools and stream in self._shared:
            return self._shared[stream]
        fresh = (torch.cuda.graph_pool_handle(), torch.cuda.Stream(self.device))
        if self.share_pools:
            self._shared[stream] = fresh
        else:
            self._own.append(fresh)
        return fresh


class SyncedGraph:
    """A captured graph whose replay waits for the device, so that its errors surface in the call."""

    def __init__(self, graph: Any, stream: torch.cuda.Stream) -> None:
        self._graph = graph
        self._stream = stream

    def replay(self, inputs: Inputs) -> torch.Tensor:
        """Replay, clone, wait."""
        output: torch.Tensor = self._graph.replay(inputs)
        self._stream.synchronize()
        return output
