"""Tables and charts of a report, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Cell = str | int | float | None


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        title: may be empty.
        header: of each column.
        rows: cells; the first one of each row is its name. None is shown as "-".
        note: shown below.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""


@dataclass(frozen=True)
class Bars:
    """Bars side by side, one group for each category.

    Attributes:
        title: shown above.
        unit: of the values.
        categories: names of the groups.
        series: values by name, one for each category; None: no bar.
        origin: where bars begin, such as 1 for equal speed; lower values reach to the other side.
    """

    title: str
    unit: str
    categories: Sequence[str]
    series: Mapping[str, Sequence[float | None]]
    origin: float = 0.0


@dataclass(frozen=True)
class Lines:
    """Lines through points.

    Attributes:
        title: shown above.
        across: label of the horizontal axis, with its unit.
        up: label of the vertical axis, with its unit.
        series: points (x, y) by name, in order of x.
        logarithmic: axes with logarithmic scales: any of "x" and "y".
        origin: where the vertical axis begins unless a value is lower, such as 1 for M; None: near the lowest value.
    """

    title: str
    across: str
    up: str
    series: Mapping[str, Sequence[tuple[float, float]]]
    logarithmic: str = ""
    origin: float | None = None


Exhibit = Table | Bars | Lines


@dataclass(frozen=True)
class Section:
    """The part of a report about one result.

    Attributes:
        title: of the section.
        about: what was measured, in one or two sentences.
        sample: what it was measured on, such as "25 prompts"; empty: unknown.
        exhibits: tables and charts in order.
        arguments: of the command, by name.
        facts: commit, machine, versions and data, by name.
    """

    title: str
    about: str
    sample: str
    exhibits: Sequence[Exhibit]
    arguments: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)


def shown(cell: Cell) -> str:
    """Return a cell as text: numbers with two decimals below 10, one below 100, none above, and commas at thousands."""
    if cell is None:
        return "-"
    if isinstance(cell, bool) or not isinstance(cell, int | float):
        return str(cell)
    if isinstance(cell, int):
        return f"{cell:,}"
    if abs(cell) >= 100:
        return f"{cell:,.0f}"
    return f"{cell:.1f}" if abs(cell) >= 10 else f"{cell:.2f}"
