"""The one interface behind which both kinds of encoder-graph adapter stand."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from policies.stats import GraphStats

if TYPE_CHECKING:
    import torch


class GraphAdapter(Protocol):
    """Runs one packed local batch of one encoder, in a graph where it may, eagerly where not.

    Owned and called by one thread. After a failed capture or a CUDA error in replay every call
    raises ``TerminalGraphError`` and ``failure`` says why (contract A11).
    """

    encoder: str
    failure: str | None
    leaked_bytes: int

    def start(self) -> None:
        """Capture what is captured before any traffic; once, on the encoder's thread."""

    def __call__(
        self, inputs: "Mapping[str, torch.Tensor | None]", *, batch_size: int, tokens: int = 0
    ) -> "torch.Tensor":
        """Run the captured function on ``inputs`` and return an output the caller owns.

        Args:
            inputs: everything that decides the result, by name; an absent optional input is None.
            batch_size: rows of the batch; outside ``graph_batch_sizes`` the call is ineligible.
            tokens: encoder output tokens of the batch, for the padding statistics.
        """

    def stats(self) -> GraphStats:
        """Counts since the adapter's start, frozen."""

    def get_cumulative_stats(self) -> dict[str, Any]:
        """The same counts as a plain dict, ``hit_rate`` included, as upstream users read them."""

    def captured_keys(self) -> tuple[str, ...]:
        """A short readable name of every graph held, in order of capture."""

    def hits_by_graph(self) -> dict[str, int]:
        """Replays of each held graph, by the names of ``captured_keys``."""
