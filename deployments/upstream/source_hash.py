"""A hash of what a class does: of its syntax and of all in its module that it names, not of comments."""

import ast
import hashlib
import inspect
import sys
from collections.abc import Iterator
from typing import Any

LAYOUT_FIELDS = {"kind", "type_comment", "type_params", "ctx"}
"""Fields of the syntax tree that say nothing of behaviour, or that only some Python versions have."""


def class_hash(cls: type, base: type) -> str:
    """Hash ``cls`` and its ancestors before ``base``, the same in every Python version.

    Raises OSError or TypeError where a class has no source.
    """
    digest = hashlib.sha256()
    for ancestor in cls.__mro__[: cls.__mro__.index(base)]:
        for definition in _reachable(ancestor):
            digest.update(repr(_plain(definition)).encode())
    return digest.hexdigest()[:32]


def _reachable(cls: type) -> list[ast.stmt]:
    """The definition of ``cls`` and those of its module that it needs, in the module's order."""
    tree = ast.parse(inspect.getsource(sys.modules[cls.__module__]))
    named: dict[str, list[ast.stmt]] = {}
    for statement in tree.body:
        for name in _defined(statement):
            named.setdefault(name, []).append(statement)
    found: set[int] = set()
    waiting = list(named.get(cls.__name__, []))
    if not waiting:
        raise TypeError(f"no definition of {cls.__name__} in {cls.__module__}")
    while waiting:
        statement = waiting.pop()
        if id(statement) in found:
            continue
        found.add(id(statement))
        for node in ast.walk(statement):
            if isinstance(node, ast.Name):
                waiting += named.get(node.id, [])
    return [statement for statement in tree.body if id(statement) in found]


def _defined(statement: ast.stmt) -> Iterator[str]:
    """Names that a statement of a module defines; imports count as the environment."""
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        yield statement.name
    elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id


def _plain(node: Any) -> Any:
    """A syntax tree as nested tuples, without documentation."""
    if isinstance(node, list):
        return tuple(_plain(part) for part in node if not _documents(part))
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = [(name, value) for name, value in ast.iter_fields(node) if name not in LAYOUT_FIELDS]
    return (type(node).__name__, *((name, _plain(v)) for name, v in fields if v is not None and v != []))


def _documents(node: Any) -> bool:
    """A string that is a statement of its own."""
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )
