"""The command `rest-store bench report`: a folder of results as one page of HTML."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import click

from rest_store.bench.charts import Bar, Chart, charts_of
from rest_store.bench.results import Result, read_results, write_text
from rest_store.bench.tables import Table, shown, tables_of
from rest_store.command_options import PATH, json_option
from rest_store.datastore.render import counted
from rest_store.pages.document import document, packaged

_FIRST = ("speed", "replay")  # what users measure themselves stands before the rest
_FEW = 4  # results that are shown at once; of more, each is opened by a click
_LONG = 30  # rows of a table that is shown at once
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
    help="Where the result is written: the page.",
)
@json_option
def report(folder: Path, out: Path | None, as_json: bool) -> None:
    """Turn the results in DIR, as the other commands write them with --out, into one page of HTML.

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
    """Return results with what users measure first."""

    def rank(name: str) -> tuple[int, str]:
        benchmark = results[name].benchmark
        return (_FIRST.index(benchmark) if benchmark in _FIRST else len(_FIRST)), name

    return {name: results[name] for name in sorted(results, key=rank)}


def page(
    results: Mapping[str, Result],
    *,
    title: str = "What rest-store is worth, and what it costs",
    verdict: str = "",
) -> str:
    """Return the page.

    Args:
        results: by name, in the order in which they are shown.
        title: of the page.
        verdict: what they come to, in a sentence; shown below the title.
    """
    said = f'<p class="verdict"><strong>{escape(verdict)}</strong></p>\n' if verdict else ""
    is_open = len(results) <= _FEW
    body = (
        '<header>\n<p class="overline">rest-store bench'
        f" report</p>\n<h1>{escape(title)}</h1>\n{said}</header>\n"
        f"<main>\n{''.join(_section(result, is_open) for result in results.values())}</main>\n"
    )
    return document(title, body, style=packaged(__package__, "report.css"))


def _title(name: str) -> str:
    return name.replace("_", " ").capitalize()


def _section(result: Result, is_open: bool) -> str:
    charts = charts_of(result)
    note = _NOTES.get(result.benchmark)
    parts = [
        f'<p class="soft">{note}</p>\n' if note else "",
        *map(_table, tables_of(result.figures)),
    ]
    if result.arguments:
        arguments = "".join(f"<div>{_term(*pair)}</div>" for pair in result.arguments.items())
        parts.append(f'<dl class="arguments" aria-label="Arguments">{arguments}</dl>\n')
    if charts:
        parts = [
            *map(_chart, charts),
            f"<details><summary>All figures</summary>{''.join(parts)}</details>\n",
        ]
    if result.facts:
        facts = "".join(_term(*pair) for pair in result.facts.items())
        parts.append(
            "<details><summary>Commit, machine and data</summary><dl"
            f' class="facts">{facts}</dl></details>\n'
        )
    return (
        f'<section id="{escape(result.name)}">\n<details'
        f' class="result"{" open" if is_open else ""}>'
        f"<summary><h2>{escape(_title(result.name))}</h2></summary>\n{''.join(parts)}</details>\n</section>\n"
    )


def _term(name: str, value: str) -> str:
    return f"<dt>{escape(name.replace('_', ' '))}</dt><dd>{escape(value)}</dd>"


def _chart(chart: Chart) -> str:
    rows = "".join(_bar(bar, chart.greatest) for bar in chart.bars)
    return (
        "<table"
        f' class="bars"><caption>{escape(chart.title)}</caption><tbody>\n{rows}</tbody></table>\n<p'
        f' class="soft note">{escape(chart.note)}</p>\n'
    )


def _bar(bar: Bar, greatest: float) -> str:
    """Return a row: the label, the bar with its range, and both as figures."""
    drawn, said = f'<i style="width:{100 * bar.value / greatest:.1f}%"></i>', f"{bar.value:.2f}"
    if bar.low is not None and bar.high is not None and bar.low < bar.high:
        start, width = 100 * bar.low / greatest, 100 * (bar.high - bar.low) / greatest
        drawn += f'<u style="left:{start:.1f}%;width:{width:.1f}%"></u>'
        said += f' <span class="soft">({bar.low:.2f} to {bar.high:.2f})</span>'
    return (
        f'<tr><th scope="row">{escape(bar.label)}</th><td class="track"'
        f' aria-hidden="true"><div>{drawn}</div></td><td>{said}</td></tr>\n'
    )


def _table(table: Table) -> str:
    title = f"<h3>{escape(table.title)}</h3>\n" if table.title else ""
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in table.header)
    rows = "".join(_row(table.header, [shown(cell) for cell in row]) for row in table.rows)
    # The box scrolls where the table is wider than the page, with the keyboard as well. On a phone,
    # a row is a list.
    box = (
        '<div class="wide" tabindex="0" role="group"'
        f' aria-label="{escape(table.title or "Figures")}">'
        f"<table><thead><tr>{head}</tr></thead><tbody>\n{rows}</tbody></table></div>\n"
    )
    if len(table.rows) > _LONG:
        box = f"<details><summary>{counted(len(table.rows), 'row')}</summary>{box}</details>\n"
    return title + box


def _row(header: Sequence[str], cells: Sequence[str]) -> str:
    labelled = zip(header[1:], cells[1:], strict=True)
    values = "".join(
        f'<td data-label="{escape(label)}">{escape(cell)}</td>' for label, cell in labelled
    )
    return f'<tr><th scope="row">{escape(cells[0])}</th>{values}</tr>\n'
