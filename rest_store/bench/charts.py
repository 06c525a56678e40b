"""What a reader looks for first in a result, as bars: how fast methods are, and M by source."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rest_store.bench.results import Result
from rest_store.datastore.render import counted

_METHODS = {  # of `bench speed`, in words
    "plain": "plain generation",
    "transformers prompt lookup": "prompt lookup of transformers",
    "no drafts": "the package's loop, no drafts",
    "DraftSession": "drafts of all sources",
}
_ALONE, _WITHOUT = "session, ", "session without "  # how rows of `bench replay` begin
_SPEED_NOTE = "Of whole generations, in the median; the line shows the range."
_MEAN_NOTE = (
    "Tokens of a forward pass; 1 without drafts. In a replay, each step drafts as many nodes as it"
    " may; generation cuts trees, so its M is lower. The line shows where M lies for 95% of such"
    " samples."
)
_MAX_BUDGETS = 2  # of which a replay's sources have a chart each


@dataclass(frozen=True)
class Bar:
    """One figure.

    Attributes:
        label: of what.
        value: how much, 0 or more.
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
        title: what they are.
        bars: at least one.
        note: how to read them.
    """

    title: str
    bars: tuple[Bar, ...]
    note: str

    @property
    def greatest(self) -> float:
        """The end of the axis, which begins at 0."""
        return max(max(bar.value, bar.high or 0.0) for bar in self.bars) or 1.0


def charts_of(result: Result) -> list[Chart]:
    """Return the charts of a result; none where its benchmark has none, or it lacks the figures."""
    make = _MAKERS.get(result.benchmark)
    try:
        return [] if make is None else [chart for chart in make(result.figures) if chart.bars]
    # An older result, or a file of something else.
    except (KeyError, TypeError, ValueError, AttributeError):
        return []


def _speeds(figures: Mapping[str, Any]) -> Iterable[Chart]:
    methods = figures["families"]["all"]
    bars = [
        Bar(
            _METHODS.get(name, name),
            float(row["speedup"]),
            *(_number(row.get(end)) for end in ("low", "high")),
        )
        for name, row in methods.items()
    ]
    yield Chart("Speed, in multiples of plain generation", tuple(bars), _SPEED_NOTE)


def _means(figures: Mapping[str, Any]) -> Iterable[Chart]:
    rows = figures["rows"]
    sessions = [row for row in rows if row["drafting"] == "session"]
    by_source = [row for row in rows if row["drafting"].startswith((_ALONE, _WITHOUT))]
    if not by_source:
        bars = tuple(_mean(counted(row["nodes"], "node"), row) for row in sessions)
        yield Chart("M in replays", bars, _MEAN_NOTE)
        return
    for session in sessions[:_MAX_BUDGETS]:
        nodes = session["nodes"]
        same = [row for row in by_source if row["nodes"] == nodes]
        bars = (
            _mean("all sources", session),
            *(_mean(_source(row["drafting"]), row) for row in same),
        )
        yield Chart(f"M in replays with {counted(nodes, 'node')}", bars, _MEAN_NOTE)


def _source(drafting: str) -> str:
    """Return a row's name for a reader who sees the others: "code alone", "all but code"."""
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
