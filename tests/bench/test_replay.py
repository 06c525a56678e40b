"""Replays count as a generation does and see no later tokens; the commands that use them work."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from rest_store.bench.datastores import documents_of, thinned
from rest_store.bench.quality import measure, prompt_lookup_rule, rest_rule
from rest_store.bench.recordings import Recording, part_of, read_recordings
from rest_store.bench.replay import Outcome, fit_calibration, replay, walk
from rest_store.bench.tables import curves_table
from rest_store.cli import main
from rest_store.datastore.datastore import Datastore
from rest_store.datastore.tree import TokenTree
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import PromptLookup, RecycledLogits
from rest_store.errors import RecordingError
from tests.shared.strategies import Corpus, refused, write_datastore

VOCABULARY = 300


def generations(count: int, seed: int = 0, top_k: bool = True) -> list[dict[str, Any]]:
    """Recorded generations of a made-up model that mostly goes on as a fixed table says, now and then elsewhere."""
    rng = np.random.default_rng(seed)
    follows = np.random.default_rng(99).permutation(VOCABULARY)
    out = []
    for number in range(count):
        text = [int(rng.integers(VOCABULARY))]
        while len(text) < 60:
            text.append(int(follows[text[-1]]) if rng.random() < 0.85 else int(rng.integers(VOCABULARY)))
        record: dict[str, Any] = {"set": f"family{number % 2}", "id": number, "prompt": text[:10], "output": text[10:]}
        if top_k:
            record["topk"] = [[int(follows[token]), *rng.integers(0, VOCABULARY, 7).tolist()] for token in text]
        out.append(record)
    return out


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replay")
    (folder / "ds").mkdir()
    texts = [row["prompt"] + row["output"] for row in generations(20, seed=1)]
    write_datastore(folder / "ds", Corpus(VOCABULARY, [texts]))
    write(folder / "recordings.jsonl.gz", generations(40))
    return folder


@pytest.fixture(scope="module")
def recordings(folder: Path) -> list[Recording]:
    return read_recordings(folder / "recordings.jsonl.gz")


def test_walking_accepts_the_path_and_one_token() -> None:
    empty = np.zeros((0, 0), np.int32)
    recording = Recording("all", 0, np.array([1], np.int32), np.arange(2, 12, dtype=np.int32), empty)

    def next_two(context: Any) -> TokenTree:
        return TokenTree([context[-1] + 1, context[-1] + 2], [-1, 0], [1, 1])

    assert walk([recording], next_two).steps == 4  # 3 + 3 + 3 + 1 tokens
    assert walk([recording], lambda context: TokenTree([], [], [])).mean_accepted == 1


def test_prompt_lookup_and_rest_are_the_known_rules(folder: Path) -> None:
    draft = prompt_lookup_rule()
    assert draft(np.array([7, 1, 2, 3, 4, 9, 1, 2, 3], np.int32)).tokens.tolist() == [4, 9, 1, 2, 3]
    assert draft(np.array([1, 2, 5, 0, 2, 6, 1, 2], np.int32)).tokens.tolist() == [5, 0, 2, 6, 1, 2]
    assert draft(np.array([256, 1, 0, 65536, 5, 0], np.int32)).tokens.tolist() == [
        65536,
        5,
        0,
    ]  # no match across tokens
    assert len(draft(np.array([1, 2, 3], np.int32))) == 0
    store = Datastore.open(folder / "ds")
    context = np.array(generations(1)[0]["prompt"], np.int32)
    assert rest_rule([store])(context) == store.draft(context, max_nodes=24)


def test_no_later_token_is_seen(recordings: list[Recording], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trees up to a place are the same, whatever comes after it in the recording."""
    store, calibration = Datastore.open(folder / "ds"), Calibration.default()
    seen: list[tuple[int, TokenTree]] = []
    plain = DraftSession.draft

    def draft(self: DraftSession, *arguments: Any) -> TokenTree:
        tree = plain(self, *arguments)
        seen.append((len(self), tree))
        return tree

    monkeypatch.setattr(DraftSession, "draft", draft)
    for recording in recordings[:6]:
        cut = recording.prompt.size + 25
        other = Recording(
            recording.family,
            recording.part,
            recording.prompt,
            np.concatenate([recording.output[:25], 299 - recording.output[25:]]),
            np.concatenate([recording.top_k[: cut - 1], 299 - recording.top_k[cut - 1 :]]),
        )
        trees = []
        for one in (recording, other):
            seen.clear()
            replay([one], [PromptLookup(), RecycledLogits(), store], calibration, max_nodes=16)
            trees.append({length: tree for length, tree in seen if length <= cut})
        common = trees[0].keys() & trees[1].keys()
        assert len(common) >= 2
        assert all(trees[0][length] == trees[1][length] for length in common)


