"""Seams to other packages: a table of all that we rely on, and a check of the installed release.

Each engine's package, and that of generation with transformers, has one table: `DEPENDENCIES` in
its module `seam`. It is checked at the start.
"""

from __future__ import annotations

import ast
import functools
import inspect
import pkgutil
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple


class Dependency(NamedTuple):
    """Something of another package that is wrapped, called, read or replaced.

    Attributes:
        place: `module:name`, or `module:Class.name` for attributes of a class's objects.
        parameters: names of the first parameters, with `self`; None: it is read and not called.
        others: names of further parameters that are passed by name.
        is_whole: whether there are no more parameters, since a function of ours is called in its
            place.
    """

    place: str
    parameters: tuple[str, ...] | None = None
    others: tuple[str, ...] = ()
    is_whole: bool = False


def differences(dependencies: Iterable[Dependency]) -> list[str]:
    """Return the differences between a package and a table, in words."""
    phrases = map(difference, dependencies)
    return [phrase for phrase in phrases if phrase is not None]


def difference(dependency: Dependency, function: Callable[..., Any] | None = None) -> str | None:
    """Return how a package differs from one dependency of a table, in words; None: it does not.

    Args:
        dependency: of the table.
        function: the one that is called in this process, if it is not at the dependency's place.
    """
    what = dependency.place if function is None else function.__qualname__
    try:
        if dependency.parameters is None:
            return None if _has(dependency.place) else f"{what} is absent"
        names = tuple(
            inspect.signature(function or pkgutil.resolve_name(dependency.place)).parameters
        )
    except (ImportError, AttributeError):
        return f"{what} is absent"
    except (TypeError, ValueError):
        return f"{what} is no function"
    first = names if dependency.is_whole else names[: len(dependency.parameters)]
    if first != dependency.parameters or not set(dependency.others) <= set(names):
        expected = [*dependency.parameters, *dependency.others]
        return (
            f"{what} takes {', '.join(names) or 'nothing'}, expected"
            f" {', '.join(expected) or 'nothing'}"
        )
    return None


def _has(place: str) -> bool:
    """Return whether there is something at a place.

    Raise ImportError or AttributeError if its owner is absent.
    """
    module, _, path = place.partition(":")
    owner_path, _, name = path.rpartition(".")
    owner = (
        pkgutil.resolve_name(f"{module}:{owner_path}")
        if owner_path
        else pkgutil.resolve_name(module)
    )
    return hasattr(owner, name) or (isinstance(owner, type) and name in attributes_of(owner))


@functools.cache
def attributes_of(owner: type) -> frozenset[str]:
    """Return the attributes of a class's objects: fields, and assignments to `self`.

    Those of a class whose source is not there remain unknown, except for its fields.
    """
    names = {field.name for field in fields(owner)} if is_dataclass(owner) else set()
    for base in owner.__mro__:
        names |= assigned_in(base)
    return frozenset(names)


def assigned_in(definition: type | Callable[..., Any]) -> set[str]:
    """Return the attributes of `self` that a class or a method assigns.

    Annotated names of a class count, too.
    """
    tree = _source_of(definition)
    names = _attributes_in(tree, "self", ast.Store)
    for definition_node in tree.body:
        if isinstance(definition_node, ast.ClassDef):
            for node in definition_node.body:
                if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                    names.add(node.target.id)
    return names


def read_in(definition: type | Callable[..., Any], owner: str) -> set[str]:
    """Return the attributes of `owner`, such as `self.corpus`, that a source reads or calls."""
    return _attributes_in(_source_of(definition), owner, ast.Load)


def _attributes_in(tree: ast.AST, owner: str, context: type[ast.expr_context]) -> set[str]:
    """Return the attributes of `owner` that a source loads or stores."""
    names = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, context):
            continue
        if ast.unparse(node.value) == owner:
            names.add(node.attr)
    return names


def _source_of(definition: type | Callable[..., Any]) -> ast.Module:
    try:
        return ast.parse(textwrap.dedent(inspect.getsource(definition)))
    except (OSError, TypeError, SyntaxError):
        return ast.Module([], [])
