"""The hash of a class's code: what changes it and what does not. Needs nothing."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from deployments.upstream.source_hash import class_hash

SOURCE = '''
"""A module."""
SCALE = 3
OTHER = 4

def half(x):
    return x / 2

def inner(x):
    return half(x) * SCALE

def unused(x):
    return x

class Base:
    pass

class Thing(Base):
    """A thing."""

    def run(self, x):
        # doubled twice
        return f"{inner(x):.2f}"
'''


@pytest.fixture
def hash_of(tmp_path: Path) -> Iterator[object]:
    """The hash of ``Thing`` in a module with this source."""
    made: list[str] = []

    def make(source: str) -> str:
        name = f"hashed_{len(made)}"
        path = tmp_path / f"{name}.py"
        path.write_text(source)
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        made.append(name)
        spec.loader.exec_module(module)
        return class_hash(module.Thing, module.Base)

    yield make
    for name in made:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# doubled twice", "# anything"),
        ('"""A thing."""', '"""Another word."""'),
        ('"""A thing."""', ""),
        ("OTHER = 4", "OTHER = 5"),
        ("def unused(x):\n    return x", "def unused(x):\n    return -x"),
        ("x / 2", "(x / 2)"),
    ],
)
def test_words_and_strangers_do_not_count(hash_of, old: str, new: str) -> None:  # type: ignore[no-untyped-def]
    """Comments, documentation, layout and what the class never names leave the hash alone."""
    assert hash_of(SOURCE) == hash_of(SOURCE.replace(old, new)) != hash_of(SOURCE.replace("/ 2", "/ 3"))


@pytest.mark.parametrize(
    ("old", "new"),
    [("SCALE = 3", "SCALE = 4"), ("x / 2", "x // 2"), (":.2f", ":.3f"), ("run(self, x)", "run(self, x=1)")],
)
def test_what_the_class_does_counts(hash_of, old: str, new: str) -> None:  # type: ignore[no-untyped-def]
    """Its own code and the functions and numbers of its module that it reaches, near or far."""
    assert hash_of(SOURCE) != hash_of(SOURCE.replace(old, new))


def test_the_hash_is_the_same_everywhere(hash_of) -> None:  # type: ignore[no-untyped-def]
    """It is compared with hashes that were taken by another Python on another day."""
    assert hash_of(SOURCE) == "eae874894ef4ec8f54330cd998fb8c82"
