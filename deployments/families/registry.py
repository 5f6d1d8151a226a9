"""Finds the family of a checkpoint. Every module of this package with a ``FAMILY`` is one."""

import importlib
import json
import pkgutil
from pathlib import Path
from typing import Any

import deployments.families as package
from deployments.errors import GraphServeError
from deployments.families.base import Family


def families() -> dict[str, Any]:
    """Family classes by the architecture name that ``config.json`` gives."""
    found: dict[str, Any] = {}
    for module in pkgutil.iter_modules(package.__path__):
        family = getattr(importlib.import_module(f"{package.__name__}.{module.name}"), "FAMILY", None)
        if family is not None:
            found.update(dict.fromkeys(family.architectures, family))
    return found


def load_family(model: str, revision: str | None = None) -> Family:
    """The family with the numbers of checkpoint ``model``, a local folder or a hub name."""
    config = _read_json(model, "config.json", revision)
    known = families()
    for architecture in config.get("architectures") or []:
        if architecture in known:
            family: Family = known[architecture].from_checkpoint(
                config, _read_json(model, "preprocessor_config.json", revision)
            )
            return family
    raise GraphServeError(
        f"model {model!r} has architecture {config.get('architectures')}; supported: {sorted(known)}"
    )


def _read_json(model: str, name: str, revision: str | None) -> dict[str, Any]:
    folder = Path(model)
    if folder.is_dir():
        path = folder / name
    else:
        from huggingface_hub import hf_hub_download

        path = Path(hf_hub_download(model, name, revision=revision))
    if not path.is_file():
        raise GraphServeError(f"model {model!r} has no {name}")
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded
