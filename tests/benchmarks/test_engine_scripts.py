"""Small runs of the scripts that replay drafts as engines with a lag or with a head have them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from rest_store.bench.results import read_results
from rest_store.datastore.tree import TokenTree
from tests.shared.strategies import Corpus, write_datastore

COSTS = Path(__file__).resolve().parents[2] / "benchmarks" / "costs_h100_llama31_8b.json"
VOCABULARY = 300


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A datastore and recordings of texts that mostly go on as a fixed table says."""
    folder = tmp_path_factory.mktemp("engine_scripts")
    rng = np.random.default_rng(0)
    following = rng.permutation(VOCABULARY)
    texts = []
    for _ in range(30):
        text = [int(rng.integers(VOCABULARY))]
        while len(text) < 64:
            is_usual = rng.random() < 0.9
            text.append(int(following[text[-1]] if is_usual else rng.integers(VOCABULARY)))
        texts.append(text)
    (folder / "ds").mkdir()
    write_datastore(folder / "ds", Corpus(VOCABULARY, [texts[:10]]))
    for name, some in (("known", texts[10:24]), ("recordings", texts[24:])):
        rows = []
        for number, text in enumerate(some):
            # The head's first two tokens are right in every other step.
            eagle = [1 + 2 * (step % 2) for step in range(len(text) - 10)]
            row = {"set": "a", "id": f"{name} {number}", "prompt": text[:10], "output": text[10:]}
            rows.append({**row, "eagle": eagle})
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


def run(script: Any, out: Path, *arguments: Any) -> Any:
    done = CliRunner().invoke(
        script.main, [*map(str, arguments), "--out", str(out)], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    return read_results(out.parent)[out.stem].figures


def test_the_lag_is_measured(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    import bench_lag

    monkeypatch.setattr(bench_lag, "STEPS", 2)
    figures = run(
        bench_lag,
        tmp_path / "lag.json",
        "--recordings",
        folder / "recordings.jsonl",
        "--history-from",
        folder / "known.jsonl",
        "--datastore",
        folder / "ds",
        "--max-nodes",
        64,
    )
    means = {
        (row["knows"], row["way"], row.get("device searches")): row["M"] for row in figures["rows"]
    }
    assert len(means) == len(figures["rows"]) == 2 * 5
    for knows in ("nothing", "known.jsonl"):
        waiting = means[knows, "waiting", "text and memory"]
        ahead = means[knows, "ahead", "text and memory"]
        assert 1 < means[knows, "ahead", "nothing"] <= ahead <= waiting
    # The rule has no datastore; it has the outputs.
    assert 1 < means["nothing", "vLLM's rule", None] < means["known.jsonl", "vLLM's rule", None]
    assert [row["rows"] for row in figures["times"]] == list(bench_lag.ROWS)


def test_ways_beside_a_head_are_measured(folder: Path, tmp_path: Path) -> None:
    import bench_heads

    figures = run(
        bench_heads,
        tmp_path / "heads.json",
        "--recordings",
        folder / "recordings.jsonl",
        "--datastore",
        folder / "ds",
        "--cost-model",
        COSTS,
        "--batch",
        8,
        "--drafting-us",
        6,
        "--max-nodes",
        16,
    )
    rows = {row["way"]: row for row in figures["rows"]}
    assert list(rows) == list(bench_heads.ways([]))
    assert all(row["M"] > 1.2 for row in rows.values())
    assert rows["per step"]["gap"] == 0
    assert rows["oracle"]["gap"] == 1


def test_a_heads_tokens_have_its_chances_and_others_what_is_left() -> None:
    import bench_heads

    own = TokenTree([5, 6, 7], [-1, 0, -1], [1, 1, 1], scores=[0.5, 0.25, 0.2])
    below = TokenTree([7, 8, 5], [-1, 0, -1], [1, 1, 1], scores=[0.2, 0.1, 0.5])
    grown = bench_heads.grown([7, 9], np.array([0.6, 0.5]), own, below)
    paths: dict[int, tuple[int, ...]] = {-1: ()}
    for node, (token, parent) in enumerate(
        zip(grown.tokens.tolist(), grown.parents.tolist(), strict=True)
    ):
        paths[node] = (*paths[parent], token)
    scores = dict(zip(list(paths.values())[1:], np.asarray(grown.scores).tolist(), strict=True))
    assert scores == pytest.approx(
        {
            (5,): 0.4 * 0.5,
            (5, 6): 0.4 * 0.25,
            (7,): 0.6 + 0.4 * 0.2,
            (7, 8): (0.6 + 0.4 * 0.2) * 0.5 * 0.5,  # half of it is the head's 9
            (7, 9): (0.6 + 0.4 * 0.2) * 0.5,
        }
    )
    assert bench_heads.best_path(grown, 2).tokens.tolist() == [7, 9]
    assert bench_heads.best_path(grown, 1).tokens.tolist() == [7]
