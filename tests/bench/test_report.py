"""The report of a folder of results, and the tables of figures in Markdown files."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner

from rest_store.bench.any_figures import any_exhibits
from rest_store.bench.charts import _figure, svg_of, write_charts
from rest_store.bench.exhibits import Bars, Lines, Table, shown
from rest_store.bench.markdown_tables import TABLES, as_markdown, filled
from rest_store.bench.report import page
from rest_store.bench.results import Result, read_results
from rest_store.bench.sections import ORDER, section_of
from rest_store.bench.verdict import verdict
from rest_store.cli import main
from rest_store.errors import ResultsError
from tests.shared.html import read
from tests.shared.results import quality_of, speed_of
from tests.shared.strategies import refused

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
MARK = re.compile(r"<!-- figures: ([a-z-]+) -->")


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
    assert not set(reader.tags) & {"script", "link", "iframe"}
    assert all(result.arguments for result in results.values())
    assert reader.tags.count("dl") == 2 * len(results)
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
        '{"benchmark": "new", "results": {"a": {"b": 3, "c": [1, 2]}, "d": [{"e": null}, {"e": [{"f": 0.001}]}], '
        '"by name": {"x": {"M": 1.5, "n": 3}, "y": {"M": 2.5}}}}'
    )
    (tmp_path / "query.json").write_text('{"benchmark": "query", "results": [{"x": 1.5, "y": "<b>"}]}')
    results = read_results(tmp_path)
    text = page(results)
    read(text)
    assert '<th scope="row">a, b</th><td>3</td>' in text
    assert '<th scope="row">d, 0, e</th><td>-</td>' in text
    assert '<th scope="row">1.50</th><td>&lt;b&gt;</td>' in text


def test_names_are_escaped_wherever_they_stand() -> None:
    name = '<x> & "y"'
    text = page({name: Result(name, name, {name: name}, {name: name})}, title=name)
    read(text)
    assert "<x>" not in text


def test_no_figure_becomes_markup() -> None:
    text = page({"x": Result("x", "x", {}, {"a\0img src=y\1 `code` **strong**": 1})})
    read(text)
    assert "<img" not in text
    assert "<code>code</code> <strong>strong</strong>" in text


SVG = "{http://www.w3.org/2000/svg}"
CHARTS = [
    Bars("a & b", "times", ["one", "two"], {"s": [0.5, 2.0], "t": [None, 4.0]}, 1.0),
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


def test_the_command_writes_pages_and_tables(tmp_path: Path) -> None:
    out, first, second = tmp_path / "page.html", tmp_path / "a.md", tmp_path / "b.md"
    (tmp_path / "one").mkdir()
    shutil.copy(RESULTS / "build.json", tmp_path / "one")
    assert run(tmp_path / "one", "--out", out)[0] == 0
    assert out.read_text(encoding="utf-8") == page(read_results(tmp_path / "one"))
    first.write_text(marked("queries"))
    second.write_text(marked("speed"))
    status, message = run(RESULTS, "--tables", first, "--check")
    assert (status, "out of date" in message) == (1, True)
    both = (RESULTS, "--tables", first, "--tables", second)
    assert run(*both) == (0, f"{first}: tables written\n{second}: tables written\n")
    assert run(*both, "--check") == (0, f"{first}: tables up to date\n{second}: tables up to date\n")
    assert run(RESULTS, "--check")[0] == 2
    status, message = run(*both, "--json")
    assert (status, json.loads(message)) == (0, {"tables": {str(first): "up to date", str(second): "up to date"}})
    for arguments in (["--out", tmp_path / "none" / "x.html"], ["--tables", tmp_path / "none"]):
        status, message = run(tmp_path / "one", *arguments)
        assert (status, message.count("\n")) == (1, 1)


def test_a_result_without_figures_does_not_fail(tmp_path: Path) -> None:
    for kind in ("query", "service", "quality", "speed", "build", "peers"):
        (tmp_path / f"{kind}.json").write_text(json.dumps({"benchmark": kind, "results": {}}))
    read(page(read_results(tmp_path)))


@pytest.mark.parametrize("fields", ['"results": %s', '"arguments": {"x": %s}'])
def test_a_result_that_nests_too_deeply_is_refused(fields: str, tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("{" + fields % ("[" * 900 + "]" * 900) + "}")
    status, message = run(tmp_path)
    assert (status, message.count("\n"), "nested too deeply" in message) == (1, 1, True), message


def test_a_result_of_another_shape_does_not_fail(tmp_path: Path) -> None:
    curve = [{"remembered": 1, "M": 1, "M without": 0}]
    live = [{"remembered": "x", "nodes": 1, "datastores": True, "M": 1.0, "curve": curve}]
    shapes = {"vllm": {"batches": {}, "nothing to draft": {}}, "live": {"rows": live}}
    for kind, figures in shapes.items():
        (tmp_path / f"{kind}.json").write_text(json.dumps({"benchmark": kind, "results": figures}))
    (tmp_path / "other.json").write_text(json.dumps({"arguments": {"n": "9" * 5000}, "results": {}}))
    read(page(read_results(tmp_path)))


def test_unlike_figures_are_paths_and_like_ones_a_table(tmp_path: Path) -> None:
    figures = {"a": {"b": 3, "c": [1, 2]}, "by name": {"x": {"M": 1.5, "n": 3}, "y": {"M": 2.5}}}
    first, second = any_exhibits(figures)
    assert first == Table("", ["figure", ""], [["a, b", 3], ["a, c", "1 2"]])
    assert second == Table("By name", ["", "M", "n"], [["x", 1.5, 3], ["y", 2.5, None]])
    assert any_exhibits([{"x": 1}, {"x": 2}]) == [Table("", ["x"], [[1], [2]])]
    assert any_exhibits(None) == [Table("", ["figure", ""], [["", None]])]


def edges(chart: Bars | Lines) -> tuple[float, float]:
    """The limits of the axis that shows the values."""
    axes = _figure(chart).axes[0]
    return axes.get_xlim() if isinstance(chart, Bars) else axes.get_ylim()


def test_axes_of_ratios_begin_at_one_unless_a_value_is_lower() -> None:
    assert edges(Bars("b", "M", ["x"], {"s": [1.5], "t": [None]}, 1.0))[0] == 1
    assert edges(Lines("l", "x", "M", {"s": [(1, 1.5), (2, 3.0)]}, origin=1.0))[0] == 1
    assert edges(Bars("b", "times", ["x", "y"], {"s": [0.5, 1.5]}, 1.0))[0] < 0.5
    assert edges(Lines("l", "x", "M, relative", {"s": [(1, 0.9), (2, 1.1)]}, origin=1.0))[0] < 0.9
    for result in read_results(RESULTS).values():
        for chart in section_of(result).exhibits:
            label = chart.unit if isinstance(chart, Bars) else chart.up if isinstance(chart, Lines) else ""
            ratio = label.startswith(("M", "times"))
            assert not ratio or chart.origin == 1, f"{result.name}: {chart.title}"


def test_the_page_begins_with_the_verdict_and_says_how_much_was_measured(committed_page: str) -> None:
    text = read(committed_page).text
    (first, second, third) = verdict(read_results(RESULTS))
    assert 0 < text.index(first.split(":")[0]) < text.index(second) < text.index(third) < text.index("tokens a second")
    for sample in ("25 prompts.", "81 recordings, 9,936 tokens.", "10,000 contexts.", "92 recordings, 13,067 tokens."):
        assert sample in text


@pytest.mark.parametrize("name", sorted(path.stem for path in RESULTS.glob("*.json")))
def test_no_row_is_shown_twice(name: str) -> None:
    seen: set[tuple[Any, ...]] = set()
    for exhibit in section_of(read_results(RESULTS)[name]).exhibits:
        rows = [tuple(row) for row in exhibit.rows] if isinstance(exhibit, Table) else []
        assert len(set(rows)) == len(rows)
        assert not seen & set(rows)
        seen |= set(rows)


def test_one_family_is_not_shown_beside_all_of_it() -> None:
    sections = [section_of(speed_of({"own": 1.9, "all": 1.9})), section_of(quality_of({"code": 0.8}))]
    (table, bars), (drafts, means, brought) = (section.exhibits for section in sections)
    assert isinstance(table, Table)
    assert [row[0] for row in table.rows] == ["plain", "DraftSession"]
    assert isinstance(bars, Bars)
    assert bars.categories == ["all prompts"]
    assert isinstance(means, Bars)
    assert means.categories == ["session, 16 nodes", "session, 64 nodes"]
    assert brought == Table(
        "What each source brings",
        [
            "source",
            "M of it alone, 16 nodes",
            "M without it",
            "it brings",
            "M of it alone, 64 nodes",
            "M without it",
            "it brings",
        ],
        [["code", None, 2.2, "+0.80", None, 2.2, "+0.80"]],
        "What a source brings is what the session loses without it; sources that know the same bring less.",
    )
    assert isinstance(drafts, Table)
