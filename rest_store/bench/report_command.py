"""The command `rest-store bench report`."""

from __future__ import annotations

from pathlib import Path

import click

from rest_store.errors import ResultsError, describe


@click.command(epilog="Example: rest-store bench report results/ --out report.html")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="The page to write; default: report.html in FOLDER.")
@click.option("--plots", type=click.Path(path_type=Path), help="Folder for the charts as PNG and SVG, too.")
@click.option(
    "--readme", type=click.Path(path_type=Path), help="Write the marked tables of this file instead of a page."
)
@click.option("--check", is_flag=True, help="With --readme: write nothing, fail if a table is behind its results.")
def report(folder: Path, out: Path | None, plots: Path | None, readme: Path | None, check: bool) -> None:
    """Turn the results in FOLDER, as the other commands write them with --json, into one page of HTML.

    The page needs no network, and reads well in a browser and on paper. With --readme, the tables between the markers
    of a README are made anew from the same results.
    """
    from rest_store.bench.results import read_results

    if check and readme is None:
        raise click.UsageError("--check needs --readme")
    results = read_results(folder)
    if readme is None:
        from rest_store.bench.report import page

        place = out if out is not None else folder / "report.html"
        _write(place, page(results))
        click.echo(f"{place}: {len(results)} results")
        if plots is not None:
            from rest_store.bench.plots import draw_charts
            from rest_store.bench.sections import section_of

            for name, result in results.items():
                draw_charts(section_of(result).exhibits, plots, name)
        return
    from rest_store.bench.readme import filled

    try:
        text = readme.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ResultsError(describe(readme, "file", f"unreadable ({error})", "a README with marked tables")) from error
    made = filled(text, results)
    if check and made != text:
        raise ResultsError(describe(readme, "a table of figures", "behind its results", f"what {folder} gives"))
    if made != text:
        _write(readme, made)
    click.echo(f"{readme}: {'tables written' if made != text else 'as its results'}")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ResultsError(describe(path, "file", f"not writable ({error.strerror})", "a place to write to")) from error
