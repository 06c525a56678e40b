"""The tables in README.md and docs/ are those of benchmarks/results/ (`make docs-tables`)."""

from __future__ import annotations

import re
from pathlib import Path

import docs_tables
import pytest
from page_tables.table import RESULTS

PAGES = {page.relative_to(docs_tables.ROOT).as_posix(): page for page in docs_tables.pages()}


@pytest.mark.parametrize("name", PAGES)
def test_tables_are_those_of_the_results(name: str) -> None:
    text = PAGES[name].read_text(encoding="utf-8")
    assert docs_tables.with_tables(text) == text, "run `make docs-tables`"


def test_each_table_stands_in_a_page() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES.values())
    assert set(re.findall(r"<!-- table: ([a-z0-9-]+) -->", text)) == docs_tables.TABLES.keys()


def test_each_result_is_named_in_a_page() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in PAGES.values())
    unnamed = [path.stem for path in RESULTS.glob("*.json") if path.stem not in text]
    assert unnamed == []


def test_a_changed_figure_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "README.md"
    page.write_text(
        "Speed:\n<!-- table: speed -->\n| 9.99x |\n<!-- end of table -->\nThe end.\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(docs_tables, "ROOT", tmp_path)
    monkeypatch.setattr(docs_tables, "PAGES", ("README.md",))
    assert docs_tables.main(["--check"]) == 1
    assert "9.99x" in page.read_text(encoding="utf-8")
    assert docs_tables.main([]) == 0
    assert capsys.readouterr().out == "README.md\n" * 2
    text = page.read_text(encoding="utf-8")
    assert "9.99x" not in text
    assert text.startswith("Speed:\n<!-- table: speed -->\n| | speed")
    assert text.endswith("<!-- end of table -->\nThe end.\n")
    assert docs_tables.main(["--check"]) == 0


def test_a_mark_of_no_table_is_an_error() -> None:
    with pytest.raises(KeyError, match="sped"):
        docs_tables.with_tables("<!-- table: sped -->\n<!-- end of table -->")
