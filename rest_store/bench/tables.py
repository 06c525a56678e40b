"""Figures of any shape as tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Cell = str | int | float | None
_MAX_NUMBERS = 24  # of a list that is shown in one cell


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        title: where the figures stand in the result; may be empty.
        header: of each column.
        rows: cells; the first one of each row is its name. None is shown as "-".
    """

    title: str
    header: list[str]
    rows: list[list[Cell]]


def tables_of(figures: Any, title: str = "") -> list[Table]:
    """Return tables that hold every figure.

    Objects with the same fields, in a list or by name, are the rows of one table; in a list, fields
    of objects inside them are columns, too. All other figures of a level are listed by name. What
    nests deeper has tables of its own.
    """
    is_list = not isinstance(figures, Mapping)
    items = {str(index): item for index, item in enumerate(figures)} if is_list else dict(figures)
    single: list[list[Cell]] = []
    alike: dict[tuple[str, ...], list[list[Cell]]] = {}
    below: list[Table] = []
    for name, item in items.items():
        fields = _fields(item, deep=is_list)
        if not isinstance(item, Mapping | list) or (isinstance(item, list) and _is_plain(item)):
            single.append([name, _cell(item)])
        elif fields is not None:
            row = list(fields.values()) if is_list else [name, *fields.values()]
            alike.setdefault(tuple(fields), []).append(row)
        else:
            below += tables_of(item, f"{title}, {name}" if title else name)
    tables = [Table(title, ["figure", ""], single)] if single else []
    for columns, rows in alike.items():
        header = [column.replace("_", " ") for column in columns]
        tables.append(Table(title, header if is_list else ["", *header], rows))
    return tables + below


def _fields(item: Any, *, deep: bool) -> dict[str, Cell] | None:
    """Return the fields of an object as the cells of a row.

    None if it is no object, or nests too deeply for a row.

    Args:
        item: of a list or an object.
        deep: whether the fields of objects inside it become cells, too.
    """
    if not isinstance(item, Mapping) or not item:
        return None
    fields: dict[str, Cell] = {}
    for name, value in item.items():
        inner = value if deep and isinstance(value, Mapping) and value else {"": value}
        for key, part in inner.items():
            if isinstance(part, Mapping) or (isinstance(part, list) and not _is_plain(part)):
                return None
            fields[f"{name}, {key}" if key else str(name)] = _cell(part)
    return fields


def _is_plain(items: list[Any]) -> bool:
    return all(isinstance(item, int | float | str) for item in items)


def _cell(value: Any) -> Cell:
    if isinstance(value, list):
        return " ".join(shown(item) for item in value[:_MAX_NUMBERS])
    return value if isinstance(value, str | int | float) or value is None else str(value)


def shown(cell: Cell) -> str:
    """Return a cell as text: numbers with three digits or more, and commas at thousands."""
    if cell is None:
        return "-"
    if isinstance(cell, bool) or not isinstance(cell, int | float):
        return str(cell)
    if isinstance(cell, int):
        return f"{cell:,}"
    if abs(cell) >= 100:
        return f"{cell:,.0f}"
    if abs(cell) >= 10:
        return f"{cell:.1f}"
    return f"{cell:.2f}" if abs(cell) >= 0.1 or cell == 0 else f"{cell:.3g}"
