"""`rest_store/_kernel.pyi` names what the compiled module has, and nothing else."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import rest_store
from rest_store.datastore.kernel import native_kernel

stubgen = pytest.importorskip("nanobind.stubgen")


def interface(source: str) -> dict[str, list[str]]:
    """The public names of a stub, and `Class.name` of members.

    Of each function the names of its parameters.
    """
    names: dict[str, list[str]] = {}

    def add(prefix: str, body: list[ast.stmt]) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                add(f"{node.name}.", node.body)
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                names[prefix + node.target.id] = []
            elif isinstance(node, ast.FunctionDef):
                of_function = [
                    argument.arg for argument in node.args.args if argument.arg != "self"
                ]
                names.setdefault(prefix + node.name, []).extend(of_function)

    add("", ast.parse(source).body)
    return names


def test_the_stub_describes_the_module() -> None:
    generator = stubgen.StubGen(native_kernel())
    generator.put(native_kernel())
    written = Path(rest_store.__file__).with_name("_kernel.pyi").read_text(encoding="utf-8")
    stated = interface(written)
    real = interface(generator.get())
    assert stated == real, set(stated) ^ set(real)
