"""Replays count as a generation does and see no later tokens; the commands that use them work."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from rest_store.bench.baselines import RestRule
from rest_store.bench.recordings import Recording, fold_number, read_recordings
from rest_store.bench.replay import Outcome, Replayed, fit_calibration, replay, walk
from rest_store.bench.replay_command import measure
from rest_store.cli import main
from rest_store.datastore.datastore import Datastore
from rest_store.datastore.tree import TokenTree
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import PromptLookup, RecycledLogits
from rest_store.errors import DataFileError
from tests.shared.strategies import Corpus, refused, write_datastore

VOCABULARY = 300


def generations(count: int, seed: int = 0, top_k: bool = True) -> list[dict[str, Any]]:
    """Recorded generations of a model that mostly follows a fixed table of next tokens."""
    rng = np.random.default_rng(seed)
    follows = np.random.default_rng(99).permutation(VOCABULARY)
    out = []
    for number in range(count):
        text = [int(rng.integers(VOCABULARY))]
        while len(text) < 60:
            text.append(
                int(follows[text[-1]]) if rng.random() < 0.85 else int(rng.integers(VOCABULARY))
            )
        record: dict[str, Any] = {
            "set": f"family{number % 2}",
            "id": number,
            "prompt": text[:10],
            "output": text[10:],
        }
        if top_k:
            record["topk"] = [
                [int(follows[token]), *rng.integers(0, VOCABULARY, 7).tolist()] for token in text
            ]
        out.append(record)
    return out


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return path


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("replay")
    texts = [row["prompt"] + row["output"] for row in generations(20, seed=1)]
    write_datastore(folder / "ds", Corpus(VOCABULARY, [texts]))
    write(folder / "recordings.jsonl.gz", generations(40))
    return folder


@pytest.fixture(scope="module")
def recordings(folder: Path) -> list[Recording]:
    return read_recordings(folder / "recordings.jsonl.gz")


def test_walking_accepts_the_path_and_one_token() -> None:
    empty = np.zeros((0, 0), np.int32)
    recording = Recording(
        "all", 0, np.array([1], np.int32), np.arange(2, 12, dtype=np.int32), empty
    )

    class NextTokens:
        def __init__(self, prompt: Any) -> None:
            self.last = int(prompt[-1])

        def draft(self, max_nodes: int) -> TokenTree:
            tokens = range(self.last + 1, self.last + 1 + max_nodes)
            return TokenTree(list(tokens), range(-1, max_nodes - 1), [1] * max_nodes)

        def accept(self, tokens: Any, top_k: Any) -> None:
            assert top_k is None
            self.last = int(tokens[-1])

    def opening(prompt: Any) -> nullcontext[NextTokens]:
        return nullcontext(NextTokens(prompt))

    times: list[float] = []
    # 3 + 3 + 3 + 1 tokens.
    assert walk([recording], opening, max_nodes=2, times=times).steps == len(times) == 4
    assert walk([recording], opening, max_nodes=0).mean_accepted == 1
    assert walk([recording], opening, max_nodes=2, skip=9).tokens == 1


def test_no_later_token_is_seen(
    recordings: list[Recording], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trees up to a place are the same, whatever comes after it in the recording."""
    store = Datastore.open(folder / "ds")
    calibration = Calibration.default()
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
            recording.fold,
            recording.prompt,
            np.concatenate([recording.output[:25], 299 - recording.output[25:]]),
            np.concatenate([recording.top_k[: cut - 1], 299 - recording.top_k[cut - 1 :]]),
        )
        trees = []
        for one in (recording, other):
            seen.clear()
            sources = [PromptLookup(), RecycledLogits(), store]
            replay([one], sources, calibration.copy(), max_nodes=16)
            trees.append({length: tree for length, tree in seen if length <= cut})
        common = trees[0].keys() & trees[1].keys()
        assert len(common) >= 2
        assert all(trees[0][length] == trees[1][length] for length in common)


def test_a_fitted_calibration_beats_the_rules_and_is_calibrated(folder: Path) -> None:
    recordings = read_recordings(write(folder / "many.jsonl.gz", generations(160, seed=3)))
    store = Datastore.open(folder / "ds")
    sources = [PromptLookup(), RecycledLogits(), store]
    fit = recordings[:120]
    held = recordings[120:]
    record: list[tuple[bytes, bytes, bytes]] = []
    for skip in (0, 3):
        replay(fit, sources, Calibration(bytes(4)), max_nodes=16, skip=skip, record=record)
    fitted = fit_calibration(record, trees=40)
    outcome = replay(held, sources, fitted.copy(), max_nodes=16)
    assert outcome.tokens == sum(one.output.size for one in held)
    assert (
        outcome.mean_accepted
        > walk(
            held, lambda prompt: nullcontext(RestRule([store], prompt)), max_nodes=16
        ).mean_accepted
    )
    assert outcome.calibration_error < 0.03
    rows = measure(held, {"ds": store}, fitted, budgets=(16,))
    by_name = {row["drafting"]: row["M"] for row in rows}
    assert by_name["session"] == pytest.approx(outcome.mean_accepted, abs=1e-3)
    assert by_name["session without ds"] < by_name["session"]
    assert {
        "session, prompt lookup alone",
        "session, recycled logits alone",
        "session, ds alone",
    } <= by_name.keys()


