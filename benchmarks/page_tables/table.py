"""The results of benchmarks, and tables of them in Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
LOOKUP = "transformers prompt lookup"
SESSION = "DraftSession"


def results(name: str) -> Any:
    """Return the figures of `benchmarks/results/NAME.json`."""
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))["results"]


def markdown(header: Iterable[str], table_rows: Iterable[Iterable[str]]) -> str:
    """Return a table in Markdown."""
    cells = [list(header), *map(list, table_rows)]
    lines = [f"| {' | '.join(row)} |".replace("|  |", "| |") for row in cells]
    lines.insert(1, f"|{' --- |' * len(cells[0])}")
    return "\n".join(lines) + "\n"


def digits(value: float) -> str:
    """Return a ratio or a mean with two decimals."""
    return f"{value:.2f}"


def find(table_rows: Iterable[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    """Return the one row that has these fields."""
    matching = []
    for row in table_rows:
        if all(row[name] == value for name, value in fields.items()):
            matching.append(row)
    (match,) = matching
    return match
