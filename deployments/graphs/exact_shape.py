"""Exact-shape encoder graphs: one graph per key, a bounded number of keys, everything counted.

What may be captured is decided in ``policies.admission``; capture and replay are upstream's, behind
``GraphBackend``, which tests replace. Here the two meet, and a failure becomes terminal.
"""

import threading
import traceback
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from deployments.errors import TerminalGraphError
from policies.admission import (
    Admission,
    CallFacts,
    Decision,
    GraphOptions,
    count,
    ineligible_reason,
    memory_allows,
)
from policies.stats import GraphStats

if TYPE_CHECKING:
    import torch

Inputs = Mapping[str, "torch.Tensor | None"]
Function = Callable[[Inputs], "torch.Tensor"]


class Graph(Protocol):
    """One captured graph."""

    def replay(self, inputs: Inputs) -> "torch.Tensor":
        """Run on new values of the same shapes; returns a clone, finished on the device."""


class GraphBackend(Protocol):
    """The CUDA half of an adapter, injected so that the logic runs without a GPU."""

    def facts(self, inputs: Inputs, batch_size: int) -> CallFacts:
        """What decides eligibility, read off the inputs and the state of the calling thread."""

    def stream(self) -> Hashable:
        """Identity of the current CUDA stream; part of the key."""

    def free_bytes(self) -> int:
        """Free memory of the device."""

    def capture(self, function: Function, inputs: Inputs) -> Graph:
        """Capture ``function`` on the shapes of ``inputs``, after earlier work has finished."""

    def release_failed(self) -> int:
        """After a failed capture let go of what can be; returns the bytes that stay lost."""

    def is_device_error(self, error: BaseException) -> bool:
        """Whether this error means that the device context cannot be trusted."""


class ExactShapeGraphs:
    """The adapter of one encoder. Owned and called by one thread (see ``GraphAdapter``)."""

    def __init__(
        self, encoder: str, function: Function, options: GraphOptions, backend: GraphBackend
    ) -> None:
        self.encoder = encoder
        self.options = options
        self.failure: str | None = None
        self.leaked_bytes = 0
        self._function = function
        self._backend = backend
        self._admission = Admission(options.max_graphs, options.min_capture_calls)
        self._graphs: dict[Hashable, Graph] = {}
        self._names: dict[Hashable, str] = {}
        self._hits: dict[Hashable, int] = {}
        self._stats = GraphStats()
        self._thread: int | None = None

    def start(self) -> None:
        """Nothing: shapes are captured as they come."""

    def __call__(self, inputs: Inputs, *, batch_size: int, tokens: int = 0) -> "torch.Tensor":
        """Run one packed batch; see ``GraphAdapter``. ``batch_size`` counts packed rows."""
        if self.failure is not None:
            raise TerminalGraphError(self.encoder, self.failure)
        decision, key = self._decide(inputs, batch_size)
        if decision is Decision.CAPTURE:
            self._capture(key, inputs)
        if decision in (Decision.CAPTURE, Decision.REPLAY):
            output = self._guarded(lambda: self._graphs[key].replay(inputs), replaying=True)
            self._hits[key] += 1
        else:
            output = self._guarded(lambda: self._function(inputs), replaying=False)
        self._stats = count(self._stats, decision, tokens=tokens)
        return output

    def stats(self) -> GraphStats:
        """Counts since the adapter's start, frozen."""
        return self._stats

    def get_cumulative_stats(self) -> dict[str, Any]:
        """The same counts as a plain dict, ``hit_rate`` included."""
        return self._stats.as_dict()

    def captured_keys(self) -> tuple[str, ...]:
        """A readable name of every graph held, in order of capture."""
        return tuple(self._names.values())

    def hits_by_graph(self) -> dict[str, int]:
        """Replays of each held graph, the one right after its capture included."""
        names = tuple(self._names.items())  # at once, for the owner may be adding one on its thread
        return {name: self._hits[key] for key, name in names}

    def _decide(self, inputs: Inputs, batch_size: int) -> tuple[Decision, Hashable]:
        facts = self._backend.facts(inputs, batch_size)
        facts_enabled = self.options.enabled and facts.enabled
        if not facts_enabled or ineligible_reason(facts, self.options.graph_batch_sizes) is not None:
            return Decision.INELIGIBLE, None
        self._own_thread()
        key = graph_key(self._backend.stream(), inputs)
        decision = self._admission.decide(key)
        if decision is Decision.CAPTURE and not self._memory_allows():
            decision = Decision.MEMORY
        return decision, key

    def _memory_allows(self) -> bool:
        floor = self.options.min_free_bytes
        return floor == 0 or memory_allows(self._backend.free_bytes(), floor)

    def _own_thread(self) -> None:
        """Graphs that share a pool must never replay at the same time: one thread, for good."""
        current = threading.get_ident()
        if self._thread is None:
            self._thread = current
        elif self._thread != current:
            raise RuntimeError(f"the {self.encoder} encoder's graphs belong to another thread")

    def _capture(self, key: Hashable, inputs: Inputs) -> None:
        try:
            graph = self._backend.capture(self._function, inputs)
        except BaseException as error:
            self._fail("capture", error, capture_failures=1)
            traceback.clear_frames(error.__traceback__)  # they hold the buffers of the broken graph
            self.leaked_bytes += self._backend.release_failed()
            raise
        self._admission.captured(key)
        self._graphs[key] = graph
        self._hits[key] = 0
        self._names[key] = self._unused_name(inputs)

    def _guarded(self, work: Callable[[], "torch.Tensor"], *, replaying: bool) -> "torch.Tensor":
        try:
            return work()
        except Exception as error:
            if self._backend.is_device_error(error):
                failures = {"replay_failures": 1} if replaying else {}
                self._fail("replay" if replaying else "eager run", error, **failures)
            raise

    def _fail(self, during: str, error: BaseException, **counters: int) -> None:
        """Turn terminal: every later call raises without any CUDA work."""
        self.failure = f"{during}: {type(error).__name__}: {error}".splitlines()[0]
        values = {name: getattr(self._stats, name) + extra for name, extra in counters.items()}
        self._stats = GraphStats(**{**_fields(self._stats), **values})

    def _unused_name(self, inputs: Inputs) -> str:
        name = key_name(inputs)
        taken = sum(1 for held in self._names.values() if held.split("@")[0] == name)
        return name if not taken else f"{name}@{taken + 1}"


def graph_key(stream: Hashable, inputs: Inputs) -> Hashable:
    """Stream and, per input, shape, dtype and device; an absent optional input is part of it."""
    described = tuple(
        (name, None if value is None else (tuple(value.shape), value.dtype, value.device))
        for name, value in sorted(inputs.items())
    )
    return stream, described


def key_name(inputs: Inputs) -> str:
    """A short readable name: ``pixels 1x3x14x14336 bfloat16, lens -``."""
    parts = []
    for name, value in inputs.items():
        if value is None:
            parts.append(f"{name} -")
        else:
            dtype = str(value.dtype).removeprefix("torch.")
            parts.append(f"{name} {'x'.join(map(str, value.shape))} {dtype}")
    return ", ".join(parts)


def _fields(stats: GraphStats) -> dict[str, Any]:
    return {name: value for name, value in stats.as_dict().items() if name != "hit_rate"}
