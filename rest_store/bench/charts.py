"""Charts drawn by matplotlib (extra [plots]): as SVG for a page, or as PNG and SVG files."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib
from cycler import cycler
from matplotlib.figure import Figure

from rest_store.bench.exhibits import Bars, Exhibit, Lines, shown
from rest_store.errors import ResultsError, describe

# Colours that can be told apart on white and on dark, also by readers who see fewer, as those of sources in a page.
_COLOURS = ("#2f86d6", "#c9761a", "#14946b", "#a55bbd", "#c9527b", "#7d9a1f", "#1f94a8", "#7b74dd")
_MARKERS = "osD^vPX*"
_INK, _FAINT = "#191d24", "#d9dee5"  # on dark, a page shows the ones below
_ON_DARK = {_INK: "#e8ebf0", _FAINT: "#313844"}
# Text stays text, and equal charts give equal bytes.
_SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "rest-store",
    "font.size": 11,
    "figure.titlesize": 12,
    "figure.titleweight": "bold",
    "axes.edgecolor": _FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": _FAINT,
    "legend.frameon": False,
    "axes.prop_cycle": cycler(color=_COLOURS),
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), _INK),
}
_NO_DATE = {"Date": None}


def svg_of(chart: Bars | Lines) -> str:
    """Return the chart as an SVG document, for a light or dark page, that refers to nothing outside itself."""
    text = io.StringIO()
    with matplotlib.rc_context(_SETTINGS):
        _figure(chart).savefig(text, format="svg", metadata=_NO_DATE, transparent=True)
    drawing = text.getvalue()
    for place, ink in enumerate(_ON_DARK):
        drawing = drawing.replace(ink, f"var(--ink-{place})")
    light, dark = (
        "".join(f"--ink-{place}:{ink};" for place, ink in enumerate(inks))
        for inks in (list(_ON_DARK), list(_ON_DARK.values()))
    )
    style = f"<style>:root{{{light}}}@media (prefers-color-scheme: dark){{:root{{{dark}}}}}</style>"
    return re.sub(r"(<svg\b[^>]*>)", rf"\1{style}", drawing, count=1)


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
        with matplotlib.rc_context(_SETTINGS):
            figure = _figure(chart)
            for ending in ("png", "svg"):
                written.append(folder / f"{name}.{ending}")
                try:
                    folder.mkdir(parents=True, exist_ok=True)
                    figure.savefig(written[-1], dpi=120, metadata=_NO_DATE if ending == "svg" else None)
                except OSError as error:
                    reason = f"not writable ({error.strerror})"
                    raise ResultsError(describe(folder, "folder", reason, "a place to write to")) from error
    return written


def _figure(chart: Bars | Lines) -> Figure:
    height = 3.8
    if isinstance(chart, Bars):
        height = 1.3 + len(chart.categories) * (0.2 + 0.17 * len(chart.series))
    legend = len(chart.series) > 1
    figure = Figure(figsize=(7, height + 0.25 * len(chart.series) * legend), layout="constrained")
    axes = figure.subplots()
    if isinstance(chart, Bars):
        _draw_bars(axes, chart)
    else:
        _draw_lines(axes, chart)
    if legend:  # below the title: charts may be higher than a screen
        bold = {"weight": "bold", "size": 12}
        figure.legend(
            loc="outside upper left", title=chart.title, title_fontproperties=bold, alignment="left", fontsize="small"
        )
    else:
        figure.suptitle(chart.title, x=0.01, horizontalalignment="left")
    return figure


def _draw_bars(axes: Any, chart: Bars) -> None:
    thickness = 0.8 / len(chart.series)
    for number, (name, values) in enumerate(chart.series.items()):
        places = [place + (number + 0.5) * thickness - 0.4 for place in range(len(chart.categories))]
        lengths = [0.0 if value is None else value - chart.origin for value in values]
        bars = axes.barh(places, lengths, left=chart.origin, height=thickness * 0.86, label=name)
        axes.bar_label(bars, ["" if value is None else shown(float(value)) for value in values], padding=3, fontsize=8)
    axes.set_yticks(range(len(chart.categories)), chart.categories)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.invert_yaxis()
    axes.set_xlabel(chart.unit)
    axes.margins(x=0.12, y=0.02)
    axes.axvline(chart.origin, color=_INK, linewidth=1)
    if all(value is None or value >= chart.origin for values in chart.series.values() for value in values):
        axes.set_xlim(left=chart.origin)


def _draw_lines(axes: Any, chart: Lines) -> None:
    for number, (name, points) in enumerate(chart.series.items()):
        marker = _MARKERS[number % len(_MARKERS)]
        axes.plot([x for x, _ in points], [y for _, y in points], marker=marker, markersize=5, label=name)
    axes.set(xlabel=chart.across, ylabel=chart.up)
    if "x" in chart.logarithmic:
        axes.set_xscale("log")
    if "y" in chart.logarithmic:
        axes.set_yscale("log")
    if chart.origin is not None:
        least = min(y for points in chart.series.values() for _, y in points)
        axes.set_ylim(bottom=chart.origin if least >= chart.origin else None)
        axes.axhline(chart.origin, color=_INK, linewidth=1)
    axes.grid()