def test_a_fitted_calibration_beats_the_rules_and_is_calibrated(folder: Path) -> None:
    recordings = read_recordings(write(folder / "many.jsonl.gz", generations(160, seed=3)))
    store = Datastore.open(folder / "ds")
    sources = [PromptLookup(), RecycledLogits(), store]
    fit, held = recordings[:120], recordings[120:]
    fitted = fit_calibration([(fit, sources)], budgets=((16, 0), (16, 3)), trees=40)
    outcome = replay(held, sources, fitted, max_nodes=16)
    assert outcome.tokens == sum(one.output.size for one in held)
    assert outcome.mean_accepted > walk(held, rest_rule([store], max_nodes=16)).mean_accepted
    assert outcome.calibration_error < 0.03
    rows = measure(held, {"ds": store}, fitted, budgets=(16,))
    by_name = {row["drafting"]: row["M"] for row in rows}
    assert by_name["session"] == pytest.approx(outcome.mean_accepted, abs=1e-3)
    assert by_name["session without ds"] < by_name["session"]
    assert {"session, prompt lookup alone", "session, recycled logits alone", "session, ds alone"} <= by_name.keys()


def test_replays_count_as_a_generation_would(recordings: list[Recording], folder: Path) -> None:
    sources, calibration = [PromptLookup(), Datastore.open(folder / "ds")], Calibration.default()
    steps = drafted = accepted = 0
    promised = 0.0
    for recording in recordings[:10]:
        text, place = [*recording.prompt.tolist(), *recording.output.tolist()], recording.prompt.size
        with DraftSession(sources, text[:place], calibration=calibration, learn=False) as session:
            while place < len(text):
                tree = session.draft(8)
                children = {
                    (parent, token): node
                    for node, (parent, token) in enumerate(
                        zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True)
                    )
                }
                end, node = place, -1
                while end < len(text) and (node, text[end]) in children:
                    node = children[node, text[end]]
                    end += 1
                steps, drafted, accepted = steps + 1, drafted + len(tree), accepted + end - place
                assert tree.scores is not None
                promised += 1 + float(tree.scores.sum())
                end = min(end + 1, len(text))
                session.accept(text[place:end])
                place = end
    outcome = replay(recordings[:10], sources, calibration, max_nodes=8)
    assert (outcome.tokens, outcome.steps) == (sum(one.output.size for one in recordings[:10]), steps)
    assert accepted > 0
    assert outcome.reliability[[0, 2]].sum(axis=1).tolist() == [drafted, accepted]
    assert outcome.expected == pytest.approx(promised)
    assert outcome.reliability[1].sum() == pytest.approx(promised - steps)
    assert [sum(counts) for counts in zip(*outcome.families.values(), strict=True)] == [outcome.tokens, steps]


def test_an_outcome_without_drafts_has_no_error() -> None:
    assert Outcome().calibration_error == 0


def test_parts_are_fixed_and_tasks_stay_together() -> None:
    assert [part_of(key) for key in ("HumanEval/0", "HumanEval/1", "a prompt")] == [7, 1, 8]


def test_bad_recordings_are_refused_by_line(tmp_path: Path, recordings: list[Recording]) -> None:
    path = tmp_path / "bad.jsonl"
    good = json.dumps(generations(1)[0])
    for line, fragment in (
        ("{", "malformed"),
        ("[1]", "malformed"),
        ('{"prompt": [1]}', "malformed"),
        ('{"prompt": "a", "answer": "b"}', "tokenizer"),
        ('{"prompt": [1], "output": ["a"]}', "types"),
        ('{"prompt": [1], "output": [99999999999]}', "types"),
        ('{"prompt": [1], "output": [2.5]}', "types"),
        ('{"prompt": [true], "output": [2]}', "types"),
        ('{"prompt": [1], "output": [-2]}', "types"),
        ('{"prompt": [1], "output": [2], "topk": [[1.5], [2]]}', "types"),
        ('{"prompt": [1], "output": [2], "topk": [[-2], [2]]}', "types"),
        ('{"prompt": [[1]], "output": [1]}', "shapes"),
        ('{"prompt": [1], "output": [1], "topk": [[1]]}', "shapes"),
    ):
        path.write_text(f"{good}\n\n{line}\n")
        refused(RecordingError, lambda: read_recordings(path), f"{path}, line 3", fragment)
    refused(RecordingError, lambda: read_recordings(tmp_path / "none"), "unreadable")
    (tmp_path / "bad.gz").write_bytes(b"no gzip")
    refused(RecordingError, lambda: read_recordings(tmp_path / "bad.gz"), "unreadable")
    refused(RecordingError, lambda: fit_calibration([]), "proposals")
    path.write_text('{"prompt": "a b", "answer": "c"}\n')
    assert read_recordings(path, lambda prompt, answer: ([1, 2], [3]))[0].output.tolist() == [3]


