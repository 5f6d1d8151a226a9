"""docs/structure.md is true to the tree. Needs nothing."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("app", "deployments", "policies", "tiny_models", "toy_model", "training", "benchmarks", "examples")
DOCUMENT = "docs/structure.md"

pytestmark = pytest.mark.rule


def _listed() -> list[str]:
    text = (ROOT / DOCUMENT).read_text(encoding="utf-8")
    return re.findall(r"^- `([\w/]+\.py)`: \S", text, re.MULTILINE)


def _there() -> set[str]:
    return {
        path.relative_to(ROOT).as_posix()
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        if path.name != "__init__.py"
    }


def test_every_module_is_listed_once() -> None:
    """A new module gets its line in docs/structure.md, and no module has two."""
    listed = _listed()
    assert sorted(_there() - set(listed)) == [], f"add a line for each of these to {DOCUMENT}"
    assert sorted(name for name in set(listed) if listed.count(name) > 1) == []


def test_every_listed_module_exists() -> None:
    """A module that is gone or renamed leaves docs/structure.md too."""
    assert sorted(set(_listed()) - _there()) == []
