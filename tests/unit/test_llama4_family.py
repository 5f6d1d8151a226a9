"""What Llama 4's family says from a header alone equals what upstream's processor makes of the picture."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from deployments.families.llama4 import Llama4, parse_tiles_key, tile_count, tiles_key
from deployments.upstream import llama4_embeds, llama4_pictures
from tests.media import drawn, image_bytes
from tiny_models import llama4 as tiny

TINY = Llama4.from_checkpoint(tiny.model_config(), tiny.preprocessor_config())
SCOUT = Llama4(hidden_size=5120)  # the real checkpoint's numbers: tiles of 336, up to 16
FILLING = Llama4(hidden_size=5120, fill_canvas=True)
FAMILIES = {"tiny": TINY, "scout": SCOUT, "filling": FILLING}

# What torchvision 0.28 gave for `drawn(*size)` at tiles of 112: 8 places spread over the pixels, their mean.
RECORDED: dict[tuple[int, int], tuple[list[float], float]] = {
    (100, 80): (
        [0.765625, 0.835938, 0.664062, 0.390625, 0.554688, 0.804688, 0.34375, -0.363281],
        -0.177325,
    ),
    (300, 200): (
        [-0.347656, 0.09375, -0.128906, 0.984375, -0.742188, -0.449219, -1.0, 0.804688],
        -0.124266,
    ),
    (1000, 50): (
        [0.9375, -1.0, 0.742188, -0.097656, -1.0, -0.035156, -0.546875, -1.0],
        -0.433252,
    ),
    (900, 1300): (
        [-0.8125, 0.867188, -0.488281, -0.6875, 0.140625, 0.140625, -1.0, -1.0],
        -0.06868,
    ),
}
ONE_LEVEL = 2 / 255 + 1 / 128  # of a byte, and bfloat16's step below one


@pytest.fixture(scope="module")
def pictures() -> Any:
    """Upstream's module of picture rules, as every vLLM process has it."""
    pytest.importorskip("transformers")
    llama4_pictures.fill_picture_functions()
    from transformers.models.llama4 import image_processing_llama4

    return image_processing_llama4


def processor_of(pictures: Any, family: Llama4) -> Any:
    side = {"height": family.tile_side, "width": family.tile_side}
    return pictures.Llama4ImageProcessor(
        size=side, max_patches=family.max_tiles, resize_to_max_canvas=family.fill_canvas
    )


@settings(max_examples=40)
@given(width=st.integers(1, 900), height=st.integers(1, 900))
@example(width=112, height=112)
@example(width=113, height=112)
@example(width=1, height=900)
def test_grids_and_tokens_are_those_of_upstreams_processor(pictures: Any, width: int, height: int) -> None:
    """The media key is the number of tiles that preparing the picture gives, and so is its token count."""
    out = processor_of(pictures, TINY)(images=[Image.new("RGB", (width, height))], return_tensors="pt")
    grid = tuple(int(n) for n in out["aspect_ratios"][0])
    assert TINY.grid(width, height) == grid
    tiles = tile_count(*grid)
    assert TINY.media_key("vision", image_bytes(Image.new("RGB", (width, height)))) == tiles_key(tiles)
    stand_in = TINY.stand_in("vision", tiles_key(tiles))
    assert stand_in.arrays["pixel_values"].shape == tuple(out["pixel_values"].shape)
    assert stand_in.tokens == TINY.expected_tokens("vision", {"aspect_ratios": grid}) == 16 * tiles
    assert np.abs(stand_in.arrays["pixel_values"]).max() > 0


