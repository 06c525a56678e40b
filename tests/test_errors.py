"""The tree of errors is as it is drawn, and each error has a test that raises it."""

from __future__ import annotations

import ast
import builtins
import inspect
import pickle
import re
from pathlib import Path

import pytest

from rest_store import errors
from rest_store.errors import DatastoreFormatError, RestStoreError

CLASSES = [
    value
    for _, value in inspect.getmembers(errors, inspect.isclass)
    if issubclass(value, RestStoreError)
]


def drawn_bases() -> dict[str, tuple[str, ...]]:
    """The bases of each class in the drawing: the class above, the builtin at the right."""
    bases: dict[str, tuple[str, ...]] = {}
    # Column and name of the classes that may have children.
    above: list[tuple[int, str]] = [(-1, "Exception")]
    for line in (errors.__doc__ or "").splitlines():
        if (drawn := re.match(r"    ([|` -]*)(\w+Error)\b", line)) is None:
            continue
        column = drawn.start(2)
        name = drawn[2]
        above = [(place, parent) for place, parent in above if place < column]
        builtin = re.search(r"\((\w+Error)\)$", line)
        bases[name] = (above[-1][1], *([builtin[1]] if builtin else []))
        above.append((column, name))
    return bases


def test_the_drawing_is_true() -> None:
    assert drawn_bases() == {
        kind.__name__: tuple(base.__name__ for base in kind.__bases__) for kind in CLASSES
    }


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_bases_from_outside_are_builtin_errors(kind: type[RestStoreError]) -> None:
    outside = [base for base in kind.__bases__ if not issubclass(base, RestStoreError)]
    assert all(getattr(builtins, base.__name__) is base for base in outside)
    assert kind.__doc__


@pytest.fixture(scope="module")
def names_in_tests() -> set[str]:
    """Names that the other tests use, beyond importing them."""
    trees = [
        ast.parse(path.read_text(encoding="utf-8"))
        for path in Path(__file__).parent.rglob("test_*.py")
    ]
    return {node.id for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Name)}


# Kinds only: bases are not raised. The builder's errors are its own tests' affair.
@pytest.mark.parametrize(
    "kind",
    [
        kind
        for kind in CLASSES
        if not kind.__subclasses__() and not issubclass(kind, errors.BuildError)
    ],
)
def test_each_error_is_expected_in_a_test(
    kind: type[RestStoreError], names_in_tests: set[str]
) -> None:
    assert kind.__name__ in names_in_tests


@pytest.mark.parametrize("kind", DatastoreFormatError.KINDS)
def test_each_kind_of_damage_is_raised_and_expected_in_a_test(kind: str) -> None:
    package = Path(errors.__file__).parent
    raised = re.compile(rf'DatastoreFormatError\(\s*"{kind}"')
    assert any(raised.search(path.read_text(encoding="utf-8")) for path in package.rglob("*.py"))
    tests = Path(__file__).parent.rglob("test_*.py")
    assert any(f'"{kind}"' in path.read_text(encoding="utf-8") for path in tests)


def test_an_error_of_a_format_keeps_its_kind_through_pickling() -> None:
    error = pickle.loads(pickle.dumps(DatastoreFormatError("size", "a.tokens: size is 1")))
    assert (error.kind, str(error)) == ("size", "a.tokens: size is 1")


def test_messages_have_one_wording() -> None:
    assert (
        errors.describe("a.tokens", "size", "1 byte", 264)
        == "a.tokens: size is 1 byte, expected 264"
    )
