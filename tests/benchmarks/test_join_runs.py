"""The script that joins runs of one repository."""

from __future__ import annotations

import json
from pathlib import Path

import join_runs
from click.testing import CliRunner

INSTRUCTIONS = [1, 2, 3]


def run_of(task: str, first: int, *, size: int = 6) -> dict[str, object]:
    """A run: the instructions, `size` tokens of its own, and an answer of its last two."""
    ids = [*INSTRUCTIONS, *range(first, first + size)]
    return {"task": task, "run": 3, "ids": ids, "turns": [[len(ids) - 2, len(ids)]]}


def test_runs_of_a_repository_are_joined_and_have_the_instructions_once(tmp_path: Path) -> None:
    runs = [
        run_of("a__a-1", 10),
        run_of("b__b-c-1", 20),
        run_of("a__a-2", 30),
        run_of("a__a-3", 40),
    ]
    source = tmp_path / "runs.jsonl"
    out = tmp_path / "new" / "joined.jsonl"
    source.write_text("".join(json.dumps(run) + "\n" for run in runs))
    options = ["--recordings", str(source), "--tokens", "14", "--out", str(out)]
    done = CliRunner().invoke(join_runs.main, options, catch_exceptions=False)
    assert done.output == f"{out}: 1 joined run of 15 tokens\n"
    (joined,) = map(json.loads, out.read_text().splitlines())
    assert joined["task"] == "a__a/joined-1"
    assert joined["ids"] == [*INSTRUCTIONS, *range(10, 16), *range(30, 36)]
    answers = [joined["ids"][begin:end] for begin, end in joined["turns"]]
    assert answers == [[14, 15], [34, 35]]


def test_the_answers_of_two_equal_runs_are_both_there() -> None:
    (joined,) = join_runs.joined_runs([run_of("a-1", 10), run_of("a-1", 10)], 11)
    assert joined["ids"] == [*INSTRUCTIONS, *range(10, 16), 14, 15]
    assert joined["turns"] == [[7, 9], [9, 11]]
