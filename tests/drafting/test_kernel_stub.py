"""`rest_store/_kernel.pyi` says what the compiled module has: the same names, with the same parameters."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import rest_store
from rest_store.datastore.kernel import native_kernel

stubgen = pytest.importorskip("nanobind.stubgen")

Parameters = tuple[int, list[str], list[str], int]


def parameters(function: ast.FunctionDef) -> Parameters:
    """Number of parameters without a name for callers, names of the others, keywords, and number of defaults."""
    arguments = function.args
    names = [argument.arg for argument in arguments.args if argument.arg != "self"]
    unnamed = [argument for argument in arguments.posonlyargs if argument.arg != "self"]
    return len(unnamed), names, [argument.arg for argument in arguments.kwonlyargs], len(arguments.defaults)


def interface(source: str) -> dict[str, list[Parameters] | None]:
    """The public names of a stub, and `Class.name` of members; parameters of each overload, None for a value."""
    names: dict[str, list[Parameters] | None] = {}

    def add(prefix: str, body: list[ast.stmt]) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                add(f"{node.name}.", node.body)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names[prefix + node.target.id] = None
            elif isinstance(node, ast.FunctionDef):
                if any("overload" not in ast.unparse(decorator) for decorator in node.decorator_list):
                    names[prefix + node.name] = None  # a property
                else:
                    overloads = names.setdefault(prefix + node.name, [])
                    assert overloads is not None
                    overloads.append(parameters(node))

    add("", ast.parse(source).body)
    return names


def test_the_stub_describes_the_module() -> None:
    generator = stubgen.StubGen(native_kernel())
    generator.put(native_kernel())
    written = Path(rest_store.__file__).with_name("_kernel.pyi").read_text(encoding="utf-8")
    stated, real = interface(written), interface(generator.get())
    for alias in ("Tokens", "TopK", "PackedDraft"):
        assert alias not in real
    assert stated == real
    assert stated["NativeSession.draft"] == [(0, ["max_nodes", "costs", "is_chain", "min_score"], [], 2)]
