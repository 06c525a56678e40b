"""What a report shows: tables and charts as plain data, whatever draws them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Cell = str | int | float | None


@dataclass(frozen=True)
class Table:
    """A table.

    Attributes:
        title: what it shows; may be empty.
        header: of each column.
        rows: cells; the first one of each row is its name. None is shown as -.
        note: what to know about it.
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""


@dataclass(frozen=True)
class Bars:
    """Bars side by side, one group for each category.

    Attributes:
        title: what it shows.
        unit: of the values.
        categories: names of the groups.
        series: values by name, one for each category; None: no bar.
        reference: a value to draw a line at, such as 1 for "as fast as without".
    """

    title: str
    unit: str
    categories: Sequence[str]
    series: Mapping[str, Sequence[float | None]]
    reference: float | None = None


@dataclass(frozen=True)
class Lines:
    """Lines through points.

    Attributes:
        title: what it shows.
        across: what runs along the horizontal axis, with its unit.
        up: what runs along the vertical axis, with its unit.
        series: points (x, y) by name, in order of x.
        logarithmic: axes with logarithmic scales: any of "x" and "y".
    """

    title: str
    across: str
    up: str
    series: Mapping[str, Sequence[tuple[float, float]]]
    logarithmic: str = ""


Exhibit = Table | Bars | Lines


@dataclass(frozen=True)
class Section:
    """What one result shows.

    Attributes:
        title: of the section.
        about: one or two sentences: what was measured.
        exhibits: tables and charts in order.
        facts: commit, machine, versions and arguments, by name.
    """

    title: str
    about: str
    exhibits: Sequence[Exhibit]
    facts: Mapping[str, str] = field(default_factory=dict)


def shown(cell: Cell) -> str:
    """Return a cell as text: three significant digits below 100, separated thousands from there on."""
    if cell is None:
        return "-"
    if isinstance(cell, bool) or not isinstance(cell, int | float):
        return str(cell)
    if isinstance(cell, int):
        return f"{cell:,}"
    if abs(cell) >= 100:
        return f"{cell:,.0f}"
    return f"{cell:.1f}" if abs(cell) >= 10 else f"{cell:.2f}"
