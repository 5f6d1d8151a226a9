"""Llama 4 that takes embeddings: what is added to upstream's model, piece by piece. Needs vLLM; no engine."""

from types import SimpleNamespace
from typing import Any

import pytest

from deployments.upstream import plugin

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

TILE_TOKENS = 16
HIDDEN = 4


@pytest.fixture(scope="module")
def ours() -> Any:
    """The module with our model, imported as vLLM's registry imports it."""
    plugin.register()
    from deployments.upstream import llama4_embeds_model

    return llama4_embeds_model


def test_every_vllm_process_finds_our_model(ours: Any) -> None:
    """The registry gives ours for the architecture, with upstream's capabilities."""
    from vllm.model_executor.models import ModelRegistry

    found = ModelRegistry._try_load_model_cls("Llama4ForConditionalGeneration")
    assert found is ours.Llama4ForConditionalGeneration
    assert issubclass(found, ours.mllama4.Llama4ForConditionalGeneration)


def test_registering_again_registers_nothing_again(ours: Any, caplog: pytest.LogCaptureFixture) -> None:
    """vLLM loads plugins in each process more than once and warns of a model that is registered twice."""
    from vllm.model_executor.models import ModelRegistry

    before = ModelRegistry.models["Llama4ForConditionalGeneration"]
    plugin.register()
    assert ModelRegistry.models["Llama4ForConditionalGeneration"] is before


def test_a_dict_is_parsed_as_embeddings_and_pictures_go_upstreams_way(ours: Any) -> None:
    """One modality, two ways in."""
    from PIL import Image

    parser = ours.DataParser(TILE_TOKENS, expected_hidden_size=HIDDEN)
    embeddings = {
        "image_embeds": torch.zeros(8 * TILE_TOKENS, HIDDEN),
        "patches_per_image": torch.tensor([1, 7]),
        "aspect_ratios": torch.tensor([[1, 1], [2, 3]]),
    }
    items = parser.parse_mm_data({"image": embeddings})["image"]
    assert [len(items.get(i)["image_embeds"]) for i in range(2)] == [TILE_TOKENS, 7 * TILE_TOKENS]
    assert parser.parse_mm_data({"image": [Image.new("RGB", (9, 9))]})["image"].get_count() == 1


@pytest.mark.parametrize("missing", ["image_embeds", "patches_per_image", "aspect_ratios"])
def test_embeddings_without_one_of_their_fields_are_refused(ours: Any, missing: str) -> None:
    """Rows without their tile grid could not be placed."""
    fields = {
        "image_embeds": torch.zeros(TILE_TOKENS, HIDDEN),
        "patches_per_image": torch.tensor([1]),
        "aspect_ratios": torch.tensor([[1, 1]]),
    }
    del fields[missing]
    with pytest.raises(ValueError, match=missing):
        ours.DataParser(TILE_TOKENS).parse_mm_data({"image": fields})


@pytest.mark.parametrize("together", [True, False])
def test_embeddings_pass_the_encoder_by(ours: Any, together: bool) -> None:
    """Upstream joins rows of a batch where it can: either way each picture gets its own."""
    pictures = [torch.full((tiles * TILE_TOKENS, HIDDEN), float(tiles)) for tiles in (1, 7)]
    model = SimpleNamespace(get_image_patches_per_chunk=lambda: TILE_TOKENS)
    got = ours.Llama4ForConditionalGeneration.embed_multimodal(
        model,
        image_embeds=torch.cat(pictures) if together else pictures,
        patches_per_image=torch.tensor([1, 7]),
        aspect_ratios=torch.tensor([[1, 1], [2, 3]]),
    )
    assert len(got) == 2
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(got, pictures, strict=True))


@pytest.mark.parametrize("tiles", [1, 3])
def test_patches_of_any_number_of_tiles_lie_together(ours: Any, tiles: int) -> None:
    """The CPU's matrix product refuses rows that do not, which upstream's of a single tile do not."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        pytest.skip("mended on the CPU alone")
    seen = []
    convolution = SimpleNamespace(
        unfold=torch.nn.Unfold(kernel_size=2, stride=2), linear=lambda x: (seen.append(x), None)
    )
    pixels = torch.arange(tiles * 3 * 4 * 4).reshape(tiles, 3, 4, 4).float()
    ours.mllama4.Llama4UnfoldConvolution.forward(convolution, pixels)
    assert seen[0].is_contiguous()
    assert torch.equal(seen[0], convolution.unfold(pixels).permute(0, 2, 1))
