"""History during replays: documents of a live datastore, and `bench replay --history`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rest_store.bench.history_replay import OTHERS
from rest_store.bench.recorded_history import among_others, in_turn, new_live_datastore
from rest_store.bench.recordings import Recording
from tests.shared.commands import run
from tests.shared.strategies import Corpus, identity, write_datastore

VOCABULARY = 300


def recording(number: int, key: str = "") -> Recording:
    """A recording whose output is the tokens 10 * number + 1 .. 10 * number + 4."""
    output = np.arange(10 * number + 1, 10 * number + 5, dtype=np.int32)
    prompt = np.array([200 + number, 9], np.int32)
    return Recording("all", number, prompt, output, np.zeros((0, 0), np.int32), key)


@pytest.mark.parametrize(
    ("order", "held"),
    [
        (in_turn, [[], [0], [0, 1]]),
        (among_others, [[2], [2], [0, 1]]),
    ],
)
def test_a_live_datastore_holds_what_each_order_says(
    order: Callable[..., Any], held: list[list[int]]
) -> None:
    recordings = [recording(0, "task/1"), recording(1, "task/1"), recording(2)]
    with new_live_datastore(identity(VOCABULARY)) as live:

        def held_now() -> list[int]:
            return [
                number for number in range(3) if live.count([9, 10 * number + 1, 10 * number + 2])
            ]

        replayed = []
        for one, known in order(recordings, live):
            assert [recordings.index(other) for other in known] == held_now()
            replayed.append((one, held_now()))
        assert replayed == list(zip(recordings, held, strict=True))


def bench_replay(tmp_path: Path, *options: object) -> Any:
    out = tmp_path / "known.json"
    status, shown = run(
        "bench", "replay", "--datastore", tmp_path, "--max-nodes", 4, *options, "--out", out
    )
    assert status == 0, shown
    return json.loads(out.read_text())["results"]["known"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A datastore, and 20 recordings of the same text after other prompts."""
    text = [1, 2, 3, 4, 5, 6, 7, 8] * 4
    write_datastore(tmp_path, Corpus(VOCABULARY, [[[50, 51, 52]]]))
    rows = [{"prompt": [100 + number], "output": text, "set": "a"} for number in range(20)]
    (tmp_path / "recordings.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_the_command_writes_a_row_for_all_that_is_remembered(folder: Path) -> None:
    rows = bench_replay(folder, "--recordings", folder / "recordings.jsonl", "--history")
    figures = {(row["datastores"], row["remembered"]): row["M"] for row in rows}
    assert set(figures) == {
        (with_stores, name) for with_stores in (True, False) for name in ("nothing", *OTHERS)
    }
    for with_stores in (True, False):
        assert figures[with_stores, "all of other tasks"] > 1.2 * figures[with_stores, "nothing"]


def test_files_are_remembered_one_beside_the_other_but_never_what_is_replayed(folder: Path) -> None:
    fresh = folder / "fresh.jsonl"
    same = folder / "recordings.jsonl"
    text = list(range(20, 60))
    (folder / "replayed.jsonl").write_text(json.dumps({"prompt": [1], "output": text}) + "\n")
    fresh.write_text(
        (folder / "replayed.jsonl").read_text()
        + json.dumps({"prompt": [2], "output": text[:20]})
        + "\n"
    )
    recordings = ["--recordings", folder / "replayed.jsonl"]
    rows = bench_replay(folder, *recordings, "--history-from", same, "--history-from", fresh)
    figures = {row["remembered"]: row["M"] for row in rows if row["datastores"]}
    assert list(figures) == ["nothing", "recordings.jsonl", "recordings.jsonl and fresh.jsonl"]
    assert figures["recordings.jsonl"] < 1.1 * figures["nothing"], "another text"
    assert 1.5 < figures["recordings.jsonl and fresh.jsonl"] < 4, (
        "half of the text, and not the replayed recording"
    )


def test_what_is_remembered_of_the_same_task_is_searched_first_and_alone(folder: Path) -> None:
    text = list(range(20, 60))
    replayed = folder / "replayed.jsonl"
    known = folder / "known.jsonl"
    replayed.write_text(json.dumps({"prompt": [1], "output": text, "set": "a", "id": "x"}) + "\n")
    others = [
        {"prompt": [2], "output": list(range(60, 90)), "set": "a", "id": f"y{number}"}
        for number in range(9)
    ]
    same = {"prompt": [3], "output": text, "set": "a", "id": "x", "run": 1}
    known.write_text("".join(json.dumps(row) + "\n" for row in (*others, same)))
    rows = bench_replay(folder, "--recordings", replayed, "--history-from", known, "--groups")
    figures = {row["remembered"]: row["M"] for row in rows if not row["datastores"]}
    first, alone = (f"known.jsonl, the same task {which}" for which in ("first", "alone"))
    assert list(figures) == ["nothing", "known.jsonl", first, alone]
    assert figures[first] >= figures[alone] > 1.5 * figures["nothing"]