def test_the_commands_fit_and_report(folder: Path, tmp_path: Path) -> None:
    common = ["--recordings", str(folder / "recordings.jsonl.gz"), "--datastore", str(folder / "ds")]
    out = tmp_path / "own.calibration"
    done = CliRunner().invoke(main, ["calibrate", *common, "--out", str(out), "--trees", "20", "--json"])
    assert done.exit_code == 0, done.output
    facts = json.loads(done.output)
    assert facts["fitted"] + facts["reported"] == 40
    assert [row["calibration"] for row in facts["rows"]] == ["default", "default", "fitted", "fitted"]
    assert Calibration.load(out).provenance["trees"] == 20
    result = tmp_path / "quality.json"
    options = ["--calibration", str(out), "--max-nodes", "8", "--out", str(result)]
    done = CliRunner().invoke(main, ["bench", "quality", *common, *options])
    assert done.exit_code == 0, done.output
    assert "REST's rule, ds" in done.output
    written = json.loads(result.read_text())
    assert {"benchmark", "commit", "cpu", "packages"} <= written.keys()
    assert {"recordings.jsonl.gz", "ds"} <= written["data"].keys()
    assert written["results"]["reported"] == facts["reported"], "not those that it was fitted to"
    rows = written["results"]["rows"]
    assert {row["nodes"] for row in rows if row["drafting"].startswith("session")} == {8}
    assert all(row["tokens"] == rows[0]["tokens"] for row in rows)


def test_too_few_recordings_are_refused(folder: Path, tmp_path: Path) -> None:
    path = write(tmp_path / "few.jsonl.gz", generations(1))
    common = ["--recordings", str(path), "--datastore", str(folder / "ds")]
    fitting = ["bench", "quality", *common, "--calibration", "fit"]
    for command in (["calibrate", *common, "--out", str(tmp_path / "out")], fitting):
        done = CliRunner().invoke(main, command)
        assert done.exit_code == 1
        assert "number of recordings with output is 1, by a hash " in done.output
        assert "expected at least 20" in done.output
    done = CliRunner().invoke(main, ["bench", "quality", *common, "--max-nodes", "4", "--no-ablations"])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("1 recording, "), "one is enough for the calibration of the package"


def test_curves_are_measured_on_parts_of_the_datastores_themselves(folder: Path, tmp_path: Path) -> None:
    common = ["--recordings", str(folder / "recordings.jsonl.gz"), "--datastore", str(folder / "ds"), "--every", "4"]
    options = [
        "--calibration",
        "default",
        "--max-nodes",
        "4",
        "--no-ablations",
        "--curves",
        "--out",
        str(tmp_path / "q"),
    ]
    done = CliRunner().invoke(main, ["bench", "quality", *common, *options])
    assert done.exit_code == 0, done.output
    results = json.loads((tmp_path / "q").read_text())["results"]
    curves = results["curves"]
    assert [share for share, _ in curves["size"]] == [0.01, 0.1, 1]
    assert curves["size"][0][1] < curves["size"][2][1]
    assert curves["nodes"][0][1] < curves["nodes"][-1][1]
    assert dict(map(tuple, curves["nodes"]))[16] == curves["size"][2][1]
    rows = curves_table({"made up": results}).rows
    assert rows[1][0] == "size of the datastores: 1% / 10% / 100%"
    assert rows[2][0] == "longest suffix, tokens: 1 / 2 / 4 / 8 / 16 / 32"
    assert rows[1][1] == " / ".join(f"{m:.2f}" for _, m in curves["size"])


def test_a_part_of_a_datastore_is_whole_documents_evenly_spread(tmp_path: Path) -> None:
    (tmp_path / "ds").mkdir()
    documents = [[token] * 5 for token in range(100)]
    write_datastore(tmp_path / "ds", Corpus(VOCABULARY, [documents[:50], documents[50:]]))
    part = Datastore.open(thinned(tmp_path / "ds", tmp_path / "part", 0.1))
    kept = [document.tolist() for document in documents_of(part, 10_000)]
    assert kept == documents[::10]


def test_the_same_recordings_give_the_same_bytes_in_any_process(folder: Path, tmp_path: Path) -> None:
    common = ["--recordings", str(folder / "recordings.jsonl.gz"), "--datastore", str(folder / "ds"), "--trees", "5"]
    found = []
    for seed in ("1", "2"):
        out = tmp_path / seed
        command = [sys.executable, "-m", "rest_store", "calibrate", *common, "--out", str(out)]
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "PYTHONHASHSEED": seed})
        found.append(out.read_bytes())
    assert found[0] == found[1]


def test_plots_are_written(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the extra [plots] is not installed")
    common = ["--recordings", str(folder / "recordings.jsonl.gz"), "--datastore", str(folder / "ds"), "--every", "4"]
    options = ["--calibration", "default", "--max-nodes", "4", "--no-ablations", "--plots", str(tmp_path / "plots")]
    done = CliRunner().invoke(main, ["bench", "quality", *common, *options, "--curves"])
    assert done.exit_code == 0, done.output
    files = [path.name for path in (tmp_path / "plots").iterdir()]
    titles = ("m", "m-against-the-size-of-the-datastores", "how-often-draft-tokens-are-accepted")
    assert {f"quality-{title}.{ending}" for title in titles for ending in ("png", "svg")} <= set(files)
    assert len(files) == 2 * 5
