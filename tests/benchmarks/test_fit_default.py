"""`benchmarks/fit_default.py` fits each kind of trees to replays of its own."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import fit_default
import pytest
from click.testing import CliRunner

from rest_store.bench.recordings import FIT_FOLDS, read_recordings
from rest_store.drafting.calibration import Calibration
from tests.shared.builds import build_quick, documents, write_jsonl, write_tokenizer

SIZE = 12  # tokens of an output


def write_lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Outputs that count up, with likely tokens, answers of others, chats, and an agent's runs."""
    folder = tmp_path_factory.mktemp("fit")
    texts = documents(12)
    tokenizer = write_tokenizer(folder / "tokenizer.json")
    for name in ("python", "chat", "chat-without", "agent-datastore"):
        corpus = write_jsonl(folder / f"{name}.jsonl", texts)
        build_quick(corpus, tokenizer, folder / name)
    recordings = []
    runs = []
    for number in range(24):
        begin = [number, 100 + number, 1, 2, 3]
        output = list(range(4, 4 + SIZE))
        likely = [[token + 1, token + 2] for token in (*begin, *output)]
        ids = {"prompt": begin, "output": output}
        recordings.append({"set": "a", "id": number, **ids, "topk": likely})
        task = {"task": f"task-{number % 6}", "turns": [[5, 5 + SIZE]]}
        runs.append({**task, "ids": [*begin, *output]})
    answers = [
        {"model": "m", "prompt": text[:20], "answer": text[:60]} for text in documents(24, seed=1)
    ]
    with gzip.open(folder / "chats.jsonl.gz", "wt", encoding="utf-8") as file:
        for text in texts:
            file.write(json.dumps({"data": [text[:20], text[:80]]}) + "\n")
    return {
        "recordings": write_lines(folder / "recordings.jsonl", recordings),
        "answers": write_lines(folder / "answers.jsonl", answers),
        "chat-answers": folder / "chats.jsonl.gz",
        "python": folder / "python",
        "chat": folder / "chat",
        "chat-without": folder / "chat-without",
        "agent": write_lines(folder / "runs.jsonl", runs),
        "agent-datastore": folder / "agent-datastore",
    }


def fitted(arguments: dict[str, Path], out: Path, *options: str) -> Calibration:
    named = [part for name, path in arguments.items() for part in (f"--{name}", str(path))]
    done = CliRunner().invoke(
        fit_default.main,
        [*named, "--out", str(out), "--trees", "3", *options],
        catch_exceptions=False,
    )
    assert done.exit_code == 0, done.output
    return Calibration.load(out)


def test_all_kinds_of_trees_are_fitted(arguments: dict[str, Path], tmp_path: Path) -> None:
    assert {one.fold < FIT_FOLDS for one in read_recordings(arguments["recordings"])} == {
        True,
        False,
    }
    native = fitted(arguments, tmp_path / "one").native
    usual = Calibration.default().native
    kinds = {native.gbdt, native.live_gbdt, native.text_gbdt}
    assert len(kinds) == 3, "each kind has replays of its own"
    assert not kinds & {usual.gbdt, usual.live_gbdt, usual.text_gbdt}
    assert {len(trees) for trees in kinds} == {4 + 3 * 292}


def test_one_kind_is_fitted_and_the_others_are_kept(
    arguments: dict[str, Path], tmp_path: Path
) -> None:
    one = fitted(arguments, tmp_path / "one", "--only", "text")
    again = fitted(arguments, tmp_path / "two", "--only", "text")
    usual = Calibration.default().native
    assert (one.native.gbdt, one.native.live_gbdt) == (usual.gbdt, usual.live_gbdt)
    assert one.native.text_gbdt == again.native.text_gbdt != usual.text_gbdt
    assert one.provenance["kinds"] == ["text"]
