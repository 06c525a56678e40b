"""REST's own experiments, on recordings of a small language with rules."""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from bench_paper import experiments, main, random_rule, timed_walk, trie_rule
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from rest_store.bench.recordings import Recording
from rest_store.bench.results import read_results
from rest_store.bench.sections import section_of
from rest_store.datastore.datastore import Datastore
from tests.shared.strategies import Corpus, contexts, corpora, open_datastore, write_datastore

VOCABULARY = 300
EMPTY = np.zeros((0, 0), np.int32)


def texts(count: int, *, seed: int) -> list[list[int]]:
    """What follows a token is, nine times in ten, one of two tokens."""
    rng, rule = np.random.default_rng(seed), np.random.default_rng(5).integers(0, VOCABULARY, (VOCABULARY, 2))
    out = []
    for _ in range(count):
        text = [int(rng.integers(VOCABULARY))]
        while len(text) < 80:
            follows = rule[text[-1], int(rng.random() < 0.3)]
            text.append(int(follows) if rng.random() < 0.9 else int(rng.integers(VOCABULARY)))
        out.append(text)
    return out


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("paper")
    for name, count in (("small", 20), ("large", 300)):
        (folder / name).mkdir()
        write_datastore(folder / name, Corpus(VOCABULARY, [texts(count, seed=1)]))
    lines = [json.dumps({"prompt": text[:10], "output": text[10:]}) for text in texts(12, seed=2)]
    (folder / "recordings.jsonl").write_text("\n".join(lines))
    return folder


@pytest.fixture(scope="module")
def recordings() -> list[Recording]:
    arrays = [np.array(text, np.int32) for text in texts(12, seed=2)]
    return [Recording("all", 0, text[:10], text[10:], EMPTY) for text in arrays]


@settings(max_examples=25)
@given(st.data())
def test_random_continuations_are_continuations_of_the_longest_match(data: st.DataObject) -> None:
    corpus = data.draw(corpora())
    context = np.array(data.draw(contexts(corpus)), np.int32)
    with TemporaryDirectory() as directory:
        store = open_datastore(Path(directory), corpus)
        check_random_continuations(store, context)


def check_random_continuations(store: Datastore, context: npt.NDArray[np.int32]) -> None:
    match = store.longest_suffix_match(context)
    tree = random_rule(store, max_nodes=6)(context)
    assert len(tree) <= 6
    assert (len(tree) == 0) <= (match.count == 0 or not len(store.draft(context, max_nodes=1)))
    suffix = context[context.size - match.length :].tolist() if match.length else []
    paths: list[list[int]] = []
    for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
        paths.append([*(paths[parent] if parent >= 0 else []), token])
        assert store.count([*suffix, *paths[-1]]) >= 1
    assert len({tuple(path) for path in paths}) == len(paths)
    assert random_rule(store, max_nodes=6)(context) == tree


def test_with_room_for_all_continuations_random_ones_are_all_of_them(folder: Path) -> None:
    store = Datastore.open(folder / "small")
    context = np.array(texts(1, seed=1)[0][:40], np.int32)
    chosen, frequent = (rule(store, max_nodes=512)(context) for rule in (random_rule, trie_rule))
    assert sorted(zip(chosen.depths.tolist(), chosen.tokens.tolist(), strict=True)) == sorted(
        zip(frequent.depths.tolist(), frequent.tokens.tolist(), strict=True)
    )


def test_the_experiments_show_what_the_paper_shows(folder: Path, recordings: list[Recording]) -> None:
    stores = {name: Datastore.open(folder / name) for name in ("large", "small")}
    rows = experiments(recordings, stores, suffixes=(1, 4))
    by_size = [(row["datastore"], row["M"]) for row in rows if row["experiment"] == "size"]
    assert [name for name, _ in by_size] == ["small", "large"]
    assert by_size[0][1] < by_size[1][1]
    selection = {(row["continuations"], row["nodes"]): row for row in rows if row["experiment"] == "selection"}
    assert selection["random", 24]["M"] < selection["most frequent", 24]["M"]
    assert "microseconds a token" not in selection["random", 24]
    assert [row["longest suffix"] for row in rows if row["experiment"] == "suffix"] == [1, 4]
    timed = timed_walk(recordings, trie_rule(stores["large"]))
    assert timed["M"] == by_size[1][1]
    step = timed["microseconds a step"]
    assert timed["microseconds a token"] == pytest.approx(step["mean"] * timed["steps"] / timed["tokens"], rel=0.01)


def run(*arguments: Any) -> Any:
    return CliRunner().invoke(main, list(map(str, arguments)))


def test_the_command_prints_and_writes_what_a_report_shows(folder: Path, tmp_path: Path) -> None:
    given = [
        "--recordings",
        folder / "recordings.jsonl",
        "--datastore",
        folder / "small",
        "--datastore",
        folder / "large",
    ]
    done = run(*given, "--every", 3, "--out", tmp_path / "paper.json", "--plots", tmp_path / "plots")
    assert done.exit_code == 0, done.output
    assert "By longest suffix" in done.output
    result = read_results(tmp_path)["paper"]
    assert result.figures["recordings"] == 4
    assert {"commit", "cpu", "python", "packages", "data"} <= result.facts.keys()
    titles = {exhibit.title for exhibit in section_of(result).exhibits}
    assert {"By size of the datastore", "M against the longest suffix"} <= titles
    assert {path.suffix for path in (tmp_path / "plots").iterdir()} == {".png", ".svg"}


def test_no_recordings_are_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "none.jsonl").write_text("")
    done = run("--recordings", tmp_path / "none.jsonl", "--datastore", folder / "small")
    assert done.exit_code == 1
    assert "number of recordings is 0" in str(done.exception)
