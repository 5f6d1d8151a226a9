"""The door a model family comes in by: one protocol, one registry, one file per family.

A family is split by where it runs. ``media_key`` runs in the Ingress and sees headers only;
``Preprocessor`` runs in CPU worker processes of the encoder replica; ``EncoderCore`` runs on the
replica's one GPU thread; ``content_part`` runs in the decoder. Importing a family loads neither
torch nor vLLM: what needs them is imported inside the method that needs it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from policies.stats import UNKNOWN_KEY as UNKNOWN_KEY  # the Ingress and the policies mean the same key

if TYPE_CHECKING:
    import numpy as np
    import torch

    from deployments.graphs.base import GraphAdapter

GRAPH_UNITS = {"exact": "calls", "budget": "items"}
"""What the statistics of each kind of encoder graph count."""


@dataclass(frozen=True)
class EncoderSpec:
    """One encoder of a family: what users call it, what it takes and what it is made of."""

    encoder: str  # "vision" or "audio", as the reports say it
    modality: str  # vLLM's name: "image" or "audio"
    modules: tuple[str, ...]  # attribute names of the loaded model that must hold weights
    content_types: tuple[str, ...]  # OpenAI content-part types that carry its media
    graph_kind: str = "exact"  # "exact": one graph a shape, on demand; "budget": captured at start

    @property
    def unit(self) -> str:
        """What its graph statistics count."""
        return GRAPH_UNITS[self.graph_kind]


@dataclass(frozen=True)
class EncoderInputs:
    """One preprocessed item: plain arrays, so that it crosses from a worker process cheaply.

    ``arrays`` holds the keyword arguments of the model's own encoder (name to array, or to a list
    of arrays where upstream has a list), or what the family's core makes them of; ``shape_key`` is
    the real shape, equal to the media key whenever that was not ``unknown``; ``metadata`` travels on
    to the decoder beside the embedding.
    """

    arrays: "Mapping[str, np.ndarray | list[np.ndarray]]"
    shape_key: str
    tokens: int
    metadata: "Mapping[str, np.ndarray]"


class Preprocessor(Protocol):
    """Decoded media in, encoder inputs out; lives in one CPU worker process.

    One that reaches the inputs another way than by the checkpoint's processor has an attribute
    ``preprocessing`` of ``fast``; one without it counts as ``checkpoint``, and may say ``why``.
    """

    def __call__(self, medium: Any) -> EncoderInputs:
        """Prepare one RGB picture or mono clip. Raises ClientError (without ``param``) on bad media."""


class EncoderCore(Protocol):
    """Packs items of one exact shape, runs the captured function, unpacks. GPU thread only."""

    @property
    def adapter(self) -> "GraphAdapter":
        """The graphs of this encoder."""

    def encode(self, batch: Sequence[EncoderInputs]) -> "list[torch.Tensor]":
        """Encode items that all have the same ``shape_key``.

        Returns one tensor per item, (tokens, hidden), model dtype, on the encoder's device,
        sharing no memory with a graph buffer.
        """


class Family(Protocol):
    """What GraphServe must know of a model family."""

    name: str
    architectures: tuple[str, ...]  # values of hf_config.architectures
    encoders: tuple[EncoderSpec, ...]
    hidden_size: int  # width of an embedding row
    tool_parser: str  # vLLM's name of the model's tool-call format
    placeholders: tuple[str, ...]  # texts by which upstream finds a medium's place in a prompt

    def media_key(self, encoder: str, data: bytes) -> str:
        """Shape key from the header of ``data`` alone, or ``unknown``; never decodes media."""

    def preprocessor(self, encoder: str, vllm_config: Any) -> Preprocessor:
        """Build the worker-side half for one encoder."""

    def core(self, encoder: str, model: Any, options: Any, device: Any) -> EncoderCore:
        """Build the GPU-side half around the loaded upstream model."""

    def stand_in(self, encoder: str, shape_key: str) -> EncoderInputs:
        """Inputs of this shape with non-zero random content, for warm-up."""

    def expected_tokens(self, encoder: str, metadata: Mapping[str, Any]) -> int | None:
        """Tokens an embedding with this metadata must have; None where nothing says."""

    def content_part(
        self, encoder: str, embedding: Any, metadata: Mapping[str, Any], uuid: str
    ) -> dict[str, Any]:
        """The chat content part by which vLLM accepts this embedding."""
