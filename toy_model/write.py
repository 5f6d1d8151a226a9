"""Write the toy checkpoint, the same bytes every time, into a cache folder named by its content."""

import argparse
import hashlib
import json
import os
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from toy_model import configs, trained, vocabulary, weights

_HERE = Path(__file__).parent
MANIFEST = _HERE / "manifest.json"


def _json(value: dict[str, Any]) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()


def contents() -> dict[str, bytes]:
    """Every file of the checkpoint, by name."""
    files = {
        "config.json": _json(configs.model_config()),
        "generation_config.json": _json(configs.generation_config()),
        "preprocessor_config.json": _json(configs.preprocessor_config()),
        "tokenizer.json": _json(vocabulary.tokenizer_json()),
        "tokenizer_config.json": _json(vocabulary.tokenizer_config(configs.MAX_LENGTH)),
        "chat_template.jinja": (_HERE / "chat_template.jinja").read_bytes(),
        "model.safetensors": weights.to_safetensors(trained.tensors()),
    }
    files.update({name: (_HERE / "checkpoint_code" / name).read_bytes() for name in configs.CODE_FILES})
    return files


@cache
def manifest() -> dict[str, str]:
    """The committed sha256 of every file."""
    value: dict[str, str] = json.loads(MANIFEST.read_text())
    return value


def version() -> str:
    """Names the content: equal versions are equal bytes."""
    return hashlib.sha256(json.dumps(manifest(), sort_keys=True).encode()).hexdigest()[:12]


def cache_folder() -> Path:
    """Where the checkpoint of this version lies for this user."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "graphserve" / f"toy-minicpmo-{version()}"


def is_whole(folder: Path) -> bool:
    """Whether every file of the manifest is there with the right content."""
    paths = {name: folder / name for name in manifest()}
    return all(path.is_file() for path in paths.values()) and all(
        hashlib.sha256(path.read_bytes()).hexdigest() == manifest()[name] for name, path in paths.items()
    )


def ensure(target: Path | None = None) -> Path:
    """The folder of the checkpoint, written first where it is missing or damaged.

    Safe when several processes start at once: each writes beside the target and renames, and a process
    that finds a whole folder in place keeps it.
    """
    folder = Path(target) if target is not None else cache_folder()
    if is_whole(folder):
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        fresh.chmod(0o755)
        for name, data in contents().items():
            (fresh / name).write_bytes(data)
        _put_in_place(fresh, folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return folder


def _put_in_place(fresh: Path, folder: Path) -> None:
    """Rename onto the target; a damaged or partial folder there is mended file by file."""
    try:
        fresh.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
        if not is_whole(folder):
            for path in fresh.iterdir():
                path.replace(folder / path.name)


def write_manifest() -> None:
    """Record the sha256 of every file; run on purpose when the checkpoint is meant to change."""
    sums = {name: hashlib.sha256(data).hexdigest() for name, data in sorted(contents().items())}
    MANIFEST.write_text(json.dumps(sums, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m toy_model.write", description=__doc__)
    parser.add_argument("--target", type=Path, help="folder to write; default: the user's cache")
    parser.add_argument("--update-manifest", action="store_true", help="record new sums (after a change)")
    args = parser.parse_args()
    if args.update_manifest:
        write_manifest()
        manifest.cache_clear()
    sys.stdout.write(f"{ensure(args.target)}\n")


if __name__ == "__main__":
    main()
