"""Keys, in the open and by their hash."""

import hashlib

import pytest
from pydantic import ValidationError

from app.config import AppConfig
from app.keys import Keys


def hashed(key: str) -> str:
    return f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


@pytest.mark.parametrize("written", ["k1", hashed("k1")])
def test_a_key_opens_and_nothing_else_does(written: str) -> None:
    """Whichever way it is written; the hash itself opens nothing."""
    keys = Keys(["other", written])
    assert keys.hold("k1")
    assert keys.hold("other")
    for wrong in ("", "k", "k11", hashed("k1"), hashed("other"), "\udcff", "\u00e9"):
        assert not keys.hold(wrong)


def test_no_keys_are_false() -> None:
    """So that an application without any can tell."""
    assert not Keys([])
    assert not Keys([]).hold("")


@pytest.mark.parametrize("key", ["", "sha256:abc", "sha256:" + "G" * 64])
def test_a_key_that_cannot_be_one_is_refused(key: str) -> None:
    """An empty one would open to all, a mistyped hash to none."""
    for args in ({"api_keys": [key]}, {"admin_token": key}):
        with pytest.raises(ValidationError, match="a key is a text"):
            AppConfig.model_validate(args)
