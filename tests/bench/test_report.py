"""The report of a folder of results, and the tables of figures in Markdown files."""

from __future__ import annotations

import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from rest_store.bench.charts import svg_of, write_charts
from rest_store.bench.exhibits import Bars, Lines, Table, shown
from rest_store.bench.markdown_tables import TABLES, as_markdown, filled
from rest_store.bench.report import page
from rest_store.bench.results import Result, read_results
from rest_store.bench.sections import ORDER, section_of
from rest_store.cli import main
from rest_store.errors import ResultsError
from tests.shared.strategies import refused

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
VOID = {"meta", "link", "br", "img"}
MARK = re.compile(r"<!-- figures: ([a-z-]+) -->")


class Reader(HTMLParser):
    """Checks that elements are closed in order, and keeps what could reach out of the page."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            if name == "id":
                self.ids.append(value or "")
            if name in ("href", "src"):
                self.links.append(value or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    assert reader.open == []
    return reader


@pytest.fixture(scope="module")
def committed_page() -> str:
    return page(read_results(RESULTS))


def test_the_page_of_the_committed_results_is_whole_and_needs_no_network(committed_page: str) -> None:
    results = read_results(RESULTS)
    reader = read(committed_page)
    assert set(reader.ids) == set(results)
    images = [link for link in reader.links if link.startswith("data:image/svg+xml;base64,")]
    assert {link.removeprefix("#") for link in reader.links if link not in images} == set(results)
    assert len(images) > 20
    assert not reader.tags & {"script", "link", "iframe"}
    assert "url(" not in committed_page
    assert "@import" not in committed_page


@pytest.mark.parametrize("name", sorted(path.stem for path in RESULTS.glob("*.json")))
def test_every_committed_result_is_shown_as_its_kind(name: str) -> None:
    """None falls back to a bare list of figures because its shape is not what the report expects."""
    result = read_results(RESULTS)[name]
    section = section_of(result)
    assert section.exhibits
    if result.kind in ORDER and result.kind != "suffix_sort":
        assert all(exhibit.title for exhibit in section.exhibits)


def test_results_of_other_kinds_and_shapes_are_shown_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "new.json").write_text(
        '{"benchmark": "new", "results": {"a": {"b": 3, "c": [1, 2]}, "d": [{"e": null}]}}'
    )
    (tmp_path / "query.json").write_text('{"benchmark": "query", "results": [{"x": 1.5, "y": "<b>"}]}')
    results = read_results(tmp_path)
    text = page(results)
    read(text)
    assert "<td>a, b</td><td>3</td>" in text
    assert "<td>d, 0, e</td><td>-</td>" in text
    assert "<td>1.50</td><td>&lt;b&gt;</td>" in text


def test_names_are_escaped_wherever_they_stand() -> None:
    name = '<x> & "y"'
    text = page({name: Result(name, name, {name: name}, {name: name})}, title=name)
    read(text)
    assert "<x>" not in text


SVG = "{http://www.w3.org/2000/svg}"
CHARTS = [
    Bars("a & b", "times", ["one", "two"], {"s": [1.0, 2.0], "t": [None, 4.0]}, 1.0),
    Lines("c", "across", "up", {"s": [(1, 10), (10, 100), (100, 1000)], "t": [(1, 10)]}, logarithmic="xy"),
    Lines("zero", "across", "up", {"s": [(0.0, 5.0), (3.0, 5.0)]}, logarithmic="xy"),
    Lines("point", "across", "up", {"s": [(1.0, 1.0)]}),
]


@pytest.mark.parametrize("chart", CHARTS, ids=lambda chart: str(chart.title))
def test_charts_are_drawings_with_text_that_is_text(chart: Bars | Lines) -> None:
    svg = svg_of(chart)
    texts = [(element.text or "").strip() for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    labels = [chart.unit, *chart.categories] if isinstance(chart, Bars) else [chart.across, chart.up]
    names = list(chart.series) if len(chart.series) > 1 else []
    assert {chart.title, *labels, *names} <= set(texts)
    assert svg_of(chart) == svg, "equal charts are equal bytes"
    assert 'href="http' not in svg


def test_files_are_named_by_what_they_show(tmp_path: Path) -> None:
    empty = Lines("none", "x", "y", {"s": []})
    written = write_charts([CHARTS[0], Table("t", [], []), empty], tmp_path / "new", "speed")
    assert written == [tmp_path / "new" / f"speed-a-b.{ending}" for ending in ("png", "svg")]
    assert all(path.stat().st_size > 1000 for path in written)
    (tmp_path / "file").touch()
    refused(ResultsError, lambda: write_charts(CHARTS, tmp_path / "file", "x"), "not writable")


def test_cells_are_shown_briefly() -> None:
    cells = (None, "a", 1234, 0.1234, 9.876, 98.76, 1234.5)
    assert [shown(cell) for cell in cells] == ["-", "a", "1,234", "0.12", "9.88", "98.8", "1,234"]
    assert as_markdown(Table("t", ["", "b"], [["x", 1.0]])) == "|  | b |\n| --- | --- |\n| x | 1.00 |\n"


def test_bad_folders_are_refused_by_name(tmp_path: Path) -> None:
    refused(ResultsError, lambda: read_results(tmp_path / "none"), "absent")
    refused(ResultsError, lambda: read_results(tmp_path), "without any JSON file")
    for content, fragment in (("{", "unreadable"), ("[1]", "list")):
        (tmp_path / "one.json").write_text(content)
        refused(ResultsError, lambda: read_results(tmp_path), str(tmp_path / "one.json"), fragment)


def marked(name: str) -> str:
    return f"before\n<!-- figures: {name} -->\nold\n<!-- end of figures -->\nafter\n"


def test_marked_tables_are_made_anew_and_nothing_else() -> None:
    results = read_results(RESULTS)
    text = filled(marked("speed"), results)
    assert text.startswith("before\n<!-- figures: speed -->\n\n| family |")
    assert text.endswith("|\n\n<!-- end of figures -->\nafter\n")
    assert filled(text, results) == text
    refused(
        ResultsError, lambda: filled(marked("nothing"), results, "F.md"), "F.md: table is nothing", ", ".join(TABLES)
    )
    refused(ResultsError, lambda: filled(marked("speed"), {}), "absent")


DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("path", [path for path in DOCUMENTS if MARK.search(path.read_text("utf-8"))], ids=str)
def test_marked_tables_are_those_of_the_committed_results(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    command = f"rest-store bench report benchmarks/results --tables {path.relative_to(ROOT)}"
    assert filled(text, read_results(RESULTS)) == text, f"run: {command}"


def test_every_table_is_shown_in_some_document() -> None:
    assert {name for path in DOCUMENTS for name in MARK.findall(path.read_text("utf-8"))} == set(TABLES)


def run(*arguments: Any) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["bench", "report", *map(str, arguments)])
    return done.exit_code, done.output


def test_the_command_writes_pages_and_tables(tmp_path: Path, committed_page: str) -> None:
    out, first, second = tmp_path / "page.html", tmp_path / "a.md", tmp_path / "b.md"
    assert run(RESULTS, "--out", out)[0] == 0
    assert out.read_text(encoding="utf-8") == committed_page
    first.write_text(marked("queries"))
    second.write_text(marked("speed"))
    status, message = run(RESULTS, "--tables", first, "--check")
    assert (status, "out of date" in message) == (1, True)
    both = (RESULTS, "--tables", first, "--tables", second)
    assert run(*both) == (0, f"{first}: tables written\n{second}: tables written\n")
    assert run(*both, "--check") == (0, f"{first}: tables up to date\n{second}: tables up to date\n")
    assert run(RESULTS, "--check")[0] == 2
    (tmp_path / "one").mkdir()
    shutil.copy(RESULTS / "build.json", tmp_path / "one")
    for arguments in (["--out", tmp_path / "none" / "x.html"], ["--tables", tmp_path / "none"]):
        status, message = run(tmp_path / "one", *arguments)
        assert (status, message.count("\n")) == (1, 1)


def test_a_result_without_figures_does_not_fail(tmp_path: Path) -> None:
    for kind in ("query", "service", "quality", "speed", "build", "peers"):
        (tmp_path / f"{kind}.json").write_text(json.dumps({"benchmark": kind, "results": {}}))
    read(page(read_results(tmp_path)))
