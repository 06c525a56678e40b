"""Charts as SVG, without any package: their colours and fonts are those of the page that they stand in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from rest_store.bench.exhibits import Bars, Lines, shown

WIDTH = 720
_LEFT, _RIGHT, _TOP = 64, 16, 12
SERIES = 8  # colours


def draw(chart: Bars | Lines) -> str:
    """Return the chart as one `<svg>` element: classes `s0`, `s1`... for series, `axis`, `grid` and `label`."""
    body, height = _bars(chart) if isinstance(chart, Bars) else _lines(chart)
    title = escape(chart.title)
    start = f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{title}"><title>{title}</title>'
    return start + "".join(body) + "</svg>"


def _text(x: float, y: float, text: str, *, anchor: str = "start", turned: bool = False) -> str:
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    return f'<text class="label" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{turn}>{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _legend(names: Sequence[str], top: float) -> tuple[list[str], float]:
    """Return the legend's parts, in as many lines as it takes, and where it ends."""
    parts, x, y = [], float(_LEFT), top + 10
    for place, name in enumerate(names):
        width = 28 + 6.8 * len(name)
        if x + width > WIDTH and x > _LEFT:
            x, y = float(_LEFT), y + 20
        parts.append(f'<rect class="s{place % SERIES}" x="{x:.1f}" y="{y - 9:.1f}" width="12" height="12" rx="2"/>')
        parts.append(_text(x + 18, y + 2, name))
        x += width
    return parts, y + 10


def _bars(chart: Bars) -> tuple[list[str], int]:
    """Horizontal bars: names are read without turning one's head."""
    parts, top = _legend(list(chart.series), _TOP) if len(chart.series) > 1 else ([], float(_TOP))
    thick, left = 15, 12 + 6.8 * max((len(name) for name in chart.categories), default=0)
    values = [value for row in chart.series.values() for value in row if value is not None]
    most = max([*values, chart.reference or 0, 1e-9])
    scale = (WIDTH - left - 64) / most
    y = top + 8
    for place, category in enumerate(chart.categories):
        group = thick * len(chart.series)
        parts.append(_text(left - 8, y + group / 2 + 4, category, anchor="end"))
        for number, row in enumerate(chart.series.values()):
            value = row[place]
            if value is not None:
                wide, at = max(1.0, value * scale), y + thick * number
                box = f'x="{left:.1f}" y="{at:.1f}" width="{wide:.1f}" height="{thick - 2}"'
                parts.append(f'<rect class="s{number % SERIES}" {box}/>')
                parts.append(_text(left + wide + 5, at + 10.5, shown(float(value))))
        y += group + 9
    if chart.reference is not None:
        x = left + chart.reference * scale
        parts.insert(0, _line(x, top + 2, x, y, "axis"))
    parts.append(_text(left, y + 12, chart.unit))
    return parts, math.ceil(y + 20)


def _lines(chart: Lines) -> tuple[list[str], int]:
    parts, top = _legend(list(chart.series), _TOP) if len(chart.series) > 1 else ([], float(_TOP))
    high = 260
    points = [point for line in chart.series.values() for point in line]
    across = _Axis([x for x, _ in points], _LEFT, WIDTH - _RIGHT, logarithmic="x" in chart.logarithmic)
    up = _Axis([y for _, y in points], top + high, top + 8, logarithmic="y" in chart.logarithmic)
    bottom = top + high
    for value in up.ticks():
        parts += [_line(_LEFT, up.at(value), WIDTH - _RIGHT, up.at(value), "grid")]
        parts += [_text(_LEFT - 6, up.at(value) + 4, _tick(value), anchor="end")]
    for value in across.ticks():
        parts += [_line(across.at(value), bottom, across.at(value), bottom + 4, "axis")]
        parts += [_text(across.at(value), bottom + 18, _tick(value), anchor="middle")]
    parts.append(_line(_LEFT, bottom, WIDTH - _RIGHT, bottom, "axis"))
    for number, line in enumerate(chart.series.values()):
        path = " ".join(f"{across.at(x):.1f},{up.at(y):.1f}" for x, y in line)
        parts.append(f'<polyline class="line s{number % SERIES}" points="{path}"/>')
        parts += [
            f'<circle class="s{number % SERIES}" cx="{across.at(x):.1f}" cy="{up.at(y):.1f}" r="3"/>' for x, y in line
        ]
    parts.append(_text((_LEFT + WIDTH - _RIGHT) / 2, bottom + 38, chart.across, anchor="middle"))
    parts.append(_text(14, top + high / 2, chart.up, anchor="middle", turned=True))
    return parts, math.ceil(bottom + 46)


def _tick(value: float) -> str:
    return f"{value / 1e6:g}M" if value >= 1e6 else f"{value / 1e3:g}k" if value >= 1e4 else f"{value:g}"


class _Axis:
    """Where a value lies between two ends of an axis, in the units of the drawing."""

    def __init__(self, values: Sequence[float], begin: float, end: float, *, logarithmic: bool) -> None:
        self.logarithmic = logarithmic and min(values) > 0
        low, high = min(values), max(values)
        if not self.logarithmic:
            low = 0.0 if 0 <= low < high / 2 else low
            low, high = (low, high) if high > low else (low - 1, high + 1)
        elif low == high:
            low, high = low / 2, high * 2
        self.low, self.high, self.begin, self.end = low, high, begin, end

    def at(self, value: float) -> float:
        low, high = (math.log(self.low), math.log(self.high)) if self.logarithmic else (self.low, self.high)
        share = ((math.log(value) if self.logarithmic else value) - low) / (high - low)
        return self.begin + share * (self.end - self.begin)

    def ticks(self) -> list[float]:
        if self.logarithmic:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            for steps in ((1,), (1, 3), (1, 2, 5), (1, 2, 3, 4, 6, 8)):
                found = [step * 10.0**power for power in powers for step in steps]
                found = [value for value in found if self.low * 0.999 <= value <= self.high * 1.001]
                if len(found) >= 3:
                    break
            return found
        span = self.high - self.low
        step = 10.0 ** math.floor(math.log10(span / 4))
        step *= next((factor for factor in (1, 2, 5) if span / (step * factor) <= 6), 10)
        first = math.ceil(self.low / step - 1e-9)
        return [round(number * step, 10) for number in range(first, math.floor(self.high / step + 1e-9) + 1)]
