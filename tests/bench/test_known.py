"""What is known during replays: what a live datastore holds, and `rest-store bench replay --memory`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from rest_store.bench.known import REMEMBERED
from rest_store.bench.recordings import Recording
from rest_store.bench.remembering import among_others, among_runs, in_turn, new_live_datastore, with_all
from rest_store.cli import main
from tests.shared.strategies import Corpus, identity, write_datastore

VOCABULARY = 300


def recording(number: int, key: str = "", run: int = 0) -> Recording:
    """A recording whose output is the tokens 10 * number + 1 .. 10 * number + 4."""
    output = np.arange(10 * number + 1, 10 * number + 5, dtype=np.int32)
    prompt = np.array([200 + number, 9], np.int32)
    return Recording("all", number, prompt, output, np.zeros((0, 0), np.int32), key, run=run)


@pytest.mark.parametrize(
    ("order", "held"),
    [
        (in_turn, [[], [0], [0, 1]]),
        (among_others, [[2], [2], [0, 1]]),
        (among_runs, [[1, 2], [0, 2], [0, 1]]),
        (with_all, [[0, 1, 2]] * 3),
    ],
)
def test_a_live_datastore_holds_what_each_order_says(order: Callable[..., Any], held: list[list[int]]) -> None:
    recordings = [recording(0, "task/1"), recording(1, "task/1"), recording(2)]
    with new_live_datastore(identity(VOCABULARY)) as live:

        def held_now() -> list[int]:
            return [number for number in range(3) if live.count([9, 10 * number + 1, 10 * number + 2])]

        replayed = []
        for one, known in order(recordings, live):
            assert [recordings.index(other) for other in known] == held_now()
            replayed.append((one, held_now()))
        assert replayed == list(zip(recordings, held, strict=True))


def test_turns_of_one_run_do_not_know_each_other() -> None:
    recordings = [recording(0, "task", 1), recording(1, "task", 1), recording(2, "task", 2)]
    with new_live_datastore(identity(VOCABULARY)) as live:
        known = [[recordings.index(other) for other in others] for _, others in among_runs(recordings, live)]
    assert known == [[2], [2], [0, 1]]


def test_the_command_writes_a_row_for_all_that_is_remembered(tmp_path: Path) -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8] * 4
    write_datastore(tmp_path, Corpus(VOCABULARY, [[[50, 51, 52]]]))
    rows = [{"prompt": [100 + number], "output": text, "set": "a"} for number in range(20)]
    (tmp_path / "recordings.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ["--recordings", tmp_path / "recordings.jsonl", "--datastore", tmp_path, "--max-nodes", 4]
    done = CliRunner().invoke(
        main, ["bench", "replay", "--memory", *map(str, options), "--out", str(tmp_path / "live.json")]
    )
    assert done.exit_code == 0, done.output
    results = json.loads((tmp_path / "live.json").read_text())["results"]
    figures = {(row["datastores"], row["remembered"]): row for row in results["known"]}
    assert set(figures) == {(with_stores, name) for with_stores in (True, False) for name in ("nothing", *REMEMBERED)}
    for with_stores in (True, False):
        nothing, all_others = (figures[with_stores, name]["M"] for name in ("nothing", "all of other tasks"))
        assert all_others > 1.2 * nothing
