"""The scripts of `benchmarks/` run small, and a report shows their results."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import bench_drafting
import bench_gpu
import bench_live
import bench_privacy
import bench_ranking
import bench_service
import bench_threads
import numpy as np
import pytest
from click.testing import CliRunner
from walks import CONTEXT, long_walks

from rest_store.bench.cost_model import CostModel
from rest_store.bench.recordings import Recording
from rest_store.bench.report import page
from rest_store.bench.results import read_results
from rest_store.datastore.tree import TokenTree
from tests.shared.html import read
from tests.shared.strategies import Corpus, write_datastore

SCRIPTS = sorted(
    path.stem for path in (Path(__file__).resolve().parents[2] / "benchmarks").glob("bench_*.py")
)
VOCABULARY = 300


def run(script: ModuleType, out: Path, *arguments: Any) -> Any:
    """Run a script; return its figures."""
    done = CliRunner().invoke(
        script.main, [*map(str, arguments), "--out", str(out)], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    results = read_results(out.parent)
    read(page(results))
    assert {"commit", "cpu", "python", "data"} <= results[out.stem].facts.keys()
    return results[out.stem].figures


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
            text.append(
                int(following[text[-1]]) if rng.random() < 0.9 else int(rng.integers(VOCABULARY))
            )
        texts.append(text)
    for name, shard in (("ds", texts[:40]), ("other", texts[:4])):
        (folder / name).mkdir()
        write_datastore(folder / name, Corpus(VOCABULARY, [shard]))
    rows = [
        {"set": "a", "id": n, "prompt": text[:10], "output": text[10:]}
        for n, text in enumerate(texts[40:])
    ]
    (folder / "recordings.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


@pytest.fixture
def inputs(folder: Path) -> list[Any]:
    return [
        "--recordings",
        folder / "recordings.jsonl",
        "--datastore",
        folder / "ds",
        "--datastore",
        folder / "other",
    ]


def test_drafting_is_measured(inputs: list[Any], tmp_path: Path) -> None:
    figures = run(bench_drafting, tmp_path / "drafting.json", *inputs)
    assert 0 < figures["16 nodes"]["median_us"] <= figures["16 nodes"]["p90_us"]
    assert figures["64 chains of 8 in a batch"]["steps"] > 0


def test_ranking_is_measured(inputs: list[Any], tmp_path: Path) -> None:
    """Nine of ten tokens follow from the one before, in the corpora as well."""
    figures = run(bench_ranking, tmp_path / "ranking.json", *inputs, "--max-nodes", 8)
    alone, corpora = figures
    for row in figures:
        assert row["tokens"] == 20 * 54
        assert 0.3 < row["ranked first"] < row["proposed"] < 1
        assert 1 < row["M of the first"] < row["M of an oracle"] < 9
    assert alone["proposed"] < corpora["proposed"]


def test_a_step_ends_with_its_budget_or_the_first_token_that_no_draft_holds() -> None:
    held = np.array([True, True, False, True, True, True, True], np.bool_)
    assert [bench_ranking.steps(held, nodes) for nodes in (0, 1, 2, 16)] == [7, 4, 3, 2]
    assert bench_ranking.steps(held[:0], 16) == 0


def test_privacy_is_measured(tmp_path: Path) -> None:
    """Tasks of a repository write alike, but for words of their own."""
    rng = np.random.default_rng(1)
    common = rng.integers(100, 200, 12).tolist()
    rows: dict[str, list[dict[str, Any]]] = {"third": [], "earlier": []}
    for task in range(bench_privacy.MIN_TASKS):
        for name, own_rows in rows.items():
            own = [task, task + 20, *common, task + 40, *common[:6], task]
            turns = [[4, 4 + len(own)]]
            ids = [len(name), 1, 2, 3, *own]
            own_rows.append({"task": f"org__repo-{task}", "run": 1, "ids": ids, "turns": turns})
    for name, own_rows in rows.items():
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, own_rows)))
    (tmp_path / "results").mkdir()
    figures = run(
        bench_privacy,
        tmp_path / "results" / "privacy.json",
        "--recordings",
        tmp_path / "third.jsonl",
        "--history-from",
        tmp_path / "earlier.jsonl",
        "--max-nodes",
        8,
    )
    means = {(row["same_task"], row["shared_after"]): row["M"] for row in figures["cost"]}
    assert means[False, 1] >= means[False, 2] >= means[False, 5] > 1
    assert means[True, 5] > means[False, 5]


def test_the_attack_is_measured(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from tests.shared.tiny import prompts, tiny_model

    model = tiny_model("llama")
    recordings = []
    for seed in range(18):
        tokenized_prompts = prompts(1, seed=seed)
        output = model.generate(**tokenized_prompts, max_new_tokens=24, do_sample=False)[0]
        size = tokenized_prompts["input_ids"].shape[1]
        ids = output.numpy().astype(np.int32)
        recordings.append(Recording("a", 0, ids[:size], ids[size:], np.zeros((0, 0), np.int32)))
    everybody, shared = (
        bench_privacy.attack(model, recordings, shared_after, 24) for shared_after in (1, 2)
    )
    alone, two, nobody = bench_privacy.KINDS
    for row in (everybody, shared):
        assert row["tokens_per_step"][two] > 2
        assert row["tokens_per_step"][nobody] < 2
    assert everybody["guessing"][alone] == 1
    assert shared["guessing"][alone] < 0.8
    assert everybody["read_of_one_tenant"] > 100
    assert shared["read_of_one_tenant"] == 0


@pytest.mark.slow
def test_ways_of_waiting_are_measured(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    figures = run(
        bench_threads,
        tmp_path / "threads.json",
        "--size",
        "tiny",
        "--rounds",
        2,
        "--passes",
        1,
        "--busy",
        1,
    )
    for machine in ("as it is", "beside 1 busy processes"):
        assert figures[machine].keys() == bench_threads.WAYS.keys()
        assert figures[machine][bench_threads.DEFAULT]["speed"] == 1
        assert all(
            0 < way["low"] <= way["speed"] <= way["high"] for way in figures[machine].values()
        )
    assert figures["threads"]["OMP_NUM_THREADS=1"] == 1
    assert figures["threads"]["GOMP_SPINCOUNT=1000"] == figures["threads"][bench_threads.DEFAULT]


def test_a_service_is_measured(inputs: list[Any], tmp_path: Path) -> None:
    figures = run(bench_service, tmp_path / "service.json", *inputs, "--seconds", 0.1)
    for nodes in ("16 nodes", "64 nodes"):
        ways = figures[nodes]
        assert {way["without an answer"] for way in ways.values()} == {0}
        assert (
            ways["service, TCP"]["M"]
            == ways["service, Unix socket"]["M"]
            == ways["in process"]["M"]
            > 1
        )
        assert ways["a service each, Unix sockets"]["M"] > 1
    assert all(rate > 0 for rate in figures["at once"].values())


def test_what_a_step_costs_is_a_cost_model(tmp_path: Path) -> None:
    out = tmp_path / "costs.json"
    done = CliRunner().invoke(
        bench_gpu.main, ["--shape", "tiny", "--device", "cpu", "--out", str(out)]
    )
    assert done.exit_code == 0, done.output
    model = CostModel.read(out)
    assert model.fixed + model.verified_token > 0
    assert "shape tiny" in model.source


def test_a_live_datastore_is_measured(folder: Path, tmp_path: Path) -> None:
    options = ["--datastore", folder / "ds", "--initial", 20_000, "--rounds", 1]
    figures = run(bench_live, tmp_path / "live.json", *options)
    assert figures["add"]["median_us"] > 0
    assert set(figures["queries"]) == {"draft of 16", "draft of 64", "step of 16", "step of 64"}


def test_a_walk_stands_in_a_long_context_and_knows_what_the_model_had_read() -> None:
    def make_recording(prompt: list[int], output: list[int]) -> Recording:
        """A recording whose top-k after each token are the token's hundredfold and one more."""
        tokens = np.array([*prompt, *output], np.int32)
        top_k = 100 * tokens[:, None] + np.arange(2, dtype=np.int32)
        return Recording("a", 9, tokens[: len(prompt)], tokens[len(prompt) :], top_k)

    (walk,) = long_walks(
        [make_recording([1, 2], [3, 4, 5, 6])], [make_recording([7, 3], [8] * 3000)]
    )
    assert (walk.start, walk.text.size) == (CONTEXT, CONTEXT + 4)
    assert walk.text[CONTEXT - 2 :].tolist() == [1, 2, 3, 4, 5, 6]
    tree = TokenTree([3, 8, 4, 9], [-1, -1, 0, 2], [1, 1, 2, 3])
    path = tree.longest_path(walk.text[CONTEXT:])
    assert walk.step_end(CONTEXT, path) == CONTEXT + 3
    likely = walk.likely(CONTEXT, tree, path)
    assert likely["top_k"].tolist() == [[300, 301], [400, 401], [-1, -1]], (
        "the bonus token was not read"
    )
    assert likely["node_top_k"].tolist() == [
        [200, 201],
        [300, 301],
        [800, 801],
        [400, 401],
        [-1, -1],
    ]
