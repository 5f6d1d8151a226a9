"""Upstream's Llama 4 with a way past its encoder, under upstream's name. Importing it imports the model."""

import inspect
from collections.abc import Mapping
from typing import Any

from vllm.model_executor.models import mllama4
from vllm.multimodal import MULTIMODAL_REGISTRY
from vllm.multimodal.parse import DictEmbeddingItems, MultiModalDataParser
from vllm.platforms import current_platform

from deployments.upstream.llama4_embeds import fields


class DataParser(MultiModalDataParser):
    """Takes pictures as upstream does, and dicts of embeddings with the tile grids that place them."""

    embedding_fields = {  # noqa: RUF012 (upstream's own way of declaring them)
        "image": {"image_embeds": "values", "aspect_ratios": "metadata", "patches_per_image": "metadata"}
    }

    def __init__(self, tile_tokens: int, **options: Any) -> None:
        super().__init__(**options)
        self.tile_tokens = tile_tokens

    def _parse_image_data(self, data: Any) -> Any:
        if not isinstance(data, dict):
            return super()._parse_image_data(data)
        required, optional = self.embedding_field_sets("image")
        return DictEmbeddingItems(
            data,
            modality="image",
            required_fields=required,
            optional_fields=optional,
            fields_factory=lambda pictures: fields(pictures, self.tile_tokens),
        )


class ProcessingInfo(mllama4.Mllama4ProcessingInfo):  # type: ignore[misc]
    """With the parser above."""

    @property
    def tile_tokens(self) -> int:
        """Embedding rows of one tile."""
        return int(self.get_patch_per_chunk(self.get_hf_config().vision_config))

    def get_data_parser(self) -> DataParser:
        """Upstream's options and the size of a tile."""
        return DataParser(
            self.tile_tokens,
            expected_hidden_size=self._get_expected_hidden_size(),
            allow_missing_mm_embeddings=self.allow_missing_mm_embeddings,
        )


class Processor(mllama4.Mllama4MultiModalProcessor):  # type: ignore[misc]
    """With the layout of embeddings beside that of pixels."""

    def _get_mm_fields_config(self, hf_inputs: Any, hf_processor_mm_kwargs: Mapping[str, Any]) -> Any:
        return fields(hf_inputs, self.info.tile_tokens)


def mend_single_tiles() -> None:
    """Let upstream's encoder take a single tile on the CPU, whose product wants rows that lie together.

    The unfolded patches of one tile do not; of several tiles they are copied anyway.
    """
    convolution = mllama4.Llama4UnfoldConvolution
    if current_platform.is_cpu() and "contiguous" not in inspect.getsource(convolution.forward):
        convolution.forward = _unfold


def _unfold(self: Any, hidden_states: Any) -> Any:
    patches = self.unfold(hidden_states).permute(0, 2, 1).contiguous()
    return self.linear(patches)[0]


mend_single_tiles()


@MULTIMODAL_REGISTRY.register_processor(
    Processor, info=ProcessingInfo, dummy_inputs=mllama4.Mllama4DummyInputsBuilder
)
class Llama4ForConditionalGeneration(mllama4.Llama4ForConditionalGeneration):  # type: ignore[misc]
    """Passes embeddings through; pixels go upstream's way."""

    def embed_multimodal(self, **kwargs: Any) -> Any:
        """One tensor (rows, hidden) for each picture."""
        embeds = kwargs.pop("image_embeds", None)
        if embeds is None:
            return super().embed_multimodal(**kwargs)
        if isinstance(embeds, (list, tuple)):
            return list(embeds)
        per_tile = self.get_image_patches_per_chunk()
        rows = [int(tiles) * per_tile for tiles in kwargs["patches_per_image"].flatten()]
        return list(embeds.split(rows))
