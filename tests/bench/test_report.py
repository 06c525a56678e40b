"""The report of a folder of results, and the README's tables of figures."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from rest_store.bench.charts import draw
from rest_store.bench.exhibits import Bars, Lines, Table, shown
from rest_store.bench.readme import TABLES, as_markdown, filled
from rest_store.bench.report import page
from rest_store.bench.results import Result, read_results
from rest_store.bench.sections import ORDER, section_of
from rest_store.cli import main
from rest_store.errors import ResultsError
from tests.shared.strategies import refused

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
VOID = {"meta", "link", "br"}


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


def test_the_page_of_the_committed_results_is_whole_and_reaches_for_nothing() -> None:
    results = read_results(RESULTS)
    text = page(results)
    reader = read(text)
    assert set(reader.ids) == set(results)
    assert {link.removeprefix("#") for link in reader.links} == set(results)
    assert not reader.tags & {"script", "link", "img", "iframe"}
    assert "url(" not in text
    assert "@import" not in text


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


def test_charts_are_drawings_of_their_values() -> None:
    svg = ElementTree.fromstring(draw(Bars("a & b", "times", ["one", "two"], {"s": [1.0, 2.0], "t": [None, 4.0]}, 1.0)))
    bars = [float(rect.attrib["width"]) for rect in svg.findall("rect") if "rx" not in rect.attrib]
    assert bars == pytest.approx([bars[0], 2 * bars[0], 4 * bars[0]], rel=0.01)
    lines = Lines("c", "x", "y", {"s": [(1, 10), (10, 100), (100, 1000)], "t": [(1, 10)]}, logarithmic="xy")
    svg = ElementTree.fromstring(draw(lines))
    first = svg.findall("polyline")[0].attrib["points"].split()
    (x0, y0), (x1, y1), (x2, y2) = (map(float, point.split(",")) for point in first)
    assert (x1 - x0, y1 - y0) == pytest.approx((x2 - x1, y2 - y1), abs=0.2)
    assert y2 < y0


@pytest.mark.parametrize("points", [[(1.0, 1.0)], [(0.0, 5.0), (3.0, 5.0)], [(2.0, 0.001), (4.0, 90_000.0)]])
@pytest.mark.parametrize("scale", ["", "xy"])
def test_axes_have_marks_within_the_drawing(points: list[tuple[float, float]], scale: str) -> None:
    svg = ElementTree.fromstring(draw(Lines("t", "x", "y", {"s": points}, scale)))
    width, height = map(float, svg.attrib["viewBox"].split()[2:])
    labels = svg.findall("text")
    assert len(labels) >= 4
    assert all(0 <= float(label.attrib["x"]) <= width and 0 <= float(label.attrib["y"]) <= height for label in labels)


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
    refused(ResultsError, lambda: filled(marked("nothing"), results), "nothing", ", ".join(TABLES))
    refused(ResultsError, lambda: filled(marked("speed"), {}), "absent")


def test_the_readmes_tables_are_those_of_the_committed_results() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"<!-- figures: ([a-z-]+) -->", text)) == set(TABLES)
    assert filled(text, read_results(RESULTS)) == text, (
        "run: rest-store bench report benchmarks/results --readme README.md"
    )


def run(*arguments: Any) -> tuple[int, str]:
    done = CliRunner().invoke(main, ["bench", "report", *map(str, arguments)])
    return done.exit_code, done.output


def test_the_command_writes_pages_and_tables(tmp_path: Path) -> None:
    out, readme = tmp_path / "page.html", tmp_path / "README.md"
    assert run(RESULTS, "--out", out)[0] == 0
    assert out.read_text(encoding="utf-8") == page(read_results(RESULTS))
    readme.write_text(marked("queries"))
    status, message = run(RESULTS, "--readme", readme, "--check")
    assert (status, "behind its results" in message) == (1, True)
    assert run(RESULTS, "--readme", readme) == (0, f"{readme}: tables written\n")
    assert run(RESULTS, "--readme", readme, "--check") == (0, f"{readme}: as its results\n")
    assert run(RESULTS, "--check")[0] == 2
    for arguments in (["--out", tmp_path / "none" / "x.html"], ["--readme", tmp_path / "none"]):
        status, message = run(RESULTS, *arguments)
        assert (status, message.count("\n")) == (1, 1)


def test_a_result_without_figures_is_no_reason_to_fail(tmp_path: Path) -> None:
    for kind in ("query", "service", "quality", "speed", "build", "peers"):
        (tmp_path / f"{kind}.json").write_text(json.dumps({"benchmark": kind, "results": {}}))
    read(page(read_results(tmp_path)))
