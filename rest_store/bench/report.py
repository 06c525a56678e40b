"""The command `rest-store bench report`: a folder of results as one page of HTML."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

import click

from rest_store.bench.charts import Bar, Chart, result_charts
from rest_store.bench.figure_tables import Table, cell_text, figure_tables
from rest_store.bench.results import Result, read_results, write_text
from rest_store.command_options import PATH, json_option
from rest_store.datastore.render import counted
from rest_store.pages.document import document, packaged

_FIRST = ("speed", "replay")  # benchmarks of users stand before the rest
_FEW = 4  # results that are shown open; of more, a click opens each
_LONG = 30  # rows of a table that is shown open
_NOTES = {  # by benchmark
    "speed": "M while generating: trees are cut where another node costs more time than it saves.",
    "replay": (
        "M of replays, in which each step drafts as many nodes as it may: generation cuts trees,"
        " its M is lower."
    ),
}


@click.command(epilog="Example: rest-store bench report results/ --out report.html")
@click.argument("folder", metavar="DIR", type=PATH)
@click.option(
    "--out",
    metavar="FILE",
    type=PATH,
    show_default="report.html in DIR",
    help="Destination of the result: the page.",
)
@json_option
def report(folder: Path, out: Path | None, as_json: bool) -> None:
    """Turn the results in DIR, which other commands wrote with --out, into one page of HTML.

    The page needs no network and no scripts, and reads well in a browser and on paper. Speeds and M
    are shown as bars; every figure is in a table.
    """
    results = in_order(read_results(folder))
    target = out if out is not None else folder / "report.html"
    write_text(target, page(results))
    if as_json:
        click.echo(json.dumps({"out": str(target), "results": sorted(results)}))
    else:
        click.echo(f"{target}: {counted(len(results), 'result')}")


def in_order(results: Mapping[str, Result]) -> dict[str, Result]:
    """Return results in order, with the benchmarks of users first."""

    def rank(name: str) -> tuple[int, str]:
        benchmark = results[name].benchmark
        return (_FIRST.index(benchmark) if benchmark in _FIRST else len(_FIRST)), name

    return {name: results[name] for name in sorted(results, key=rank)}


def page(
    results: Mapping[str, Result],
    *,
    title: str = "The gain and the costs of rest-store",
    verdict: str = "",
) -> str:
    """Return the page.

    Args:
        results: by name, in the order of the page.
        title: the title of the page.
        verdict: their sum in a sentence, below the title.
    """
    header = f'<p class="overline">rest-store bench report</p>\n<h1>{escape(title)}</h1>\n'
    if verdict:
        header += f'<p class="verdict"><strong>{escape(verdict)}</strong></p>\n'
    is_open = len(results) <= _FEW
    sections = "".join(_section(result, is_open) for result in results.values())
    body = f"<header>\n{header}</header>\n<main>\n{sections}</main>\n"
    return document(title, body, style=packaged(__package__, "report.css"))


def _title(name: str) -> str:
    return name.replace("_", " ").capitalize()


def _section(result: Result, is_open: bool) -> str:
    figures = ""
    if result.benchmark in _NOTES:
        figures += f'<p class="soft">{_NOTES[result.benchmark]}</p>\n'
    figures += "".join(map(_table, figure_tables(result.figures)))
    if result.arguments:
        arguments = "".join(f"<div>{_term(*pair)}</div>" for pair in result.arguments.items())
        figures += f'<dl class="arguments" aria-label="Arguments">{arguments}</dl>\n'
    content = figures
    charts = result_charts(result)
    if charts:
        content = "".join(map(_chart, charts))
        content += f"<details><summary>All figures</summary>{figures}</details>\n"
    if result.facts:
        facts = "".join(_term(*pair) for pair in result.facts.items())
        content += "<details><summary>Commit, machine and data</summary>"
        content += f'<dl class="facts">{facts}</dl></details>\n'
    details = '<details class="result" open>' if is_open else '<details class="result">'
    title = escape(_title(result.name))
    return (
        f'<section id="{escape(result.name)}">\n{details}'
        f"<summary><h2>{title}</h2></summary>\n{content}</details>\n</section>\n"
    )


def _term(name: str, value: str) -> str:
    return f"<dt>{escape(name.replace('_', ' '))}</dt><dd>{escape(value)}</dd>"


def _chart(chart: Chart) -> str:
    bars = "".join(_bar(bar, chart.greatest) for bar in chart.bars)
    return (
        f'<table class="bars"><caption>{escape(chart.title)}</caption>'
        f"<tbody>\n{bars}</tbody></table>\n"
        f'<p class="soft note">{escape(chart.note)}</p>\n'
    )


def _bar(bar: Bar, greatest: float) -> str:
    """Return a row: the label, the bar with its range, and both as figures."""
    track = f'<i style="width:{100 * bar.value / greatest:.1f}%"></i>'
    figures = f"{bar.value:.2f}"
    if bar.low is not None and bar.high is not None and bar.low < bar.high:
        start = 100 * bar.low / greatest
        width = 100 * (bar.high - bar.low) / greatest
        track += f'<u style="left:{start:.1f}%;width:{width:.1f}%"></u>'
        figures += f' <span class="soft">({bar.low:.2f} to {bar.high:.2f})</span>'
    return (
        f'<tr><th scope="row">{escape(bar.label)}</th>'
        f'<td class="track" aria-hidden="true"><div>{track}</div></td><td>{figures}</td></tr>\n'
    )


def _table(table: Table) -> str:
    title = f"<h3>{escape(table.title)}</h3>\n" if table.title else ""
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in table.header)
    body = "".join(_row(table.header, map(cell_text, row)) for row in table.rows)
    # The box scrolls where the table is wider than the page, with the keyboard as well. On a phone,
    # a row is a list.
    label = escape(table.title or "Figures")
    box = (
        f'<div class="wide" tabindex="0" role="group" aria-label="{label}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table></div>\n"
    )
    if len(table.rows) > _LONG:
        box = f"<details><summary>{counted(len(table.rows), 'row')}</summary>{box}</details>\n"
    return title + box


def _row(header: Sequence[str], cells: Iterable[str]) -> str:
    name, *values = cells
    row = f'<tr><th scope="row">{escape(name)}</th>'
    for label, value in zip(header[1:], values, strict=True):
        row += f'<td data-label="{escape(label)}">{escape(value)}</td>'
    return row + "</tr>\n"
