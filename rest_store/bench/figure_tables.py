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
        title: the place of the figures in the result; may be empty.
        header: the heads of the columns.
        rows: the cells of each row; the first one is its name. "-" stands for None.
    """

    title: str
    header: list[str]
    rows: list[list[Cell]]


def figure_tables(figures: Any, title: str = "") -> list[Table]:
    """Return tables that hold every figure.

    Objects with the same fields, in a list or by name, are the rows of one table; in a list, fields
    of objects inside them are columns, too. All other figures of a level are listed by name. Deeper
    levels have tables of their own.
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
            below += figure_tables(item, f"{title}, {name}" if title else name)
    tables = [Table(title, ["figure", ""], single)] if single else []
    for columns, table_rows in alike.items():
        header = [column.replace("_", " ") for column in columns]
        tables.append(Table(title, header if is_list else ["", *header], table_rows))
    return tables + below


def _fields(item: Any, *, deep: bool) -> dict[str, Cell] | None:
    """Return the fields of an object as the cells of a row; None: it is no object, or too deep.

    Args:
        item: an item of a list or an object.
        deep: whether the fields of objects inside it become cells, too.
    """
    if not isinstance(item, Mapping) or not item:
        return None
    fields: dict[str, Cell] = {}
    for name, value in item.items():
        inner = value if deep and isinstance(value, Mapping) and value else {"": value}
        for key, inner_value in inner.items():
            if isinstance(inner_value, Mapping):
                return None
            if isinstance(inner_value, list) and not _is_plain(inner_value):
                return None
            fields[f"{name}, {key}" if key else str(name)] = _cell(inner_value)
    return fields


def _is_plain(items: list[Any]) -> bool:
    return all(isinstance(item, int | float | str) for item in items)


def _cell(value: Any) -> Cell:
    if isinstance(value, list):
        return " ".join(map(cell_text, value[:_MAX_NUMBERS]))
    return value if isinstance(value, str | int | float) or value is None else str(value)


def cell_text(cell: Cell) -> str:
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
