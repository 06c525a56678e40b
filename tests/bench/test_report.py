"""The report of a folder of results."""

from __future__ import annotations

import json
from pathlib import Path

from rest_store.bench.figure_tables import Table, cell_text, figure_tables
from rest_store.bench.report import page
from rest_store.bench.results import Result, read_results
from rest_store.errors import DataFileError
from tests.shared.commands import run
from tests.shared.html import read
from tests.shared.strategies import refused

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"


def test_the_page_of_the_committed_results_is_whole_and_needs_no_network() -> None:
    results = read_results(RESULTS)
    text = page(results, verdict="Twice as fast & more.")
    reader = read(text)
    assert set(reader.ids) == set(results)
    assert reader.links == []
    assert not set(reader.tags) & {"script", "link", "iframe", "img"}
    lists = sum(bool(one.arguments) + bool(one.facts) for one in results.values())
    assert reader.tags.count("dl") == lists > len(results)
    assert "Twice as fast &amp; more." in text
    assert "url(" not in text


def test_every_figure_is_in_a_table() -> None:
    figures = {
        "reported": 81,
        "rows": [
            {"M": 1.5, "families": {"a": 2, "b": 3}},
            {"M": 2.5, "families": {"a": 4, "b": 5}},
        ],
        "other rows": [{"x": 1}, {"y": [1, 2]}],
        "times": {"one": {"median": 0.01234, "p99": 5}, "two": {"median": 7, "p99": None}},
        "deep": {"a": {"b": {"c": {"d": 1}}}},
        "list": [1.5, "x"],
    }
    assert figure_tables(figures) == [
        Table("", ["figure", ""], [["reported", 81], ["list", "1.50 x"]]),
        Table("rows", ["M", "families, a", "families, b"], [[1.5, 2, 3], [2.5, 4, 5]]),
        Table("other rows", ["x"], [[1]]),
        Table("other rows", ["y"], [["1 2"]]),
        Table("times", ["", "median", "p99"], [["one", 0.01234, 5], ["two", 7, None]]),
        Table("deep, a, b", ["", "d"], [["c", 1]]),
    ]
    assert figure_tables({}) == figure_tables([]) == []


def test_names_are_escaped_wherever_they_stand() -> None:
    name = '<x> & "y"'
    text = page(
        {name: Result(name, name, {name: name}, {name: name, "z": [{name: name}]})},
        title=name,
        verdict=name,
    )
    read(text)
    assert "<x>" not in text


def test_cells_are_shown_briefly() -> None:
    cells = (None, "a", True, 1234, 0.1234, 0.01234, 0.0, 9.876, 98.76, 1234.5)
    expected = ["-", "a", "True", "1,234", "0.12", "0.0123", "0.00", "9.88", "98.8", "1,234"]
    assert [cell_text(cell) for cell in cells] == expected


def test_bad_folders_are_refused_by_name(tmp_path: Path) -> None:
    refused(DataFileError, lambda: read_results(tmp_path / "none"), "absent")
    refused(DataFileError, lambda: read_results(tmp_path), "without any JSON file")
    (tmp_path / "file").touch()
    refused(DataFileError, lambda: read_results(tmp_path / "file"), "folder is a file")
    bad = (
        ("{", "unreadable"),
        ("[" * 100_000, "unreadable"),
        ("[1]", "this is no result of a benchmark"),
        ('{"arguments": 3}', "no result of"),
    )
    for content, fragment in bad:
        (tmp_path / "one.json").write_text(content)
        refused(DataFileError, lambda: read_results(tmp_path), str(tmp_path / "one.json"), fragment)


def test_the_command_writes_a_page(tmp_path: Path) -> None:
    for name in ("query", "speed"):
        (tmp_path / f"{name}.json").write_text(
            json.dumps({"benchmark": name, "results": {"M": 1.5}, "commit": "abc"})
        )
    assert run("bench", "report", tmp_path) == (0, f"{tmp_path}/report.html: 2 results\n")
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert text.index('<section id="speed">') < text.index('<section id="query">'), (
        "what users measure comes first"
    )
    assert json.loads(run("bench", "report", tmp_path, "--json")[1]) == {
        "out": f"{tmp_path}/report.html", "results": ["query", "speed"],
    }  # fmt: skip
    status, message = run("bench", "report", tmp_path, "--out", tmp_path / "query.json" / "x.html")
    assert (status, message.count("\n"), "not writable" in message) == (1, 1, True)
