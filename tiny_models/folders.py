"""Where tiny checkpoints lie: a folder of the user's cache, named by what wrote it, written on first use.

Every module of this package with a function ``contents`` (bytes by file name) is one.
"""

import argparse
import hashlib
import importlib
import os
import pkgutil
import shutil
import sys
import tempfile
from pathlib import Path

import tiny_models
import toy_model


def names() -> list[str]:
    """The tiny checkpoints there are."""
    return sorted(
        found.name for found in pkgutil.iter_modules(tiny_models.__path__) if found.name != "folders"
    )


def version(name: str) -> str:
    """Names the content by the code that makes it, which is the same bytes for the same code."""
    sources = [Path(__file__).with_name(f"{name}.py"), *sorted(Path(toy_model.__file__).parent.glob("*.py"))]
    joined = hashlib.sha256()
    for source in sources:
        joined.update(source.read_bytes())
    return joined.hexdigest()[:12]


def ensure(name: str, target: Path | None = None) -> Path:
    """The folder of the checkpoint, written first where it is missing.

    Safe when several processes start at once: each writes beside the target and renames.
    """
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = target or base / "graphserve" / f"tiny-{name}-{version(name)}"
    if (folder / "config.json").is_file():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        fresh.chmod(0o755)
        for file, data in importlib.import_module(f"tiny_models.{name}").contents().items():
            (fresh / file).write_bytes(data)
        fresh.rename(folder)
    except OSError:
        if not (folder / "config.json").is_file():
            raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return folder


def main(name: str) -> None:
    """``python -m tiny_models.NAME [FOLDER]``: write the checkpoint and print where it is."""
    parser = argparse.ArgumentParser(prog=f"python -m tiny_models.{name}")
    parser.add_argument("folder", type=Path, nargs="?", help="folder to write; default: the user's cache")
    sys.stdout.write(f"{ensure(name, parser.parse_args().folder)}\n")
