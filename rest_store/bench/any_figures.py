"""Figures of any shape as tables, for results that have no section of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rest_store.bench.exhibits import Cell, Exhibit, Table


def any_exhibits(figures: Any) -> list[Exhibit]:
    """Return tables that hold every figure.

    Objects with the same fields, in a list or by name, are the rows of one table. All else is listed as path and value.
    """
    parts = figures if isinstance(figures, Mapping) else {"": figures}
    tables = {name: _rows(str(name).replace("_", " ").capitalize(), part) for name, part in parts.items()}
    rest = {name: part for name, part in parts.items() if tables[name] is None}
    rows = [[path, leaf] for name, part in rest.items() for path, leaf in _leaves(str(name), part)]
    return [*([Table("", ["figure", ""], rows)] if rows else []), *(table for table in tables.values() if table)]


def _rows(title: str, part: Any) -> Table | None:
    """Return a list of objects, or objects by name, as a table; None unless they are alike and hold plain values."""
    by_name = isinstance(part, Mapping) and len(part) > 1
    named = list(part.items()) if by_name else [("", entry) for entry in part] if isinstance(part, list) else []
    if not named or not all(isinstance(entry, Mapping) and entry for _, entry in named):
        return None
    columns = list(dict.fromkeys(column for _, entry in named for column in entry))
    nested = any(isinstance(value, dict | list) for _, entry in named for value in entry.values())
    if nested or any(2 * len(entry) < len(columns) for _, entry in named):
        return None
    rows = [[*([name] if by_name else []), *(entry.get(column) for column in columns)] for name, entry in named]
    return Table(title, [*([""] if by_name else []), *(column.replace("_", " ") for column in columns)], rows)


def _leaves(name: str, value: Any) -> list[tuple[str, Cell]]:
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in _leaves(f"{name}, {key}" if name else str(key), item)]
    if isinstance(value, list):
        if all(isinstance(item, int | float | str) for item in value):
            return [(name, " ".join(str(item) for item in value[:24]))]
        return [
            leaf
            for place, item in enumerate(value)
            for leaf in _leaves(f"{name}, {place}" if name else str(place), item)
        ]
    return [(name, value)]
