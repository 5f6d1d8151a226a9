"""docs/input.md says what the code does."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from app.body import BODY_DEPTH, BODY_ITEMS
from app.config import AppConfig
from app.media_fetch import FetchOptions
from app.proxy import WRITE_TIMEOUT_S
from policies.limits import AUDIO_FORMATS, IMAGE_FORMATS, MediaLimits

TEXT = (Path(__file__).parents[2] / "docs" / "input.md").read_text()
OF_REQUESTS = {
    **{name: field.default for name, field in AppConfig.model_fields.items() if name.startswith("max_")},
    "request_deadline_s": AppConfig.model_fields["request_deadline_s"].default,
    "BODY_ITEMS": BODY_ITEMS,
    "BODY_DEPTH": BODY_DEPTH,
    "WRITE_TIMEOUT_S": WRITE_TIMEOUT_S,
}
ROWS = dict(re.findall(r"^\| `(\w+)` \| ([^|]+?) \|", TEXT, re.MULTILINE))

pytestmark = pytest.mark.rule


def test_every_limit_is_in_the_table() -> None:
    """Each limit and each option has a row, and a number in it is the default."""
    media = {field.name for kind in (MediaLimits, FetchOptions) for field in fields(kind)}
    assert set(ROWS) == media | set(OF_REQUESTS)
    for name, value in {**vars(MediaLimits()), **OF_REQUESTS}.items():
        if not isinstance(value, tuple):
            assert ROWS[name] == str(value)


def test_every_format_is_named() -> None:
    """The formats listed are those that are taken."""
    assert all(re.search(rf"\b{name}\b", TEXT) for name in (*IMAGE_FORMATS, *AUDIO_FORMATS))


@pytest.mark.parametrize(
    ("name", "value"), [("max_bytes", 0), ("max_audio_s", -1.0), ("image_formats", ("PDF",))]
)
def test_senseless_limits_are_refused(name: str, value: object) -> None:
    """A limit of nothing, and a format that nothing reads, is an error when the limits are made."""
    with pytest.raises(ValueError, match=name):
        MediaLimits(**{name: value})  # type: ignore[arg-type]
