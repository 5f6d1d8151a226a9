"""What users may set about encoder graphs, read from two places and checked once.

The ``graphs:`` block of our config wins over the upstream keys in ``hf_overrides`` (exact-shape
graphs) or ``compilation_config`` (budget graphs). A wrong type, a value out of range and an unknown
key are errors that name the path of the key.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

UPSTREAM_PREFIX = "encoder_cuda_graph"
UPSTREAM_KEYS = {
    "encoder_cuda_graph": "enabled",
    "encoder_cuda_graph_max_graphs": "max_graphs",
    "encoder_cuda_graph_min_capture_calls": "min_capture_calls",
    "encoder_cuda_graph_min_free_bytes": "min_free_bytes",
    "encoder_cuda_graph_share_pools": "share_pools",
}
BUDGET_PREFIXES = ("cudagraph_mm_encoder", "encoder_cudagraph_")
BUDGET_KEYS = {
    "cudagraph_mm_encoder": "enabled",
    "encoder_cudagraph_token_budgets": "token_budgets",
    "encoder_cudagraph_max_vision_items_per_batch": "max_items_per_batch",
    "encoder_cudagraph_max_frames_per_batch": "max_frames_per_batch",
}

GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class GraphOptions:
    """Exact-shape graphs of one encoder.

    ``max_graphs`` counts graphs, not bytes; ``min_free_bytes`` is looked at before a capture and
    reserves nothing. ``graph_batch_sizes`` are the packed rows for which a graph is worth a slot.
    """

    enabled: bool = True
    max_graphs: int = 4
    min_capture_calls: int = 2
    min_free_bytes: int = GIB
    share_pools: bool = True
    graph_batch_sizes: tuple[int, ...] = (1,)


@dataclass(frozen=True, slots=True)
class BudgetOptions:
    """Budget graphs of one encoder; an empty or zero value means: from the model.

    ``token_budgets`` are encoder output tokens. ``max_frames_per_batch`` matters to video alone.
    ``decoder_tokens`` is no user's key: the lesser of the decoder's batch-token limit and model length,
    which the builder knows and an encoder process does not (0: the encoder's own config).
    """

    enabled: bool = True
    token_budgets: tuple[int, ...] = ()
    max_items_per_batch: int = 0
    max_frames_per_batch: int | None = None
    min_free_bytes: int = GIB
    decoder_tokens: int = 0


class OptionError(ValueError):
    """A bad option; the message starts with the path of the key."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(path, problem)
        self.path = path
        self.problem = problem

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}"


def graph_options(
    block: Mapping[str, Any] | None = None,
    hf_overrides: Mapping[str, Any] | None = None,
    *,
    path: str = "graphs",
    overrides_path: str = "hf_overrides",
    encoder: str | None = None,
    enforce_eager: bool = False,
) -> GraphOptions:
    """Build the options of one encoder. ``enforce_eager`` turns graphs off whatever else is said.

    With ``encoder`` the keys are also read from ``hf_overrides["vision_config"]`` or
    ``["audio_config"]``, which win over the top level of ``hf_overrides``.
    """
    values = _upstream(hf_overrides, overrides_path, UPSTREAM_KEYS, (UPSTREAM_PREFIX,), _GRAPH_CHECKS)
    for name in ("vision", "audio"):
        nested = (hf_overrides or {}).get(f"{name}_config")
        if isinstance(nested, Mapping):
            nested_path = f"{overrides_path}.{name}_config"
            found = _upstream(nested, nested_path, UPSTREAM_KEYS, (UPSTREAM_PREFIX,), _GRAPH_CHECKS)
            values.update(found if name == encoder else {})
    values.update(_block(block, path, _GRAPH_CHECKS))
    if enforce_eager:
        values["enabled"] = False
    return GraphOptions(**values)


def budget_options(
    block: Mapping[str, Any] | None = None,
    compilation_config: Mapping[str, Any] | None = None,
    *,
    path: str = "graphs",
    upstream_path: str = "compilation_config",
    enforce_eager: bool = False,
) -> BudgetOptions:
    """Build the budget options of one encoder; ``enforce_eager`` turns graphs off."""
    values = _upstream(compilation_config, upstream_path, BUDGET_KEYS, BUDGET_PREFIXES, _BUDGET_CHECKS)
    values.update(_block(block, path, _BUDGET_CHECKS))
    if enforce_eager:
        values["enabled"] = False
    budgets, items = values.get("token_budgets", ()), values.get("max_items_per_batch", 0)
    if budgets and items > min(budgets):
        raise OptionError(
            f"{path}.max_items_per_batch",
            f"{items} is more than the smallest token budget, {min(budgets)}",
        )
    return BudgetOptions(**values)


Check = Callable[[str, Any], Any]


def _block(block: Mapping[str, Any] | None, path: str, checks: Mapping[str, Check]) -> dict[str, Any]:
    if block is None:
        return {}
    if not isinstance(block, Mapping):
        raise OptionError(path, f"must be a mapping, not {type(block).__name__}")
    for key in block:
        if key not in checks:
            raise OptionError(f"{path}.{key}", f"unknown key; known are {', '.join(checks)}")
    return {key: checks[key](f"{path}.{key}", value) for key, value in block.items()}


def _upstream(
    source: Mapping[str, Any] | None,
    path: str,
    names: Mapping[str, str],
    prefixes: tuple[str, ...],
    checks: Mapping[str, Check],
) -> dict[str, Any]:
    """Pick our keys out of a mapping that also holds keys which are none of our business."""
    values = {}
    for key, value in (source or {}).items():
        if key in names:
            values[names[key]] = checks[names[key]](f"{path}.{key}", value)
        elif isinstance(key, str) and key.startswith(prefixes):
            raise OptionError(f"{path}.{key}", f"unknown key; known are {', '.join(names)}")
    return values


def _bool(path: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise OptionError(path, f"must be true or false, not {value!r}")
    return value


def _int(minimum: int) -> Check:
    def check(path: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int):
            raise OptionError(path, f"must be an integer, not {value!r}")
        if value < minimum:
            raise OptionError(path, f"must be at least {minimum}, not {value}")
        return value

    return check


def _ints(path: str, value: Any) -> tuple[int, ...]:
    """A list of distinct positive integers, returned sorted."""
    if not isinstance(value, (list, tuple)):
        raise OptionError(path, f"must be a list of integers, not {value!r}")
    numbers = [_int(1)(f"{path}[{i}]", entry) for i, entry in enumerate(value)]
    if len(set(numbers)) != len(numbers):
        raise OptionError(path, f"lists a number twice: {numbers}")
    return tuple(sorted(numbers))


def _optional_int(path: str, value: Any) -> int | None:
    return None if value is None else int(_int(0)(path, value))


_GRAPH_CHECKS: dict[str, Check] = {
    "enabled": _bool,
    "max_graphs": _int(0),
    "min_capture_calls": _int(2),
    "min_free_bytes": _int(0),
    "share_pools": _bool,
    "graph_batch_sizes": _ints,
}
_BUDGET_CHECKS: dict[str, Check] = {
    "enabled": _bool,
    "token_budgets": _ints,
    "max_items_per_batch": _int(0),
    "max_frames_per_batch": _optional_int,
    "min_free_bytes": _int(0),
}
