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


def control_tokens(model: str, revision: str | None = None) -> tuple[str, ...]:
    """Texts that the checkpoint's tokenizer reads as one special token each. Raises where none is named."""
    added: list[dict[str, Any]] = []
    for name in ("tokenizer.json", "tokenizer_config.json"):
        path = _find(model, name, revision)
        if path is None:
            continue
        held = json.loads(path.read_text(encoding="utf-8"))
        added += held.get("added_tokens") or []
        added += (held.get("added_tokens_decoder") or {}).values()
    texts = {str(token["content"]) for token in added if token.get("special")}
    if not texts:
        raise GraphServeError(
            f"model {model!r} names no special tokens in tokenizer.json or tokenizer_config.json, so that "
            "clients could write them; set control_tokens: tokens to serve it all the same"
        )
    return tuple(sorted(texts))


def _read_json(model: str, name: str, revision: str | None) -> dict[str, Any]:
    path = _find(model, name, revision)
    if path is None:
        raise GraphServeError(f"model {model!r} has no {name}")
    loaded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return loaded


def _find(model: str, name: str, revision: str | None) -> Path | None:
    """A file of the checkpoint; None where it has none of that name."""
    if Path(model).is_dir():
        path = Path(model) / name
        return path if path.is_file() else None
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    try:
        return Path(hf_hub_download(model, name, revision=revision))
    except LocalEntryNotFoundError:  # the hub could not be asked
        raise
    except EntryNotFoundError:
        return None
