"""Charts drawn by matplotlib (extra [plots]): as SVG for a page, or as PNG and SVG files."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

from rest_store.bench.exhibits import Bars, Exhibit, Lines, shown
from rest_store.errors import ResultsError, describe

# Text stays text, and equal charts give equal bytes.
_SETTINGS: dict[Any, Any] = {"svg.fonttype": "none", "svg.hashsalt": "rest-store"}
_NO_DATE = {"Date": None}


def svg_of(chart: Bars | Lines) -> str:
    """Return the chart as an SVG document that refers to nothing outside itself."""
    text = io.StringIO()
    with matplotlib.rc_context(_SETTINGS):
        _figure(chart).savefig(text, format="svg", metadata=_NO_DATE)
    return text.getvalue()


def write_charts(exhibits: Iterable[Exhibit], folder: Path, prefix: str) -> list[Path]:
    """Write each chart of `exhibits` as `PREFIX-TITLE.png` and `.svg`; tables are passed over.

    Returns:
        The files written.

    Raises:
        ResultsError: the folder cannot be written to.
    """
    written = []
    for chart in exhibits:
        if not isinstance(chart, Bars | Lines) or not any(chart.series.values()):
            continue
        name = f"{prefix}-{re.sub(r'[^a-z0-9]+', '-', chart.title.lower()).strip('-')}"
        figure = _figure(chart)
        for ending in ("png", "svg"):
            written.append(folder / f"{name}.{ending}")
            try:
                folder.mkdir(parents=True, exist_ok=True)
                with matplotlib.rc_context(_SETTINGS):
                    figure.savefig(written[-1], dpi=120, metadata=_NO_DATE if ending == "svg" else None)
            except OSError as error:
                reason = f"not writable ({error.strerror})"
                raise ResultsError(describe(folder, "folder", reason, "a place to write to")) from error
    return written


def _figure(chart: Bars | Lines) -> Figure:
    height = 4.5
    if isinstance(chart, Bars):
        height = max(height, 1.5 + 0.13 * len(chart.categories) * len(chart.series))
    figure = Figure(figsize=(8, height), layout="constrained")
    axes = figure.subplots()
    if isinstance(chart, Bars):
        _draw_bars(axes, chart)
    else:
        _draw_lines(axes, chart)
    axes.set_title(chart.title)
    if len(chart.series) > 1:
        figure.legend(loc="outside lower center", ncols=2, fontsize="small")
    return figure


def _draw_bars(axes: Any, chart: Bars) -> None:
    thickness = 0.8 / len(chart.series)
    for number, (name, values) in enumerate(chart.series.items()):
        places = [place + (number + 0.5) * thickness - 0.4 for place in range(len(chart.categories))]
        bars = axes.barh(places, [value or 0.0 for value in values], height=thickness * 0.92, label=name)
        axes.bar_label(bars, ["" if value is None else shown(float(value)) for value in values], padding=2, fontsize=6)
    axes.set_yticks(range(len(chart.categories)), chart.categories)
    axes.invert_yaxis()
    axes.set_xlabel(chart.unit)
    if chart.reference is not None:
        axes.axvline(chart.reference, color="0.4", linewidth=1)


def _draw_lines(axes: Any, chart: Lines) -> None:
    for name, points in chart.series.items():
        axes.plot([x for x, _ in points], [y for _, y in points], marker="o", markersize=4, label=name)
    axes.set(xlabel=chart.across, ylabel=chart.up)
    if "x" in chart.logarithmic:
        axes.set_xscale("log")
    if "y" in chart.logarithmic:
        axes.set_yscale("log")
    axes.grid(alpha=0.3)
