"""The most important figures of a result, as bars: the speed of methods, and M by source."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rest_store.bench.results import Result
from rest_store.datastore.render import counted

_METHODS = {  # the methods of `bench speed`, in words
    "plain": "plain generation",
    "transformers prompt lookup": "prompt lookup of transformers",
    "no drafts": "the package's loop, no drafts",
    "DraftSession": "drafts of all sources",
}
# The beginnings of rows of `bench replay`.
_ALONE = "session, "
_WITHOUT = "session without "
_SPEED_NOTE = "Of whole generations, in the median; the line shows the range."
_MEAN_NOTE = (
    "Tokens of a forward pass; 1 without drafts. In a replay, each step drafts as many nodes as it"
    " may; generation cuts trees, so its M is lower. The line is the 95% interval."
)
_MAX_BUDGETS = 2  # budgets of a replay that have a chart of sources each


@dataclass(frozen=True)
class Bar:
    """One figure.

    Attributes:
        label: the name of the figure.
        value: 0 or more.
        low: lower end of its range; None where it has none.
        high: upper end.
    """

    label: str
    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Chart:
    """Figures that are compared.

    Attributes:
        title: the name of the chart.
        bars: at least one.
        note: an explanation of the figures.
    """

    title: str
    bars: tuple[Bar, ...]
    note: str

    @property
    def greatest(self) -> float:
        """The end of the axis, which begins at 0."""
        return max(max(bar.value, bar.high or 0.0) for bar in self.bars) or 1.0


def result_charts(result: Result) -> list[Chart]:
    """Return the charts of a result; none if its benchmark has none, or it lacks the figures."""
    make = _MAKERS.get(result.benchmark)
    if make is None:
        return []
    try:
        return [chart for chart in make(result.figures) if chart.bars]
    # An older result, or another JSON file.
    except (KeyError, TypeError, ValueError, AttributeError):
        return []


def _speeds(figures: Mapping[str, Any]) -> Iterable[Chart]:
    bars = []
    for name, row in figures["families"]["all"].items():
        label = _METHODS.get(name, name)
        low = _number(row.get("low"))
        high = _number(row.get("high"))
        bars.append(Bar(label, float(row["speedup"]), low, high))
    yield Chart("Speed, in multiples of plain generation", tuple(bars), _SPEED_NOTE)


def _means(figures: Mapping[str, Any]) -> Iterable[Chart]:
    table_rows = figures["rows"]
    sessions = [row for row in table_rows if row["drafting"] == "session"]
    by_source = [row for row in table_rows if row["drafting"].startswith((_ALONE, _WITHOUT))]
    if not by_source:
        bars = tuple(_mean(counted(row["nodes"], "node"), row) for row in sessions)
        yield Chart("M in replays", bars, _MEAN_NOTE)
        return
    for session in sessions[:_MAX_BUDGETS]:
        nodes = session["nodes"]
        bars = (_mean("all sources", session),)
        for row in by_source:
            if row["nodes"] == nodes:
                bars += (_mean(_source(row["drafting"]), row),)
        yield Chart(f"M in replays with {counted(nodes, 'node')}", bars, _MEAN_NOTE)


def _source(drafting: str) -> str:
    """Return the name of a row beside the others: "code alone", "all but code"."""
    if drafting.startswith(_WITHOUT):
        return f"all but {drafting.removeprefix(_WITHOUT)}"
    return drafting.removeprefix(_ALONE)


def _mean(label: str, row: Mapping[str, Any]) -> Bar:
    low, high = row.get("interval", (None, None))
    return Bar(label, float(row["M"]), _number(low), _number(high))


def _number(value: Any) -> float | None:
    return None if value is None else float(value)


_MAKERS: dict[str, Callable[[Mapping[str, Any]], Iterable[Chart]]] = {
    "speed": _speeds,
    "replay": _means,
}
