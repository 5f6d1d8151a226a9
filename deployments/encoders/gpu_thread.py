"""Everything of an encoder that touches the device; called on one thread only (contract C1)."""

import logging
from collections.abc import Sequence
from typing import Any

import torch

from deployments import placement
from deployments.families.base import EncoderCore, EncoderInputs, EncoderSpec, Family
from deployments.upstream import encoder_model
from policies.stats import GraphStats

logger = logging.getLogger("ray.serve")


class GpuThread:
    """One loaded encoder with its graph adapter."""

    def __init__(self, family: Family, spec: EncoderSpec, options: Any, *, graphs_enabled: bool) -> None:
        self.family = family
        self.spec = spec
        self.options = options
        self.graphs_enabled = graphs_enabled
        self.device = "none"
        self.warmed: list[str] = []
        self.core: EncoderCore | None = None
        self.config: Any = None

    def load(self) -> tuple[str, ...]:
        """Load the model and build the core. Returns the modules that hold weights.

        Raises GraphServeError when the model is not what was asked for, or lies on another GPU than Ray's.
        """
        import dataclasses

        self.config = encoder_model.encoder_config(self.options.spec)
        model = encoder_model.load_encoder(self.config)
        others = {n for s in self.family.encoders if s.encoder != self.spec.encoder for n in s.modules}
        loaded = encoder_model.check_modules(
            model, self.spec.modules, tuple(others | {"llm", "language_model"})
        )
        device = next(p.device for name in self.spec.modules for p in getattr(model, name).parameters())
        if device.type == "cuda":
            placement.check_place(
                f"the {self.spec.encoder} encoder",
                placement.assigned_gpus(),
                [placement.uuid_of_device(device)],
            )
        graphs = dataclasses.replace(self.options.graphs, enabled=self.graphs_enabled)
        self.core = self.family.core(self.spec.encoder, model, graphs, device)
        self.device = str(device)
        return loaded

    def warm(self, keys: Sequence[str]) -> None:
        """Capture what is captured at start, and run stand-ins of each media key until its graphs are there.

        A key that fails in passing (a shape too large for the memory left) is skipped: it must not keep
        the replica from starting. Raises when the adapter is terminal.
        """
        assert self.core is not None
        with encoder_model.running(self.config):
            self.core.adapter.start()
        calls = getattr(self.options.graphs, "min_capture_calls", 1)
        for key in keys:
            try:
                stand_in = self.family.stand_in(self.spec.encoder, key)
                hits = [self.encode([stand_in])[1] for _ in range(calls)]
            except Exception as error:
                if self.failure is not None:
                    raise
                logger.warning("not warmed for %s: %r", key, error)
                continue
            if hits[-1]:
                self.warmed.append(key)

    def encode(self, batch: Sequence[EncoderInputs]) -> tuple[list[torch.Tensor], bool]:
        """Encode items of one exact shape.

        Returns CPU tensors (tokens, hidden), one per item, and whether graphs ran what they may run: at
        least one hit, and no miss but of calls that are not eligible (the slices of a large picture come
        in a batch of another size than its overview).
        """
        assert self.core is not None
        before = self.stats()
        with encoder_model.running(self.config):
            tensors = self.core.encode(batch)
            tensors = [_to_host(t) for t in tensors]
            if tensors and self.device != "cpu":
                torch.cuda.current_stream().synchronize()
        after = self.stats()
        lost = _missed(after) - _missed(before)
        return tensors, lost == 0 and after.graph_hits > before.graph_hits

    @property
    def failure(self) -> str | None:
        """Why the adapter is terminal, or None."""
        return self.core.adapter.failure if self.core else None

    @property
    def leaked_bytes(self) -> int:
        """Device bytes that a broken capture keeps until the process ends."""
        return self.core.adapter.leaked_bytes if self.core else 0

    def stats(self) -> GraphStats:
        """The adapter's counts."""
        return self.core.adapter.stats() if self.core else GraphStats()

    def captured_keys(self) -> tuple[str, ...]:
        """Names of the graphs held."""
        return self.core.adapter.captured_keys() if self.core else ()

    def hits_by_graph(self) -> dict[str, int]:
        """Replays of each graph."""
        return self.core.adapter.hits_by_graph() if self.core else {}


def _missed(stats: GraphStats) -> int:
    return stats.graph_misses - stats.ineligible_misses


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A copy in pinned host memory, started on the current stream; on the CPU the tensor itself."""
    if tensor.device.type == "cpu":
        return tensor
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return host.copy_(tensor, non_blocking=True)
