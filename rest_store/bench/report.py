"""The command `rest-store bench report`: a folder of results as one page of HTML."""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from pathlib import Path

import click

from rest_store.bench.results import Result, read_results, write_text
from rest_store.bench.tables import Table, shown, tables_of
from rest_store.datastore.render import counted
from rest_store.options import PATH, json_option
from rest_store.pages.document import document, packaged

_FIRST = ("speed", "quality", "live")  # what users measure themselves stands before the rest
_FEW = 8  # results whose list is shown at once


@click.command(epilog="Example: rest-store bench report results/ --out report.html")
@click.argument("folder", metavar="DIR", type=PATH)
@click.option("--out", metavar="FILE", type=PATH, show_default="report.html in DIR", help="The page to write.")
@json_option
def report(folder: Path, out: Path | None, as_json: bool) -> None:
    """Turn the results in DIR, as the other commands write them with --out, into one page of HTML.

    The page needs no network and no scripts, and reads well in a browser and on paper. Every figure is in a table.
    """
    results = in_order(read_results(folder))
    place = out if out is not None else folder / "report.html"
    write_text(place, page(results))
    if as_json:
        click.echo(json.dumps({"out": str(place), "results": sorted(results)}))
    else:
        click.echo(f"{place}: {counted(len(results), 'result')}")


def in_order(results: Mapping[str, Result]) -> dict[str, Result]:
    """Return results with what users measure first."""

    def rank(name: str) -> tuple[int, str]:
        benchmark = results[name].benchmark
        return (_FIRST.index(benchmark) if benchmark in _FIRST else len(_FIRST)), name

    return {name: results[name] for name in sorted(results, key=rank)}


def page(
    results: Mapping[str, Result], *, title: str = "What rest-store is worth, and what it costs", verdict: str = ""
) -> str:
    """Return the page.

    Args:
        results: by name, in the order in which they are shown.
        title: of the page.
        verdict: what they come to, in a sentence; shown below the title.
    """
    links = "".join(f'<li><a href="#{escape(name)}">{escape(_title(name))}</a></li>\n' for name in results)
    said = f'<p class="verdict"><strong>{escape(verdict)}</strong></p>\n' if verdict else ""
    body = (
        f'<header>\n<p class="overline">rest-store bench report</p>\n<h1>{escape(title)}</h1>\n{said}</header>\n'
        f'<nav aria-label="Results"><details{" open" if len(results) <= _FEW else ""}>'
        f"<summary>{counted(len(results), 'result')}</summary><ol>\n{links}</ol></details></nav>\n"
        f"<main>\n{''.join(map(_section, results.values()))}</main>\n"
    )
    return document(title, body, style=packaged(__package__, "report.css"))


def _title(name: str) -> str:
    return name.replace("_", " ").capitalize()


def _section(result: Result) -> str:
    parts = [f"<h2>{escape(_title(result.name))}</h2>\n", *map(_table, tables_of(result.figures))]
    if result.arguments:
        arguments = "".join(f"<div>{_term(*pair)}</div>" for pair in result.arguments.items())
        parts.append(f'<dl class="arguments" aria-label="Arguments">{arguments}</dl>\n')
    if result.facts:
        facts = "".join(_term(*pair) for pair in result.facts.items())
        parts.append(f'<details><summary>Commit, machine and data</summary><dl class="facts">{facts}</dl></details>\n')
    return f'<section id="{escape(result.name)}">\n{"".join(parts)}</section>\n'


def _term(name: str, value: str) -> str:
    return f"<dt>{escape(name.replace('_', ' '))}</dt><dd>{escape(value)}</dd>"


def _table(table: Table) -> str:
    title = f"<h3>{escape(table.title)}</h3>\n" if table.title else ""
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in table.header)
    rows = "".join(_row([shown(cell) for cell in row]) for row in table.rows)
    # The box scrolls where the table is wider than the page, with the keyboard as well.
    box = f'<div class="wide" tabindex="0" role="group" aria-label="{escape(table.title or "Figures")}">'
    return f"{title}{box}<table><thead><tr>{head}</tr></thead><tbody>\n{rows}</tbody></table></div>\n"


def _row(cells: list[str]) -> str:
    values = "".join(f"<td>{escape(cell)}</td>" for cell in cells[1:])
    return f'<tr><th scope="row">{escape(cells[0])}</th>{values}</tr>\n'
