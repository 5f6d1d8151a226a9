"""What holds for every family's media keys: pictures are seen turned, and no bytes raise. Needs nothing."""

from collections.abc import Callable
from typing import Any

import pytest
from PIL import Image

from deployments.families.base import UNKNOWN_KEY, Family
from deployments.families.llama4 import Llama4, tile_count, tiles_key
from deployments.families.minicpmo import MiniCPMO, grids_key
from deployments.families.qwen2_5_vl import Qwen25VL, grid_key
from deployments.families.registry import families
from tests.media import drawn, image_bytes
from tiny_models import llama4, qwen2_5_vl
from toy_model import configs

SMALL: dict[str, Any] = {
    kind.name: kind.from_checkpoint(files.model_config(), files.preprocessor_config())
    for kind, files in ((MiniCPMO, configs), (Llama4, llama4), (Qwen25VL, qwen2_5_vl))
}
KEY_OF: dict[str, Callable[[Any, int, int], str]] = {
    "minicpmo": lambda family, width, height: grids_key(family.grids(width, height)),
    "llama4": lambda family, width, height: tiles_key(tile_count(*family.grid(width, height))),
    "qwen2_5_vl": lambda family, width, height: grid_key(family.grid(width, height)),
}
NO_MEDIA = (b"", b"RIFF", b"\x89PNG\r\n\x1a\n", b"GIF89a\0\0\0\0", b"\xff\xd8\xff", b"x" * 99)


@pytest.fixture(params=sorted({family.name for family in families().values()}))
def name(request: pytest.FixtureRequest) -> str:
    """Every family of the registry, so that a new one must be put into the tables above."""
    return str(request.param)


@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
@pytest.mark.parametrize("image_format", ["JPEG", "PNG", "WEBP"])
def test_the_key_is_that_of_the_picture_as_it_is_seen(name: str, image_format: str, orientation: int) -> None:
    """EXIF orientation turns the key as it turns the picture."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = image_bytes(drawn(500, 120), image_format, exif=exif)
    size = (120, 500) if orientation in (6, 8) else (500, 120)
    assert SMALL[name].media_key("vision", data) == KEY_OF[name](SMALL[name], *size)


@pytest.mark.parametrize("data", NO_MEDIA)
def test_what_no_header_says_is_unknown(name: str, data: bytes) -> None:
    """Bytes of no known kind get the key ``unknown`` and never an exception: the decoder refuses them."""
    family: Family = SMALL[name]
    for spec in family.encoders:
        assert family.media_key(spec.encoder, data) == UNKNOWN_KEY
