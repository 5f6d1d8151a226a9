"""Budget encoder graphs: captured at start, any batch packed into them by upstream, counted in items.

Where upstream's packing would cost more than running eagerly, the batch runs eagerly.
"""

import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from deployments.errors import TerminalGraphError
from policies import budgets as packing
from policies.admission import BudgetOptions, CallFacts, ineligible_reason, memory_allows
from policies.stats import GraphStats

if TYPE_CHECKING:
    import torch

Items = dict[str, Any]


class BudgetManager(Protocol):
    """What the adapter asks of upstream's manager (``deployments.upstream.BudgetGraphs``)."""

    token_budgets: list[int]
    max_batch_size: int
    left_out: list[int]
    replays: list[tuple[int, int]]

    @property
    def captured_budgets(self) -> list[int]: ...
    @property
    def input_names(self) -> list[str]: ...
    def item_tokens(self, mm_kwargs: Items) -> list[int]: ...
    def execute(self, mm_kwargs: Items) -> "list[torch.Tensor]": ...
    def run_eagerly(self, mm_kwargs: Items) -> "list[torch.Tensor]": ...


class BudgetBackend(Protocol):
    """The CUDA half, injected so that the logic runs without a GPU."""

    def facts(self, inputs: Mapping[str, Any], batch_size: int) -> CallFacts:
        """What decides eligibility."""

    def usable(self) -> bool:
        """Whether there is a device that has graphs at all."""

    def free_bytes(self) -> int:
        """Free memory of the device."""

    def capture_all(self, manager: Any) -> None:
        """Capture every budget, after earlier work has finished."""

    def finish(self) -> None:
        """Wait for the device, so that its errors surface here."""

    def release_failed(self) -> int:
        """After a failed capture let go of what can be; returns the bytes that stay lost."""

    def is_device_error(self, error: BaseException) -> bool:
        """Whether this error means that the device context cannot be trusted."""


