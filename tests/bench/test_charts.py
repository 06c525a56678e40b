"""The bars of a report: speeds and M by source."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from rest_store.bench.charts import Bar, result_charts
from rest_store.bench.report import page
from rest_store.bench.results import Result, read_results
from tests.shared.html import read

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
SPEED = {
    "families": {
        "own": {},
        "all": {
            "plain": {"speedup": 1.0, "low": 1.0, "high": 1.0},
            "transformers prompt lookup": {"speedup": 1.25, "low": 1.0, "high": 1.5},
            "DraftSession": {"speedup": 2.0, "low": 1.5, "high": 2.5},
        },
    },
}


def row(drafting: str, nodes: int, mean: float) -> dict[str, Any]:
    return {"drafting": drafting, "nodes": nodes, "M": mean, "interval": [mean - 0.5, mean + 0.5]}


def result(benchmark: str, figures: Any) -> Result:
    return Result(benchmark, benchmark, {"cpu": "one"}, figures, {"max_nodes": "16"})


def test_speeds_of_all_prompts_are_bars_with_ranges() -> None:
    [chart] = result_charts(result("speed", SPEED))
    assert chart.bars == (
        Bar("plain generation", 1.0, 1.0, 1.0),
        Bar("prompt lookup of transformers", 1.25, 1.0, 1.5),
        Bar("drafts of all sources", 2.0, 1.5, 2.5),
    )
    assert chart.greatest == 2.5


def test_sources_of_a_replay_are_bars_for_each_budget() -> None:
    rows = [row("REST's rule, code", 24, 1.5)]
    for nodes in (16, 64, 128):
        rows += [row("session", nodes, 3.0), row("session, code alone", nodes, 2.0)]
        rows += [row("session without code", nodes, 2.5)]
    charts = result_charts(result("replay", {"rows": rows}))
    assert [chart.title for chart in charts] == [
        "M in replays with 16 nodes",
        "M in replays with 64 nodes",
    ]
    assert charts[0].bars == (
        Bar("all sources", 3.0, 2.5, 3.5),
        Bar("code alone", 2.0, 1.5, 2.5),
        Bar("all but code", 2.5, 2.0, 3.0),
    )
    [chart] = result_charts(
        result("replay", {"rows": [row("session", 16, 3.0), row("session", 64, 3.5)]})
    )
    assert [bar.label for bar in chart.bars] == ["16 nodes", "64 nodes"], (
        "without a row for each source"
    )


@pytest.mark.parametrize(
    "figures", [{}, [], None, {"families": {}}, {"families": {"all": {"plain": 1}}}, {"rows": 3}]
)
@pytest.mark.parametrize("benchmark", ["speed", "replay", "query"])
def test_a_result_without_these_figures_has_no_bars(benchmark: str, figures: Any) -> None:
    assert result_charts(result(benchmark, figures)) == []


def test_the_page_draws_them_to_scale_and_folds_the_rest() -> None:
    text = page({"speed": result("speed", SPEED)})
    reader = read(text)
    assert re.findall(r'<i style="width:([\d.]+)%">', text) == ["40.0", "50.0", "80.0"]
    assert re.findall(r'<u style="left:([\d.]+)%;width:([\d.]+)%">', text) == [
        ("40.0", "20.0"),
        ("60.0", "40.0"),
    ]
    assert "2.00 (1.50 to 2.50)" in reader.text
    shown, folded = text.split("<summary>All figures</summary>")
    assert "max nodes" not in shown
    assert "transformers prompt lookup" not in shown
    assert "max nodes" in folded


def test_committed_results_have_their_bars() -> None:
    committed = read_results(RESULTS)
    assert [
        len(result_charts(committed[name]))
        for name in ("speed_packed", "quality_traces", "live_traces")
    ] == [1, 2, 1]
