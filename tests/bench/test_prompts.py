"""One's own prompts: the forms of a file, and the recordings for them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rest_store.bench.prompts import Prompt, interleave, read_prompts
from rest_store.bench.recordings import (
    FIT_FOLDS,
    MIN_TO_FIT,
    Recording,
    fold_number,
    split,
    unfitted,
    without,
)
from rest_store.drafting.calibration import Calibration
from rest_store.errors import DataFileError
from tests.shared.strategies import refused


def encode(text: str) -> list[int]:
    return list(text.encode())


def texts(path: Path) -> list[str]:
    return [bytes(prompt.tokens).decode() for prompt in read_prompts(path, encode)]


FORMS = {
    "prompts.txt": "def add(a, b):\n\n    for i in\r\nnaïve {x}\n",
    "prompts": '\ufeffdef add(a, b):\n\n    for i in\n{"not": JSON}\n[INST] x\n',
    "lines.jsonl": '"def add(a, b):"\n{"prompt": "    for i in"}\n',
    "lines of another name": (
        '{"prompt": "def add(a, b):"}\n\n{"turns": ["    for i in", "and?"]}\n'
    ),
}


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("name", FORMS)
def test_prompts_are_read_in_each_form(name: str, compressed: bool, tmp_path: Path) -> None:
    path = tmp_path / (name + ".gz" * compressed)
    content = FORMS[name].encode()
    path.write_bytes(gzip.compress(content) if compressed else content)
    assert texts(path)[:2] == ["def add(a, b):", "    for i in"]
    rest = {"prompts.txt": ["naïve {x}"], "prompts": ['{"not": JSON}', "[INST] x"]}
    assert texts(path)[2:] == rest.get(name, [])


def test_plain_prompts_are_of_one_family_and_numbered_by_line(tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("a\n\nb\n")
    prompts = read_prompts(tmp_path / "prompts.txt", encode)
    assert prompts == [Prompt("all", "1", [97]), Prompt("all", "3", [98])]
    entries: list[Any] = ["a", [5, 6], {"prompt": "b", "set": "code", "id": "x"}]
    (tmp_path / "prompts.json").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    expected = [Prompt("all", "1", [97]), Prompt("all", "2", [5, 6]), Prompt("code", "x", [98])]
    assert read_prompts(tmp_path / "prompts.json", encode) == expected


@pytest.mark.parametrize(
    "line", ["null", "5", '{"text": "a"}', '["a"]', '{"prompt": {"a": 1}}', '{"prompt": "a']
)
def test_what_is_no_prompt_is_refused_by_its_place(line: str, tmp_path: Path) -> None:
    lines = tmp_path / "prompts.jsonl"
    lines.write_text(f'"a"\n{line}\n')
    refused(
        DataFileError,
        lambda: read_prompts(lines, encode),
        f"{lines}, line 2",
        "prompt is malformed",
    )


def test_families_take_turns_and_may_be_limited() -> None:
    prompts = [
        Prompt(family, str(number), [1])
        for family, count in (("a", 3), ("b", 1))
        for number in range(count)
    ]
    assert [one.family + one.key for one in interleave(prompts)] == ["a0", "b0", "a1", "a2"]
    assert [one.family + one.key for one in interleave(prompts, 2)] == ["a0", "b0", "a1"]
    assert interleave([]) == []


# --- Recordings that a calibration was fitted to --------------------------------------------------


def recording(number: int, *, file: str, written: int = 1) -> Recording:
    none = np.zeros((0, 0), np.int32)
    output = np.arange(written, dtype=np.int32)
    return Recording(
        "all", fold_number(str(number)), np.array([5], np.int32), output, none, str(number), file
    )


def test_recordings_are_left_out_that_the_calibration_was_fitted_to() -> None:
    own = [recording(number, file="mine") for number in range(30)]
    known = [recording(number, file="known") for number in range(30)]
    empty = [recording(1, file="mine", written=0)]
    calibration = Calibration.default()
    assert unfitted(own, calibration, "x") == own, "all: a few are enough"
    assert without(own, own) == ""
    calibration.provenance["data"] = ["known"]
    reported = unfitted([*own, *known, *empty], calibration, "x")
    held_out = [one for one in known if one.fold >= FIT_FOLDS]
    assert 0 < len(held_out) < 20
    assert reported == [*own, *held_out]
    shown = f"; left out: {30 - len(held_out)} that the calibration was fitted to, 1 without output"
    assert without([*own, *known, *empty], reported) == shown
    refused(
        DataFileError,
        lambda: unfitted(empty, calibration, "x"),
        "x: number of recordings",
        "record more prompts",
    )
    calibration.provenance["data"] = {"of": "another form"}
    assert unfitted(known, calibration, "x") == known


def test_the_default_calibration_names_what_it_was_fitted_to() -> None:
    data = Calibration.default().provenance["data"]
    assert len(data) == 2
    assert all(one.startswith("sha256:") for one in data)


def test_fitting_says_how_many_recordings_are_needed_and_there() -> None:
    few = [recording(number, file="mine") for number in range(MIN_TO_FIT - 1)]
    fitting = sum(one.fold < FIT_FOLDS for one in few)
    message = refused(
        DataFileError, lambda: split(few, "calibrate", minimum=MIN_TO_FIT), "calibrate: number of"
    )
    assert (
        f"is {len(few)}, by a hash {fitting} to fit to and {len(few) - fitting} to report on"
        in message
    )
    assert f"expected at least {MIN_TO_FIT}, " in message
    split([*few, recording(99, file="mine")], "calibrate", minimum=MIN_TO_FIT)
    alike = [recording(7, file="mine")] * MIN_TO_FIT
    refused(DataFileError, lambda: split(alike, "calibrate", minimum=MIN_TO_FIT), "some of each")
