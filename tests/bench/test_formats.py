"""The formats of recordings, and speeds that `rest-store bench replay` models by a cost model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from rest_store.bench.cost_model import Batch, CostModel, DrafterCosts
from rest_store.bench.recorded_drafters import beside_heads, replay_beside, replay_other
from rest_store.bench.recordings import Recording, read_recordings
from rest_store.bench.replay import replay
from rest_store.cli import main
from rest_store.datastore.datastore import Datastore
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.sources import PromptLookup
from rest_store.errors import DataFileError
from tests.shared.strategies import Corpus, refused, write_datastore

COSTS = {
    "fixed": 0.006,
    "overhead": 0.001,
    "cached_token": 1e-8,
    "verified_token": 2e-5,
    "source": "a test",
}
LINE = [1, 2, 3, 4, 5] * 8


def read(tmp_path: Path, *lines: Any) -> list[Recording]:
    path = tmp_path / "recordings.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return read_recordings(path, lambda prompt, answer: ([len(prompt)], [len(answer)]))


def test_each_turn_of_a_trace_is_a_recording(tmp_path: Path) -> None:
    first, second = read(
        tmp_path, {"task": "a", "run": 2, "ids": [1, 2, 3, 4, 5, 6], "turns": [[2, 3], [5, 6]]}
    )
    assert (first.prompt.tolist(), first.output.tolist()) == ([1, 2], [3])
    assert (second.prompt.tolist(), second.output.tolist()) == ([1, 2, 3, 4, 5], [6])
    assert (first.key, first.fold) == (second.key, second.fold) == ("a", first.fold)


def test_each_answer_of_a_conversation_is_a_recording(tmp_path: Path) -> None:
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "u"}]},
        {"role": "assistant", "content": "four"},
        {"role": "user", "content": "again"},
        {"role": "assistant", "content": None, "tool_calls": []},
        {"role": "assistant", "content": "last one"},
    ]
    first, second = read(tmp_path, {"messages": messages})
    # Messages before, characters.
    assert (first.prompt.tolist(), first.output.tolist()) == ([2], [4])
    assert (second.prompt.tolist(), second.output.tolist()) == ([4], [8])
    assert first.key == second.key != ""
    (tmp_path / "other").mkdir()
    [shorter, _, other] = read(
        tmp_path / "other",
        {"messages": messages[:3]},
        {"messages": messages[3:6]},
        {"messages": messages[1:3]},
    )
    assert shorter.fold == other.fold == first.fold, "whatever its file and line are"


@pytest.mark.parametrize("nested", [False, True])
def test_each_choice_of_a_servers_log_is_a_recording(tmp_path: Path, nested: bool) -> None:
    messages = [{"role": "user", "content": "u"}, {"role": "assistant", "content": "earlier"}]
    messages += [{"role": "user", "content": "again"}]
    written = ("four", None, "fives", [{"type": "refusal", "refusal": "no"}])
    answers: Any = {
        "choices": [{"message": {"role": "assistant", "content": content}} for content in written]
    }
    request: Any = {"model": "m", "messages": messages}
    line = {"request": request, "response": answers} if nested else {**request, **answers}
    recordings = read(tmp_path, line)
    assert [(one.prompt.tolist(), one.output.tolist()) for one in recordings] == [
        ([3], [4]),
        ([3], [5]),
    ]
    assert {one.family for one in recordings} == {"m"}
    assert read(tmp_path, {"messages": [], **answers}) == [], "an answer to nothing"


def test_other_drafters_are_replayed_from_their_acceptance(tmp_path: Path) -> None:
    row = {
        "set": "x",
        "id": "1",
        "prompt": [1],
        "output": [2, 3, 4, 5],
        "eagle": [3, 1, 1, 1],
        "ngram": None,
    }
    (recording,) = read(tmp_path, row)
    assert recording.drafters.keys() == {"eagle"}
    model = CostModel(
        1.0, 0.5, 0.0, 0.25, {"eagle": DrafterCosts(fixed=0.1, draft_token=0.01)}, "a test"
    )
    for length, steps in ((1, 3), (2, 2), (9, 2)):
        (replayed,) = replay_other([recording], "eagle", Batch(model, 2), length).replays
        assert (replayed.steps, replayed.tokens, replayed.drafted) == (steps, 4, steps * length)
        assert replayed.modelled == pytest.approx(
            steps * (1.5 + 2 * 0.25 * (1 + length) + 0.1 + 2 * 0.01 * length)
        )
        assert replayed.plain == pytest.approx(4 * (1.5 + 2 * 0.25))


def test_a_session_beside_a_head_is_as_fast_as_the_better_of_both(tmp_path: Path) -> None:
    """Half of each output repeats what the session knows.

    The head is right about three tokens everywhere.
    """
    write_datastore(tmp_path, Corpus(300, [[LINE]]))
    chance = np.random.default_rng(0)
    new = [chance.integers(6, 300, 60).tolist() for _ in range(8)]
    rows = [{"prompt": [1, 2], "output": LINE + other, "eagle": [4] * 100} for other in new]
    recordings = read(tmp_path, *rows)
    model = CostModel(0.006, 0.001, 0.0, 2e-5, {"eagle": DrafterCosts(fixed=0.002)}, "a test")
    batch = Batch(model, 1, drafting=1e-4)
    sources = [Datastore.open(tmp_path)]
    calibration = Calibration.default()
    alone = replay(recordings, [*sources, PromptLookup()], calibration, max_nodes=32, batch=batch)
    head = max(
        replay_other(recordings, "eagle", batch, length).modelled_speeds[0]
        for length in range(1, 21)
    )
    beside = replay_beside(recordings, sources, calibration, "eagle", batch, 32)
    assert beside.tokens == alone.tokens
    assert beside.steps < min(alone.steps, replay_other(recordings, "eagle", batch, 20).steps)
    assert beside.modelled_speeds[0] > max(head, alone.modelled_speeds[0])
    [(_, row)] = beside_heads(recordings, sources, calibration, [batch], 32)
    assert row["modelled_speed_median"] == round(beside.modelled_speeds[0], 4)
    assert 0.5 < row["share_of_oracle"] < 1.2


def test_costs_are_those_of_the_formula() -> None:
    batch = Batch(CostModel(3.0, 2.0, 0.1, 0.5, {}, "a test"), 4, drafting=0.25)
    assert batch.costs(10, 2).tolist() == pytest.approx([5 + 4 * (1 + 0.5 * n) for n in (1, 2, 3)])
    assert batch.step(10, 2, measured=9.0) == pytest.approx(5 + 4 * (1 + 1.5) + 4 * 0.25)
    assert batch.plain(10, 13) == pytest.approx(
        sum(batch.time(cached, 1) for cached in (10, 11, 12))
    )


@pytest.mark.parametrize(
    ("line", "fragment"),
    [
        ({"ids": [1, 2], "turns": [1]}, "types"),
        ({"ids": [1, 2], "turns": [["a", 2]]}, "types"),
        ({"messages": ["a"]}, "types"),
        ({"messages": [{"content": "a"}]}, "types"),
        ({"prompt": [1], "output": [2, 3], "eagle": [1]}, "length"),
        ({"prompt": [1], "output": [2], "eagle": [0]}, "types"),
    ],
)
def test_lines_of_other_formats_are_refused(tmp_path: Path, line: Any, fragment: str) -> None:
    refused(DataFileError, lambda: read(tmp_path, line), "line 1", fragment)


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        "{}",
        json.dumps({**COSTS, "fixed": -1}),
        json.dumps({**COSTS, "drafters": {"a": {"b": 1}}}),
    ],
)
def test_bad_cost_models_are_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "costs.json").write_text(content)
    refused(DataFileError, lambda: CostModel.read(tmp_path / "costs.json"), "cost model")
    refused(DataFileError, lambda: CostModel.read(tmp_path / "none"), "unreadable")
    (tmp_path / "costs.json").write_text('{"fixed": 1}')
    refused(
        DataFileError,
        lambda: CostModel.read(tmp_path / "costs.json"),
        "cost model's overhead is absent",
    )


def test_the_model_of_the_package_is_read() -> None:
    model = CostModel.read(Path(__file__).parents[2] / "benchmarks" / "costs_h100_llama31_8b.json")
    assert "2601.11580" in model.source
    assert 0.007 < Batch(model, 1).time(1000, 1) < 0.0075  # 140 tokens a second


def test_modelled_speeds_are_called_so(tmp_path: Path) -> None:
    write_datastore(tmp_path, Corpus(300, [[LINE]]))
    rows = [
        {"prompt": [9, number], "output": LINE, "set": "ab"[number % 2], "eagle": [2] * 40}
        for number in range(20)
    ]
    (tmp_path / "recordings.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "costs.json").write_text(json.dumps(COSTS))
    options = [
        "--recordings",
        tmp_path / "recordings.jsonl",
        "--datastore",
        tmp_path,
        "--batch",
        1,
        "--batch",
        64,
    ]
    options += [
        "--cost-model",
        tmp_path / "costs.json",
        "--drafting-us",
        50,
        "--out",
        tmp_path / "out.json",
    ]
    done = CliRunner().invoke(main, ["bench", "replay", *map(str, options)])
    assert done.exit_code == 0, done.output
    assert "speeds are modelled: a test; drafting 50 us a sequence" in done.output
    lines = [line for line in done.output.splitlines() if " M " in line and "nodes" in line]
    assert lines
    assert all("modelled speed" in line for line in lines)
    results = json.loads((tmp_path / "out.json").read_text())["results"]
    speed = {
        (row["datastores"], row["batch"], row["shape"]): row["modelled_speed_median"]
        for row in results["known"]
    }
    assert len(speed) == 8
    assert speed[True, 1, "tree"] > 3 > 1 < speed[True, 64, "chain"]
    assert [row["batch"] for row in results["other_drafters"]] == [1, 64]
    assert results["other_drafters"][0]["M"] == 2
    assert np.isfinite([row["modelled_speed_total"] for row in results["other_drafters"]]).all()
