"""The command `rest-store bench report`: one page of HTML from a folder of results, without network or scripts."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Mapping
from html import escape
from pathlib import Path

import click

from rest_store.bench.exhibits import Exhibit, Section, Table, shown
from rest_store.bench.markdown_tables import filled
from rest_store.bench.options import plots_option
from rest_store.bench.results import Result, read_results
from rest_store.bench.sections import ORDER, section_of
from rest_store.datastore.render import counted
from rest_store.errors import ResultsError, describe
from rest_store.options import PATH, json_option

_STYLE = """
:root { color-scheme: light dark; --back: #fff; --fore: #1b1f24; --soft: #5a6472; --rule: #d5dae1; }
@media (prefers-color-scheme: dark) { :root { --back: #14171b; --fore: #e6e9ed; --soft: #9aa5b3; --rule: #343b44; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 62rem; padding: 2rem 1.25rem 4rem; background: var(--back); color: var(--fore);
  font: 16px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.7rem; margin: 0 0 .25rem; } h2 { font-size: 1.3rem; margin: 2.5rem 0 .25rem;
  border-top: 1px solid var(--rule); padding-top: 1.25rem; } h3 { font-size: 1rem; margin: 1.5rem 0 .4rem; }
p { margin: .25rem 0 .75rem; max-width: 46rem; } .soft, .facts, nav { color: var(--soft); }
a { color: inherit; } nav ul { columns: 2; padding-left: 1.1rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .28rem .9rem .28rem 0; border-bottom: 1px solid var(--rule); text-align: right; vertical-align: top; }
th { font-weight: 600; vertical-align: bottom; } th:first-child, td:first-child { text-align: left; }
td:first-child { white-space: nowrap; }
code { font: .92em ui-monospace, monospace; } figure { margin: 1rem 0; }
img { width: 100%; height: auto; max-width: 46rem; display: block; background: #fff; border-radius: .4rem; }
.facts { font-size: .82rem; } .facts dt { float: left; clear: left; width: 6.5rem; }
.facts dd { margin: 0 0 .15rem 6.5rem; overflow-wrap: anywhere; }
@media print { :root { --back: #fff; --fore: #000; --soft: #444; --rule: #bbb; font-size: 12px; }
  body { padding: 0; font-size: 1rem; } th, td { padding-right: .5rem; }
  .wide { overflow: visible; } td:first-child { white-space: normal; }
  nav { display: none; } h2, h3 { break-after: avoid; } figure, tr { break-inside: avoid; }
  section { break-before: page; } section:first-of-type { break-before: auto; } @page { margin: 16mm; } }
"""


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

    The page needs no network, and reads well in a browser and on paper. With --tables, the tables between the markers
    of Markdown files are filled from the same results. Charts need the extra [plots].
    """
    if check and not tables:
        raise click.UsageError("--check needs --tables")
    results = read_results(folder)
    if tables:
        for file in tables:
            _fill(file, results, folder, check=check)
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


def _fill(file: Path, results: Mapping[str, Result], folder: Path, *, check: bool) -> None:
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ResultsError(describe(file, "file", f"unreadable ({error})", "Markdown with marked tables")) from error
    new = filled(text, results, file)
    if check and new != text:
        raise ResultsError(describe(file, "a table of figures", "out of date", f"the figures of {folder}"))
    if new != text:
        _write(file, new)
    click.echo(f"{file}: {'tables written' if new != text else 'tables up to date'}")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ResultsError(describe(path, "file", f"not writable ({error.strerror})", "a place to write to")) from error


def page(results: Mapping[str, Result], *, title: str = "rest-store: what it is worth, and what it costs") -> str:
    """Return the page.

    Args:
        results: by name.
        title: of the page.
    """
    order = {kind: place for place, kind in enumerate(ORDER)}
    sections = {
        name: section_of(one)
        for name, one in sorted(results.items(), key=lambda pair: (order.get(pair[1].kind, len(order)), pair[0]))
    }
    links = "".join(f'<li><a href="#{escape(name)}">{escape(one.title)}</a></li>' for name, one in sections.items())
    body = "".join(_section(name, one) for name, one in sections.items())
    intro = "Each result is shown with the commit, machine and arguments that it was measured with."
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head>\n<body><h1>{escape(title)}</h1>"
        f'<p class="soft">{intro}</p><nav><ul>{links}</ul></nav>{body}</body></html>\n'
    )


def _section(name: str, section: Section) -> str:
    about = f"<p>{_marked(section.about)}</p>" if section.about else ""
    facts = "".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in section.facts.items())
    begin = f'<section id="{escape(name)}"><h2>{escape(section.title)}</h2>{about}'
    exhibits = "".join(_exhibit(exhibit) for exhibit in section.exhibits)
    return begin + exhibits + (f'<dl class="facts">{facts}</dl>' if facts else "") + "</section>\n"


def _exhibit(exhibit: Exhibit) -> str:
    if isinstance(exhibit, Table):
        return _table(exhibit)
    if not any(exhibit.series.values()):
        return ""
    from rest_store.bench.charts import svg_of

    # As an image, so that ids and fonts of the drawing keep to themselves.
    image = base64.b64encode(svg_of(exhibit).encode()).decode()
    title = escape(exhibit.title)
    return f'<figure><img alt="{title}" src="data:image/svg+xml;base64,{image}"></figure>\n'


def _table(table: Table) -> str:
    if not table.rows:
        return ""
    title = f"<h3>{escape(table.title)}</h3>" if table.title else ""
    head = _cells(table.header, "th")
    rows = "".join(f"<tr>{_cells([shown(cell) for cell in row], 'td')}</tr>" for row in table.rows)
    note = f'<p class="soft">{_marked(table.note)}</p>' if table.note else ""
    return f'{title}<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{note}\n'


def _cells(texts: Iterable[str], kind: str) -> str:
    return "".join(f"<{kind}>{_marked(text)}</{kind}>" for text in texts)


def _marked(text: str) -> str:
    """Return escaped text with `code` and **strong** as HTML."""
    for mark, tag in (("`", "code"), ("**", "strong")):
        parts = text.split(mark)
        if len(parts) % 2:
            text = "".join(part if place % 2 == 0 else f"\0{tag}\1{part}\0/{tag}\1" for place, part in enumerate(parts))
    return escape(text, quote=False).replace("\0", "<").replace("\1", ">")