class BudgetEncoderGraphs:
    """The adapter of one encoder; ``start`` captures. Owned and called by one thread."""

    def __init__(
        self,
        encoder: str,
        options: BudgetOptions,
        backend: BudgetBackend,
        make_manager: Callable[[Callable[[], bool]], BudgetManager],
        launch_bound_tokens: float = 0,
        fixed_tokens: float = 0,
    ) -> None:
        """``make_manager`` takes the question whether memory allows one more capture.

        The two token counts are the costs by which ``policies.budgets.graphs_lose`` judges a plan.
        """
        self.encoder = encoder
        self.options = options
        self.failure: str | None = None
        self.leaked_bytes = 0
        self.manager = make_manager(self._memory_allows)
        self._backend = backend
        self._costs = {"launch_bound_tokens": launch_bound_tokens, "fixed_tokens": fixed_tokens}
        self._stats = GraphStats(unit="items")
        self._hits: dict[int, int] = {}
        self._started = False
        self._thread: int | None = None

    @property
    def left_out_budgets(self) -> tuple[int, ...]:
        """Budgets that the memory floor forbade at start."""
        return tuple(sorted(self.manager.left_out))

    def start(self) -> None:
        """Capture every budget that memory allows; once, on the thread that will replay."""
        if self._started or not self.options.enabled or not self._backend.usable():
            return
        self._started = True
        try:
            self._backend.capture_all(self.manager)
        except BaseException as error:
            self._fail("capture", error, capture_failures=1)
            traceback.clear_frames(error.__traceback__)  # they hold the buffers of the broken graph
            self.leaked_bytes += self._backend.release_failed()
            raise
        self._thread = threading.get_ident()
        self._hits = dict.fromkeys(self.manager.captured_budgets, 0)
        self._stats = replace(self._stats, num_graphs=len(self._hits))

    def encode(self, mm_kwargs: Items) -> "list[torch.Tensor]":
        """Encode a packed batch; one tensor (tokens, hidden) per item, owned by the caller."""
        if self.failure is not None:
            raise TerminalGraphError(self.encoder, self.failure)
        tokens = self.manager.item_tokens(mm_kwargs)
        if not tokens:
            return []
        reason = self._why_eager(mm_kwargs, tokens)
        try:
            outputs = self._replay(mm_kwargs) if reason is None else self.manager.run_eagerly(mm_kwargs)
            self._finish(reason)
        except Exception as error:
            if self._backend.is_device_error(error):
                failures = {"replay_failures": 1} if reason is None else {}
                self._fail("replay" if reason is None else "eager run", error, **failures)
            raise
        self._count(tokens, reason)
        return outputs

    def __call__(self, inputs: Mapping[str, Any], *, batch_size: int, tokens: int = 0) -> "torch.Tensor":
        """``encode``, with the items one after the other in one tensor."""
        import torch

        return torch.cat(self.encode(dict(inputs)))

    def stats(self) -> GraphStats:
        """Counts since the adapter's start, frozen, in items."""
        return self._stats

    def get_cumulative_stats(self) -> dict[str, Any]:
        """The same counts as a plain dict, ``hit_rate`` included."""
        return self._stats.as_dict()

    def captured_keys(self) -> tuple[str, ...]:
        """A readable name of every budget that has a graph."""
        return tuple(_name(budget) for budget in self._hits)

    def hits_by_graph(self) -> dict[str, int]:
        """Replays of each budget: one that stays at zero cannot be reached by the traffic."""
        return {_name(budget): hits for budget, hits in self._hits.items()}

    def _why_eager(self, mm_kwargs: Items, tokens: Sequence[int]) -> str | None:
        """None to let upstream pack and replay; otherwise the miss counter of the whole batch."""
        facts = self._backend.facts({name: mm_kwargs.get(name) for name in self.manager.input_names}, 1)
        if not self.options.enabled or ineligible_reason(facts, (1,)) is not None:
            return "ineligible_misses"
        if self._thread != threading.get_ident():
            raise RuntimeError(f"the {self.encoder} encoder's graphs were not captured on this thread")
        if not self._hits:
            return "memory_misses"
        plan = packing.plan(tokens, self.manager.captured_budgets, self.manager.max_batch_size)
        if not plan.replayed_budgets:
            return self._too_large(max(tokens))
        replayed = sum(tokens[i] for budget, items in plan.batches if budget is not None for i in items)
        if packing.graphs_lose(plan.replayed_budgets, replayed, **self._costs):
            return "ineligible_misses"
        return None

    def _too_large(self, tokens: int) -> str:
        """Whether an item without a graph lost it to the memory floor or never had one."""
        return "memory_misses" if tokens <= max(self.manager.token_budgets) else "capacity_misses"

    def _replay(self, mm_kwargs: Items) -> "list[torch.Tensor]":
        self.manager.replays.clear()
        return self.manager.execute(mm_kwargs)

    def _finish(self, reason: str | None) -> None:
        if reason != "ineligible_misses":
            self._backend.finish()

    def _count(self, tokens: Sequence[int], reason: str | None) -> None:
        if reason is not None:
            self._add(graph_misses=len(tokens), **{reason: len(tokens)})
            return
        largest = max(self._hits)
        missed = [n for n in tokens if n > largest]
        for budget, _ in self.manager.replays:
            self._hits[budget] += 1
        self._add(
            graph_hits=len(tokens) - len(missed),
            graph_misses=len(missed),
            tokens_replayed=sum(real for _, real in self.manager.replays),
            tokens_padded=sum(budget - real for budget, real in self.manager.replays),
        )
        for n in missed:
            self._add(**{self._too_large(n): 1})

    def _memory_allows(self) -> bool:
        floor = self.options.min_free_bytes
        return floor == 0 or memory_allows(self._backend.free_bytes(), floor)

    def _fail(self, during: str, error: BaseException, **counters: int) -> None:
        """Turn terminal: every later call raises without any CUDA work."""
        self.failure = f"{during}: {type(error).__name__}: {error}".splitlines()[0]
        self._add(**counters)

    def _add(self, **counters: int) -> None:
        values = {name: getattr(self._stats, name) + extra for name, extra in counters.items()}
        self._stats = replace(self._stats, **values)


def _name(budget: int) -> str:
    return f"budget {budget}"
