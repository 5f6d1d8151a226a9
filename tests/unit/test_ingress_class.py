"""The Ingress class as Serve freezes it. Needs no Ray running."""

import builtins
import dis
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FunctionType

from ray.serve._private import constants

from app.ingress import ON_ONE_LOOP, Ingress


def _global_names(code: CodeType) -> Iterator[str]:
    """Names that this code and the code inside it look up in its module."""
    for step in dis.get_instructions(code):
        if step.opname == "LOAD_GLOBAL":
            yield str(step.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _global_names(constant)


def test_every_name_that_a_method_uses_was_there_when_serve_froze_the_class() -> None:
    """serve.ingress() copies the module's names while it is imported: a helper defined below is missing."""
    methods = [f for f in vars(Ingress.func_or_class.__mro__[1]).values() if isinstance(f, FunctionType)]
    assert "chat_completions" in {method.__name__ for method in methods}
    missing = {
        f"{method.__name__} uses {name}"
        for method in map(inspect.unwrap, methods)
        for name in _global_names(method.__code__)
        if name not in method.__globals__ and not hasattr(builtins, name)
    }
    assert not missing


def test_serve_is_told_to_use_one_loop_by_names_that_it_reads() -> None:
    """The Ingress's replicas start with the variables, and each is one that Serve reads."""
    told = Ingress.ray_actor_options["runtime_env"]["env_vars"]
    assert told == ON_ONE_LOOP
    read_by_serve = Path(constants.__file__).read_text(encoding="utf-8")
    assert [name for name in told if f'"{name}"' not in read_by_serve] == []
