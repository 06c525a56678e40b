"""The commands of `rest-store bench`, and the recording of outputs."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest

from rest_store.bench.measurement_options import Destination
from rest_store.bench.recordings import read_recordings
from rest_store.bench.results import data_hashes, environment, write_result
from rest_store.errors import DataFileError
from tests.shared.builds import write_tokenizer
from tests.shared.commands import run
from tests.shared.strategies import refused
from tests.shared.tiny import write_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with a tokenizer, a datastore of the same and prompts."""
    folder = tmp_path_factory.mktemp("bench")
    write_model(folder / "model")
    (folder / "text.txt").write_text("def add(first, second):\n    return first + second\n" * 20)
    build = [
        "build",
        "--corpus",
        folder / "text.txt",
        "--tokenizer",
        folder / "model",
        "--out",
        folder / "ds",
    ]
    assert run(*build)[0] == 0
    prompts = [
        {"set": "a", "id": "x", "prompt": "def add"},
        {"category": "b", "turns": ["first", "second"]},
    ]
    prompts.append({"set": "c", "prompt": [5, 6, 7]})
    (folder / "prompts.jsonl").write_text("\n".join(json.dumps(one) for one in prompts))
    return folder


def test_recordings_are_what_the_model_writes_and_finds_likely(folder: Path) -> None:
    out = folder / "recordings.jsonl.gz"
    command = [
        "bench",
        "record",
        "--model",
        folder / "model",
        "--prompts",
        folder / "prompts.jsonl",
        "--out",
        out,
    ]
    status, shown = run(*command, "--max-new-tokens", 12)
    assert status == 0, shown
    recordings = read_recordings(out)
    assert [one.family for one in recordings] == ["a", "b", "c"]
    assert recordings[2].prompt.tolist() == [5, 6, 7]
    for one in recordings:
        assert one.output.size == 12
        assert one.top_k.shape == (one.prompt.size + 12, 8)
        assert one.top_k[one.prompt.size - 1 : -1, 0].tolist() == one.output.tolist()


@pytest.mark.parametrize("command", ["record", "speed"])
def test_tokens_that_the_model_does_not_have_are_refused(
    folder: Path, tmp_path: Path, command: str
) -> None:
    (tmp_path / "prompts.jsonl").write_text('{"prompt": [1]}\n{"prompt": [999999]}\n')
    out = ["--out", tmp_path / "out"] if command == "record" else []
    status, shown = run(
        "bench", command, "--model", folder / "model", "--prompts", tmp_path / "prompts.jsonl", *out
    )
    assert (status, "prompt 2: a token id is 999999" in shown) == (1, True), shown


def test_tokens_of_several_tokenizers_are_not_compared(folder: Path, tmp_path: Path) -> None:
    other = write_tokenizer(tmp_path / "tokenizer.json")
    build = [
        "build",
        "--corpus",
        folder / "text.txt",
        "--tokenizer",
        other,
        "--out",
        tmp_path / "ds",
    ]
    assert run(*build)[0] == 0
    path = tmp_path / "recordings.jsonl"
    path.write_text(
        "\n".join(f'{{"id": "{number}", "prompt": [1], "output": [2]}}' for number in range(30))
    )
    both = ["--recordings", path, "--datastore", folder / "ds", "--datastore", tmp_path / "ds"]
    for command in (["bench", "replay"], ["calibrate", "--out", tmp_path / "x", "--trees", 1]):
        status, shown = run(*command, *both)
        assert (status, "tokenizer" in shown.splitlines()[-1]) == (1, True), shown


def test_results_name_commit_machine_and_data(tmp_path: Path) -> None:
    assert {"commit", "cpu", "platform", "python", "packages"} <= environment().keys()
    (tmp_path / "data").write_bytes(b"abc")
    hashes = data_hashes({"a": [tmp_path / "data", None, 3], "b": "no file", "c": ""})
    assert hashes == {
        "data": "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    }
    out = Destination(tmp_path / "new" / "x.json", io.StringIO())
    arguments = {"file": tmp_path / "data", "to": Path("y"), "out": out, "as_json": True}
    write_result(out, "x", arguments, (), {"a": 1})
    written = json.loads((tmp_path / "new" / "x.json").read_text())
    assert out.stream is not None
    assert json.loads(out.stream.getvalue()) == written  # type: ignore[attr-defined]
    assert written["arguments"] == {"file": "data", "to": "y"}
    assert written["data"] == hashes
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", written["date"])
    assert str(tmp_path) not in json.dumps(written)
    refused(
        DataFileError,
        lambda: write_result(Destination(tmp_path / "data" / "x.json"), "x", {}, (), 1),
        "not writable",
    )
