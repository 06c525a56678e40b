"""Figures of any shape as tables, for results that have no section of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rest_store.bench.exhibits import Cell, Exhibit, Table


def any_exhibits(figures: Any) -> list[Exhibit]:
    """Return tables that hold every figure.

    Objects with like fields, in a list or by name, are the rows of one table. All else is listed as path and value.
    """
    parts = figures if isinstance(figures, Mapping) else {"": figures}
    tables = {name: _rows(str(name).replace("_", " ").capitalize(), part) for name, part in parts.items()}
    rest = {name: part for name, part in parts.items() if tables[name] is None}
    rows = [[path, leaf] for name, part in rest.items() for path, leaf in _leaves(str(name), part)]
    return [*([Table("", ["figure", ""], rows)] if rows else []), *(table for table in tables.values() if table)]


def _rows(title: str, part: Any) -> Table | None:
    """Return a list of objects, or objects by name, as a table; None unless they are alike and hold plain values."""
    by_name = isinstance(part, Mapping) and len(part) > 1
    named = list(part.items()) if by_name else [("", one) for one in part] if isinstance(part, list) else []
    if not named or not all(isinstance(one, Mapping) and one for _, one in named):
        return None
    columns = list(dict.fromkeys(column for _, one in named for column in one))
    nested = any(isinstance(value, dict | list) for _, one in named for value in one.values())
    if nested or any(2 * len(one) < len(columns) for _, one in named):
        return None
    rows = [[*([name] if by_name else []), *(one.get(column) for column in columns)] for name, one in named]
    return Table(title, [*([""] if by_name else []), *(column.replace("_", " ") for column in columns)], rows)


def _leaves(name: str, value: Any) -> list[tuple[str, Cell]]:
    if isinstance(value, dict):
        return [leaf for key, one in value.items() for leaf in _leaves(f"{name}, {key}" if name else str(key), one)]
    if isinstance(value, list):
        if all(isinstance(one, int | float | str) for one in value):
            return [(name, " ".join(str(one) for one in value[:24]))]
        return [
            leaf for place, one in enumerate(value) for leaf in _leaves(f"{name}, {place}" if name else str(place), one)
        ]
    return [(name, value)]
