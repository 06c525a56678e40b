"""The scripts of `benchmarks/`: their command lines, and small runs whose results a report shows."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import bench_batches
import bench_build
import bench_drafting
import bench_live_datastore
import bench_query
import bench_replay
import bench_service
import numpy as np
import pytest
from click.testing import CliRunner

from rest_store.bench.results import read_results
from rest_store.bench.sections import section_of
from tests.shared.builds import write_tokenizer
from tests.shared.strategies import Corpus, write_datastore

SCRIPTS = sorted(path.stem for path in (Path(__file__).resolve().parents[2] / "benchmarks").glob("bench_*.py"))
VOCABULARY = 300


def run(script: ModuleType, *arguments: Any) -> str:
    done = CliRunner().invoke(script.main, list(map(str, arguments)), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A datastore and recordings of texts that mostly go on as a fixed table says."""
    folder = tmp_path_factory.mktemp("scripts")
    rng = np.random.default_rng(0)
    following = rng.permutation(VOCABULARY)
    texts = []
    for _ in range(60):
        text = [int(rng.integers(VOCABULARY))]
        while len(text) < 64:
            text.append(int(following[text[-1]]) if rng.random() < 0.9 else int(rng.integers(VOCABULARY)))
        texts.append(text)
    (folder / "ds").mkdir()
    write_datastore(folder / "ds", Corpus(VOCABULARY, [texts[:40]]))
    rows = [{"set": "a", "id": n, "prompt": text[:10], "output": text[10:]} for n, text in enumerate(texts[40:])]
    (folder / "recordings.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


@pytest.mark.parametrize("name", [*SCRIPTS, "fit_default"])
def test_scripts_explain_themselves_and_refuse_unknown_options(name: str) -> None:
    main = importlib.import_module(name).main
    shown = CliRunner().invoke(main, ["--help"])
    assert shown.exit_code == 0
    assert f"Example: python benchmarks/{name}.py" in " ".join(shown.output.split())
    assert CliRunner().invoke(main, ["--no-such-option"]).exit_code == 2


def test_queries_of_a_small_datastore_are_measured_and_reported(folder: Path, tmp_path: Path) -> None:
    options = ["--datastore", folder / "ds", "--work", tmp_path / "work", "--contexts", 400, "--size", 1]
    run(bench_query, *options, "--out", tmp_path / "out" / "query.json")
    result = read_results(tmp_path / "out")["query"]
    assert result.figures["draft, 8 shards"]["median"] > 0
    assert section_of(result).exhibits[0].title == "Microseconds for each context"


def test_builds_are_measured_and_reported(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("def add(first, second):\n    return first + second\n" * 20)
    tokenizer = write_tokenizer(tmp_path / "tokenizer.json")
    options = ["--tokenizer", tokenizer, "--corpus", tmp_path, "--shard-tokens", "auto"]
    run(bench_build, *options, "--out", tmp_path / "out" / "build.json")
    (table,) = section_of(read_results(tmp_path / "out")["build"]).exhibits
    assert table.title == "From files to a datastore"


def test_a_service_is_measured_and_reported(folder: Path, tmp_path: Path) -> None:
    options = ["--recordings", folder / "recordings.jsonl", "--datastore", folder / "ds"]
    options += ["--requests", 32, "--rounds", 1, "--seconds", 0.05, "--sessions", 2]
    run(bench_service, *options, "--out", tmp_path / "service.json")
    result = read_results(tmp_path)["service"]
    titles = [exhibit.title for exhibit in section_of(result).exhibits]
    assert titles[:3] == ["A session's step, microseconds", "Many sessions at once", "One client, median microseconds"]
    assert titles[-1] == "Latency against offered load"
    sessions = result.figures["sessions"]
    for nodes in ("16 nodes", "64 nodes"):
        assert sessions[f"{nodes}, M"]["service"] == sessions[f"{nodes}, M"]["in process"] > 1
        assert sessions[f"{nodes}, at once"]["share"] > 0
        for transport in ("TCP", "Unix", "TCP on one core"):
            step = sessions[f"{nodes}, {transport}"]
            parts = step["in process median us"] + min(step[f"echo, {kind} median us"] for kind in ("sync", "asyncio"))
            assert step["ratio"] == pytest.approx(step["service median us"] / parts, abs=1e-3)


def test_batches_are_measured_and_reported(folder: Path, tmp_path: Path) -> None:
    options = ["--recordings", folder / "recordings.jsonl", "--datastore", folder / "ds", "--rounds", 1, "--steps", 2]
    run(bench_batches, *options, "--out", tmp_path / "batches.json")
    result = read_results(tmp_path)["batches"]
    (table,) = section_of(result).exhibits
    assert table.title == "Batches of sessions"
    row = result.figures["16 sessions, chain of 8"]
    assert set(row) == {"in process", "one stream", "own streams"}
    assert all(of["steps a second"] > 0 for of in row.values())


def test_fewer_rounds_than_a_turn_has_are_refused(folder: Path) -> None:
    least = bench_live_datastore.SESSIONS * bench_live_datastore.STEPS
    options = ["--datastore", str(folder / "ds"), "--rounds", str(least - 1)]
    shown = CliRunner().invoke(bench_live_datastore.main, options)
    assert (shown.exit_code, f"{least - 1} is not in the range x>={least}" in shown.output) == (2, True)


def test_replays_say_what_limits_them(folder: Path, tmp_path: Path) -> None:
    common = ["--recordings", folder / "recordings.jsonl", "--datastore", folder / "ds"]
    run(bench_replay, "limits", *common, "--out", tmp_path / "limits.json")
    run(bench_replay, "learning", *common, "--out", tmp_path / "learning.json")
    run(bench_replay, "folds", *common, "--folds", 2, "--rounds", 1, "--out", tmp_path / "folds.json")
    run(bench_drafting, *common, "--out", tmp_path / "drafting.json")
    results = {name: result.figures for name, result in read_results(tmp_path).items()}
    limits = results["limits"]
    assert limits["ranked first"] <= limits["covered"] <= 1
    assert set(results["learning"]) == {"prompt lookup", "recycled logits", "ds", "all"}
    assert sum(fold["recordings"] for fold in results["folds"]["folds"]) == results["folds"]["recordings"] == 20
    assert results["drafting"]["16 nodes"]["steps"] >= results["drafting"]["64 nodes"]["steps"] > 0


def test_chains_of_covered_tokens_are_cut_at_the_budget() -> None:
    assert bench_replay.chain_steps([True] * 5 + [False] + [True] * 2, 3) == 3
    assert bench_replay.chain_steps([False] * 4, 16) == 4
    assert bench_replay.chain_steps([], 16) == 0
