"""Rules about the code itself: which way imports point, and what no file may contain."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LAYERS = {
    "app": {"app", "deployments", "policies", "tiny_models", "toy_model"},
    "deployments": {"deployments", "policies"},
    "tiny_models": {"tiny_models", "toy_model"},
    "toy_model": {"toy_model"},
    "training": {"training", "toy_model"},
    "policies": {"policies"},
}
OURS = {
    "app",
    "deployments",
    "policies",
    "tiny_models",
    "toy_model",
    "training",
    "tests",
    "benchmarks",
    "examples",
}
PYTORCH_CPU_INDEX = "download.pytorch.org"

pytestmark = pytest.mark.rule


def _tracked_files() -> Iterator[Path]:
    """What git tracks or would track; without git (an unpacked archive) every file that is not hidden."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listing = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode == 0:
        names = listing.stdout.splitlines()
    else:
        paths = (
            path for path in ROOT.rglob("*") if "/." not in str(path) and "/__pycache__" not in str(path)
        )
        names = [str(path.relative_to(ROOT)) for path in paths]
    yield from (ROOT / name for name in names if (ROOT / name).is_file())


def _imports(source: str) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module)
    return names


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_only_go_down(layer: str) -> None:
    """No module imports from a layer above its own: app, then deployments, then policies."""
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in (ROOT / layer).rglob("*.py")
        for name in _imports(path.read_text())
        if name.split(".")[0] in OURS - LAYERS[layer]
    ]
    assert not wrong


def test_policies_need_the_standard_library_only() -> None:
    """Importing every module of policies loads neither ray nor torch nor anything else installed."""
    modules = [f"policies.{path.stem}" for path in (ROOT / "policies").glob("[!_]*.py")]
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        f"before = set(sys.modules)\nimport {', '.join(modules)}\n"
        "tops = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(*sorted(tops - set(sys.stdlib_module_names) - {'policies'}))"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.split() == []


def test_relative_imports_are_not_used() -> None:
    """Every import names its layer, which is what lets the rule above see it."""
    wrong = [
        str(path.relative_to(ROOT))
        for layer in LAYERS
        for path in (ROOT / layer).rglob("*.py")
        if re.search(r"^\s*from \.", path.read_text(), re.MULTILINE)
    ]
    assert not wrong


def test_what_lies_beside_the_modules_is_installed_with_them() -> None:
    """Every tracked file of an installed package that is no module and no README is named as its data."""
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    packages = [name.removesuffix("*") for name in setuptools["packages"]["find"]["include"]]
    left_out = []
    for path in _tracked_files():
        package = ".".join(path.relative_to(ROOT).parent.parts)
        if package.split(".")[0] in packages and path.suffix != ".py" and path.name != "README.md":
            patterns = setuptools["package-data"].get(package, [])
            if not any(path.match(pattern) for pattern in patterns):
                left_out.append(str(path.relative_to(ROOT)))
    assert not left_out


def test_no_file_names_a_machine() -> None:
    """No text file holds an absolute path of somebody's machine or the host of a package registry."""
    # Put together from pieces, or this file would break its own rule.
    registries = ["pypi" + ".org", "pythonhosted" + ".org", "anaconda" + ".org", "npmjs" + ".com"]
    homes = ["/" + "root/", "/" + "home/", "/" + "Users/", "/" + "work/", "/" + "opt/"]
    pattern = re.compile(
        "|".join(re.escape(host) for host in registries)
        + "|"
        + "|".join(rf"(?<![\w.\-/}}]){re.escape(home)}\w" for home in homes)
        + r"|https?://download\.(?!pytorch)\w+"
    )
    wrong = []
    for path in _tracked_files():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue  # pictures, sounds, weights
        wrong += [
            f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
            for number, line in enumerate(text.splitlines(), 1)
            if pattern.search(line) and PYTORCH_CPU_INDEX not in line
        ]
    assert not wrong
