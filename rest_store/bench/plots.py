"""Charts as PNG and SVG files, drawn by matplotlib; takes the extra [plots]."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rest_store.bench.exhibits import Bars, Exhibit, Lines
from rest_store.errors import ResultsError, describe


def draw_charts(exhibits: Sequence[Exhibit], folder: Path, prefix: str) -> list[Path]:
    """Write each chart of `exhibits` as `PREFIX-TITLE.png` and `.svg`; tables are passed over.

    Returns:
        The files written.

    Raises:
        ResultsError: matplotlib is not installed, or the folder cannot be written to.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ResultsError(
            describe("plots", "matplotlib", "missing", "installed: pip install 'rest-store[plots]'")
        ) from error
    written = []
    for chart in exhibits:
        if not isinstance(chart, Bars | Lines) or not any(chart.series.values()):
            continue
        figure = Figure(figsize=(7.5, 4.5), layout="constrained")
        axes = figure.subplots()
        if isinstance(chart, Bars):
            _bars(axes, chart)
        else:
            _lines(axes, chart)
        axes.set_title(chart.title)
        if len(chart.series) > 1:
            axes.legend(fontsize="small")
        name = f"{prefix}-{re.sub(r'[^a-z0-9]+', '-', chart.title.lower()).strip('-')}"
        for ending in ("png", "svg"):
            written.append(folder / f"{name}.{ending}")
            try:
                folder.mkdir(parents=True, exist_ok=True)
                figure.savefig(written[-1], dpi=120, metadata={"Date": None} if ending == "svg" else None)
            except OSError as error:
                found = f"not writable ({error.strerror})"
                raise ResultsError(describe(folder, "folder", found, "a place to write to")) from error
    return written


def _bars(axes: Any, chart: Bars) -> None:
    thick = 0.8 / len(chart.series)
    for number, (name, values) in enumerate(chart.series.items()):
        places = [place + (number + 0.5) * thick - 0.4 for place in range(len(chart.categories))]
        axes.barh(places, [value or 0.0 for value in values], height=thick * 0.92, label=name)
    axes.set_yticks(range(len(chart.categories)), chart.categories)
    axes.invert_yaxis()
    axes.set_xlabel(chart.unit)
    if chart.reference is not None:
        axes.axvline(chart.reference, color="0.4", linewidth=1)


def _lines(axes: Any, chart: Lines) -> None:
    for name, points in chart.series.items():
        axes.plot([x for x, _ in points], [y for _, y in points], marker="o", markersize=4, label=name)
    axes.set(xlabel=chart.across, ylabel=chart.up)
    if "x" in chart.logarithmic:
        axes.set_xscale("log")
    if "y" in chart.logarithmic:
        axes.set_yscale("log")
    axes.grid(alpha=0.3)