@given(name=st.sampled_from(sorted(FAMILIES)), width=st.integers(1, 20_000), height=st.integers(1, 20_000))
@example(name="scout", width=336, height=336)
@example(name="scout", width=337, height=336)
@example(name="scout", width=1, height=20_000)
@example(name="filling", width=20_000, height=1)
def test_grids_of_any_size(pictures: Any, name: str, width: int, height: int) -> None:
    """The rule holds for every size, also with the real checkpoint's numbers."""
    import torch
    from transformers.image_utils import SizeDict

    family = FAMILIES[name]
    side = family.tile_side
    canvases = pictures.find_supported_resolutions(family.max_tiles, SizeDict(height=side, width=side))
    best = pictures.get_best_fit((height, width), torch.tensor(canvases), family.fill_canvas)
    assert family.grid(width, height) == (int(best[0]) // side, int(best[1]) // side)


@given(st.integers(1, 100))
def test_keys_read_back(tiles: int) -> None:
    """A key names exactly one number of tiles."""
    assert parse_tiles_key(tiles_key(tiles)) == tiles


# ---- the checkpoint and the decoder ----


def test_the_real_checkpoints_numbers() -> None:
    """Scout's tile of 336 pixels gives 144 rows, a picture of the most tiles 17 times as many."""
    assert SCOUT.tile_tokens == 144
    assert SCOUT.expected_tokens("vision", {"aspect_ratios": (4, 4)}) == 17 * 144
    assert SCOUT.expected_tokens("vision", {"aspect_ratios": (1, 1)}) == 144


def test_a_checkpoint_whose_files_disagree_is_refused() -> None:
    """Tiles of one size and an encoder for another would answer wrongly."""
    processor = {**tiny.preprocessor_config(), "size": {"height": 336, "width": 336}}
    with pytest.raises(ValueError, match="image_size is 112"):
        Llama4.from_checkpoint(tiny.model_config(), processor)


def test_the_model_has_vision_alone_with_budget_graphs() -> None:
    """No audio encoder is started for it, and its statistics count items."""
    (spec,) = TINY.encoders
    assert (spec.encoder, spec.graph_kind, spec.unit) == ("vision", "budget", "items")


def test_an_embedding_becomes_the_part_that_our_plugin_takes() -> None:
    """The tile grid travels beside the rows, for the decoder places them by it."""
    metadata = {"aspect_ratios": "grid", "patches_per_image": "tiles"}
    assert TINY.content_part("vision", "tensor", metadata, "u") == {
        "type": "image_embeds",
        "image_embeds": {"image_embeds": "tensor", **metadata},
        "uuid": "u",
    }


# ---- pictures without torchvision ----


@pytest.mark.parametrize("size", RECORDED)
def test_pixels_are_those_of_torchvision(pictures: Any, size: tuple[int, int]) -> None:
    """With its functions or with ours, prepared pixels are what torchvision gave, or one level beside it."""
    out = processor_of(pictures, TINY)(images=[drawn(*size)], return_tensors="pt")["pixel_values"].float()
    flat, (places, mean) = out.flatten(), RECORDED[size]
    found = [float(flat[i * len(flat) // 9 + 50]) for i in range(1, 9)]
    assert found == pytest.approx(places, abs=ONE_LEVEL)
    assert float(out.mean()) == pytest.approx(mean, abs=1e-3)


def test_functions_are_bit_for_bit_torchvisions() -> None:
    """Where torchvision is installed, each function gives the same bits as its own."""
    import torch

    theirs = pytest.importorskip(
        "torchvision.transforms.v2.functional", reason="no torchvision for this torch"
    )
    ours = llama4_pictures
    image = ours.pil_to_tensor(drawn(301, 197))
    assert torch.equal(image, theirs.pil_to_tensor(drawn(301, 197)))
    for size in [(97, 33), (400, 500), (197, 301)]:
        mine = ours.resize(image, size, interpolation=ours.InterpolationMode.BILINEAR)
        assert torch.equal(mine, theirs.resize(image, size, antialias=True))
    assert torch.equal(ours.pad(image, [0, 0, 5, 9]), theirs.pad(image, [0, 0, 5, 9], fill=0))
    floats = image.to(torch.bfloat16) / 255
    statistics = ([0.5, 0.4, 0.3], [0.5, 0.25, 0.125])
    assert torch.equal(ours.normalize(floats, *statistics), theirs.normalize(floats, *statistics))


def test_what_the_functions_cannot_do_is_an_error() -> None:
    """Another checkpoint's other rule must not be answered with wrong pixels."""
    image = llama4_pictures.pil_to_tensor(drawn(10, 10))
    with pytest.raises(NotImplementedError, match="bicubic"):
        llama4_pictures.resize(image, (5, 5), interpolation=llama4_pictures.InterpolationMode.BICUBIC)
    with pytest.raises(NotImplementedError, match="colour"):
        llama4_pictures.pad(image, [0, 0, 1, 1], fill=[0, 9, 0])


# ---- embeddings into upstream's model ----


def test_embeddings_of_several_pictures_divide_by_their_tiles() -> None:
    """Each picture gets its own rows, whatever the others' number of tiles."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("vllm")
    from vllm.multimodal.parse import DictEmbeddingItems

    tiles = torch.tensor([1, 7, 3])
    data = {
        "image_embeds": torch.arange(16 * 11)[:, None].repeat(1, 4).float(),
        "patches_per_image": tiles,
        "aspect_ratios": torch.tensor([[1, 1], [2, 3], [1, 2]]),
    }
    items = DictEmbeddingItems(data, "image", set(data), lambda found: llama4_embeds.fields(found, 16))
    assert items.get_count() == 3
    rows = [items.get(i)["image_embeds"] for i in range(3)]
    assert [len(part) for part in rows] == [16, 112, 48]
    assert [int(part[0, 0]) for part in rows] == [0, 16, 128]
    assert items.get(1)["aspect_ratios"].tolist() == [2, 3]


def test_upstreams_model_is_replaced_only_while_it_takes_no_embeddings(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """The installed vLLM lacks them and gets ours; one whose source knows them is left alone."""
    models = pytest.importorskip("vllm.model_executor.models")
    registered: list[tuple[str, str]] = []
    monkeypatch.setattr(models.ModelRegistry, "models", {})
    monkeypatch.setattr(
        type(models.ModelRegistry), "register_model", lambda _, *names: registered.append(names)
    )
    assert llama4_embeds.register_llama4_embeds()
    assert registered == [
        (
            "Llama4ForConditionalGeneration",
            "deployments.upstream.llama4_embeds_model:Llama4ForConditionalGeneration",
        )
    ]
    newer = tmp_path / "mllama4.py"
    newer.write_text('embeds = kwargs.pop("image_embeds")')
    monkeypatch.setattr(
        llama4_embeds.importlib.util, "find_spec", lambda _: SimpleNamespace(origin=str(newer))
    )
    assert not llama4_embeds.register_llama4_embeds()
    assert len(registered) == 1