def test_few_recordings_have_a_wide_interval() -> None:
    few = Outcome([Replayed("all", tokens, 10) for tokens in (10, 20, 30, 40)])
    many = Outcome(few.replays * 25)
    assert few.mean_accepted == many.mean_accepted == 2.5
    low, high = few.interval
    assert (low, high) == pytest.approx((1.5, 3.5), abs=0.25)
    assert str(few) == f"2.50 ({low:.2f} to {high:.2f})"
    assert many.interval == pytest.approx((2.3, 2.7), abs=0.05)
    assert Outcome(few.replays[:1]).interval == (1, 1)
    of_tasks = Outcome([one._replace(task=str(one.tokens)) for one in many.replays])
    assert of_tasks.interval == pytest.approx((1.5, 3.5), abs=0.25), (
        "recordings of one task are no samples of their own"
    )


def test_folds_are_fixed_and_tasks_stay_together() -> None:
    assert [fold_number(key) for key in ("HumanEval/0", "HumanEval/1", "a prompt")] == [7, 1, 8]


def test_bad_recordings_are_refused_by_line(tmp_path: Path, recordings: list[Recording]) -> None:
    path = tmp_path / "bad.jsonl"
    good = json.dumps(generations(1)[0])
    for line, fragment in (
        ("{", "malformed"),
        ("[1]", "malformed"),
        (
            '{"prompt": [1]}',
            "output of the prompt is absent; `rest-store bench record` records",
        ),
        ('{"turns": ["a"]}', "output of the prompt is absent"),
        ('{"output": [1]}', "malformed"),
        (
            '{"prompt": "a", "choices": [{"text": "b"}]}',
            "malformed, expected a JSON object with prompt and output, ids",
        ),
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
        refused(DataFileError, lambda: read_recordings(path), f"{path}, line 3", fragment)
    refused(
        DataFileError,
        lambda: read_recordings(tmp_path / "none"),
        "unreadable (No such file or directory)",
    )
    path.write_bytes(b"\xff")
    refused(DataFileError, lambda: read_recordings(path), "file is not UTF-8")
    (tmp_path / "bad.gz").write_bytes(b"no gzip")
    refused(DataFileError, lambda: read_recordings(tmp_path / "bad.gz"), "unreadable")
    refused(DataFileError, lambda: fit_calibration([]), "proposals")
    path.write_text('{"prompt": "a b", "answer": "c"}\n')
    assert read_recordings(path, lambda prompt, answer: ([1, 2], [3]))[0].output.tolist() == [3]


def test_a_damaged_gz_is_refused(tmp_path: Path) -> None:
    rows = (f'{{"prompt": [{number}], "output": [2]}}\n' for number in range(9999))
    content = gzip.compress("".join(rows).encode())
    flipped = bytearray(content)
    flipped[200:260] = bytes(byte ^ 255 for byte in content[200:260])
    path = tmp_path / "recordings.jsonl.gz"
    for damaged in (bytes(flipped), content[:-100]):
        path.write_bytes(damaged)
        refused(DataFileError, lambda: read_recordings(path), f"{path}: file is unreadable")


def test_the_commands_fit_and_report(folder: Path, tmp_path: Path) -> None:
    common = [
        "--recordings",
        str(folder / "recordings.jsonl.gz"),
        "--datastore",
        str(folder / "ds"),
    ]
    out = tmp_path / "own.calibration"
    done = CliRunner().invoke(
        main, ["calibrate", *common, "--out", str(out), "--trees", "20", "--json"]
    )
    assert done.exit_code == 0, done.output
    facts = json.loads(done.output)
    assert facts["fitted"] + facts["reported"] == 40
    assert [row["calibration"] for row in facts["rows"]] == [
        "default",
        "default",
        "fitted",
        "fitted",
    ]
    assert Calibration.load(out).provenance["trees"] == 20
    words = [
        "-m",
        "rest_store",
        "calibrate",
        *common,
        "--out",
        str(tmp_path / "again"),
        "--trees",
        "20",
    ]
    subprocess.run([sys.executable, *words], check=True, env={**os.environ, "PYTHONHASHSEED": "1"})
    assert (tmp_path / "again").read_bytes() == out.read_bytes(), "in any process"
    result = tmp_path / "quality.json"
    options = ["--calibration", str(out), "--max-nodes", "8", "--out", str(result)]
    done = CliRunner().invoke(main, ["bench", "replay", *common, *options])
    assert done.exit_code == 0, done.output
    assert "REST's rule, ds" in done.output
    written = json.loads(result.read_text())
    assert {"benchmark", "commit", "cpu", "packages"} <= written.keys()
    assert {"recordings.jsonl.gz", "ds"} <= written["data"].keys()
    assert written["results"]["reported"] == facts["reported"], "not those that it was fitted to"
    rows = written["results"]["rows"]
    assert {row["nodes"] for row in rows if row["drafting"].startswith("session")} == {8}
    assert all(row["tokens"] == rows[0]["tokens"] for row in rows)


def test_skill_compares_scores_with_the_share_of_accepted_nodes() -> None:
    outcome = Outcome()
    nodes = TokenTree([1, 2, 3], [-1, 0, 1], [0, 0, 0], scores=[0.9, 0.6, 0.3], origins=[1, 1, 1])
    outcome.add_step(nodes, np.array([0, 1]), 5)
    outcome.add_step(nodes, np.array([0]), 2)  # nobody knows of the third node
    squares = 0.1**2 + 0.4**2 + 0.3**2 + 0.1**2 + 0.6**2
    assert outcome.brier_skill == pytest.approx(1 - squares / 5 / (0.6 * 0.4), abs=1e-6)
    # Of 3 * 2 pairs, all but the equal one of the second nodes are in order.
    assert outcome.auc == pytest.approx(5.5 / 6)
    assert Outcome().brier_skill == 0
    assert Outcome().auc == 0.5
