"""The command `rest-store bench report`: one page of HTML from a folder of results, without network or scripts."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from html import escape
from pathlib import Path

import click

from rest_store.bench.exhibits import Exhibit, Section, Table, shown
from rest_store.bench.markdown_tables import filled
from rest_store.bench.options import plots_option
from rest_store.bench.results import Result, read_results
from rest_store.bench.sections import ORDER, section_of
from rest_store.bench.verdict import verdict
from rest_store.datastore.render import counted
from rest_store.errors import ResultsError, describe
from rest_store.options import PATH, json_option
from rest_store.pages.document import document, packaged

_FEW = 8  # results whose list is shown at once


@click.command(epilog="Example: rest-store bench report results/ --out report.html")
@click.argument("folder", metavar="DIR", type=PATH)
@click.option("--out", metavar="FILE", type=PATH, show_default="report.html in DIR", help="The page to write.")
@plots_option
@click.option(
    "--tables",
    metavar="FILE",
    multiple=True,
    type=PATH,
    help="Fill the marked tables of this Markdown file instead of writing a page. Repeatable.",
)
@click.option("--check", is_flag=True, help="With --tables: write nothing, and fail if a table is out of date.")
@json_option
def report(
    folder: Path, out: Path | None, plots: Path | None, tables: tuple[Path, ...], check: bool, as_json: bool
) -> None:
    """Turn the results in DIR, as the other commands write them with --out, into one page of HTML.

    The page begins with a verdict. It needs no network, and reads well in a browser and on paper. With --tables, the
    tables between the markers of Markdown files are filled from the same results. Charts need the extra [plots].
    """
    if check and not tables:
        raise click.UsageError("--check needs --tables")
    results = read_results(folder)
    if tables:
        states = {str(file): _fill(file, results, folder, check=check) for file in tables}
        if as_json:
            click.echo(json.dumps({"tables": states}))
        else:
            click.echo("".join(f"{file}: tables {state}\n" for file, state in states.items()), nl=False)
        return
    place = out if out is not None else folder / "report.html"
    _write(place, page(results))
    if as_json:
        click.echo(json.dumps({"out": str(place), "results": sorted(results)}))
    else:
        click.echo(f"{place}: {counted(len(results), 'result')}")
    if plots is not None:
        from rest_store.bench.charts import write_charts

        for name, result in results.items():
            write_charts(section_of(result).exhibits, plots, name)


def _fill(file: Path, results: Mapping[str, Result], folder: Path, *, check: bool) -> str:
    """Fill the marked tables of a file; return "written" or "up to date"."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ResultsError(describe(file, "file", f"unreadable ({error})", "Markdown with marked tables")) from error
    new = filled(text, results, file)
    if check and new != text:
        raise ResultsError(describe(file, "a table of figures", "out of date", f"the figures of {folder}"))
    if new != text:
        _write(file, new)
    return "written" if new != text else "up to date"


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8", errors="replace")  # names of files may be other bytes
    except OSError as error:
        raise ResultsError(describe(path, "file", f"not writable ({error.strerror})", "a place to write to")) from error


def page(results: Mapping[str, Result], *, title: str = "What rest-store is worth, and what it costs") -> str:
    """Return the page.

    Args:
        results: by name.
        title: of the page.
    """
    order = {kind: place for place, kind in enumerate(ORDER)}
    sections = {
        name: section_of(result)
        for name, result in sorted(results.items(), key=lambda pair: (order.get(pair[1].kind, len(order)), pair[0]))
    }
    links = "".join(_link(name, section) for name, section in sections.items())
    first, *rest = verdict(results)
    number = f"{len(results)} result{'' if len(results) == 1 else 's'}"
    body = (
        f'<header>\n<p class="overline">rest-store bench report</p>\n<h1>{escape(title)}</h1>\n'
        f'<p class="verdict"><strong>{_marked(first)}</strong> {_marked(" ".join(rest))}</p>\n</header>\n'
        f'<nav aria-label="Results"><details{" open" if len(results) <= _FEW else ""}><summary>{number}</summary>'
        f"<ol>\n{links}</ol></details></nav>\n<main>\n"
        f"{''.join(_section(name, section) for name, section in sections.items())}</main>\n"
    )
    return document(title, body, style=packaged(__package__, "report.css"))


def _link(name: str, section: Section) -> str:
    sample = f' <span class="soft">{escape(section.sample)}</span>' if section.sample else ""
    return f'<li><a href="#{escape(name)}">{escape(section.title)}</a>{sample}</li>\n'


def _section(name: str, section: Section) -> str:
    sample = f'<span class="sample">{escape(section.sample)}.</span> ' if section.sample else ""
    parts = [f"<h2>{escape(section.title)}</h2>\n", f"<p>{sample}{_marked(section.about)}</p>\n"]
    parts += map(_exhibit, section.exhibits)
    if section.arguments:
        arguments = "".join(f"<div>{_term(*pair)}</div>" for pair in section.arguments.items())
        parts.append(f'<dl class="arguments" aria-label="Arguments">{arguments}</dl>\n')
    if section.facts:
        facts = "".join(_term(*pair) for pair in section.facts.items())
        parts.append(f'<details><summary>Commit, machine and data</summary><dl class="facts">{facts}</dl></details>\n')
    return f'<section id="{escape(name)}">\n{"".join(parts)}</section>\n'


def _term(name: str, value: str) -> str:
    return f"<dt>{escape(name.replace('_', ' '))}</dt><dd>{escape(value)}</dd>"


def _exhibit(exhibit: Exhibit) -> str:
    if isinstance(exhibit, Table):
        return _table(exhibit)
    if not any(exhibit.series.values()):
        return ""
    from rest_store.bench.charts import svg_of

    # As an image, so that ids and fonts of the drawing keep to themselves.
    image = base64.b64encode(svg_of(exhibit).encode()).decode()
    title = escape(exhibit.title)
    return f'<figure tabindex="0"><img alt="{title}" src="data:image/svg+xml;base64,{image}"></figure>\n'


def _table(table: Table) -> str:
    if not table.rows:
        return ""
    title = f"<h3>{_marked(table.title)}</h3>\n" if table.title else ""
    head = "".join(f'<th scope="col">{_marked(text)}</th>' for text in table.header)
    rows = "".join(_row([shown(cell) for cell in row]) for row in table.rows)
    note = f'<p class="soft note">{_marked(table.note)}</p>\n' if table.note else ""
    # The box scrolls where the table is wider than the page, with the keyboard as well.
    label = escape(table.title or "Figures")
    box = f'<div class="wide" tabindex="0" role="group" aria-label="{label}">'
    return f"{title}{box}<table><thead><tr>{head}</tr></thead><tbody>\n{rows}</tbody></table></div>\n{note}"


def _row(cells: list[str]) -> str:
    values = "".join(f"<td>{_marked(cell)}</td>" for cell in cells[1:])
    return f'<tr><th scope="row">{_marked(cells[0])}</th>{values}</tr>\n'


def _marked(text: str) -> str:
    """Return escaped text with `code` and **strong** as HTML."""
    text = escape(text, quote=False)
    for mark, tag in (("`", "code"), ("**", "strong")):
        parts = text.split(mark)
        if len(parts) % 2:
            text = "".join(f"<{tag}>{part}</{tag}>" if place % 2 else part for place, part in enumerate(parts))
    return text
