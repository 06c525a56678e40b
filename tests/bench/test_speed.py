"""`rest-store bench speed`: the methods, the decoding, and the prompts."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from rest_store.bench import speed
from rest_store.bench.prompts import Prompt, chat_tokens
from rest_store.bench.recordings import FIT_FOLDS, fold_number
from rest_store.bench.results import file_hash, read_results
from rest_store.drafting.calibration import Calibration
from rest_store.errors import DataFileError, SourceError
from tests.shared.commands import run
from tests.shared.strategies import ONE_TO_NINE, open_datastore, refused
from tests.shared.tiny import write_model

OURS = ["no drafts", "DraftSession"]
THEIRS = ["transformers prompt lookup"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, a datastore and recordings."""
    folder = tmp_path_factory.mktemp("speed")
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
    rows = [
        {"set": "humaneval-raw", "id": f"HumanEval/{n}", "prompt": [5, 6, n], "output": [8]}
        for n in range(60)
    ]
    (folder / "traces.jsonl").write_text("\n".join(map(json.dumps, rows)))
    prompts = [
        {"category": "qa", "question_id": n, "turns": [f"What is {n}?", "and?"]} for n in range(3)
    ]
    (folder / "questions.jsonl").write_text("\n".join(map(json.dumps, prompts)))
    return folder


def test_all_methods_sample_from_the_same_seeds_and_ours_write_the_plain_text(
    folder: Path, tmp_path: Path
) -> None:
    command = [
        "bench",
        "speed",
        "--model",
        folder / "model",
        "--recordings",
        folder / "traces.jsonl",
    ]
    command += ["--max-new-tokens", 12]
    command += [
        "--prompts",
        folder / "questions.jsonl",
        "--datastore",
        folder / "ds",
        "--per-family",
        2,
    ]
    command += ["--sampling", "nucleus", "--prepacked-weights"]
    methods = [word for name in (*THEIRS, *OURS) for word in ("--method", name)]
    status, shown = run(*command, *methods, "--out", tmp_path / "speed_nucleus.json")
    assert status == 0, shown
    result = read_results(tmp_path)["speed_nucleus"]
    families = result.figures["families"]
    assert set(families) == {"humaneval-raw", "qa", "all"}
    assert set(families["all"]) == {"plain", *THEIRS, *OURS}
    for name in OURS:
        assert families["all"][name]["identical"] == 1, name
        assert families["all"][name]["prompts"] == 4
    assert [one["seed"] for one in result.figures["prompts"]] == list(range(4))
    assert Counter(one["family"] for one in result.figures["prompts"]) == dict.fromkeys(
        set(families) - {"all"}, 2
    )
    assert result.figures["sampling"]["humaneval-raw"] == {
        "do_sample": True, "top_k": 0, "temperature": 0.8, "top_p": 0.95,
    }  # fmt: skip
    assert result.figures["sampling"]["qa"] == {
        "do_sample": True,
        "top_k": 0,
        "temperature": 0.7,
        "top_p": 0.8,
    }


def test_greedy_decoding_of_all_methods_writes_the_plain_text(folder: Path, tmp_path: Path) -> None:
    command = [
        "bench",
        "speed",
        "--model",
        folder / "model",
        "--recordings",
        folder / "traces.jsonl",
    ]
    command += ["--max-new-tokens", 12]
    command += ["--datastore", folder / "ds", "--per-family", 1]
    status, shown = run(*command, "--out", tmp_path / "speed.json")
    assert status == 0, shown
    figures = read_results(tmp_path)["speed"].figures
    methods = {"plain", *OURS, *THEIRS}
    assert {
        name: one["identical"] for name, one in figures["families"]["all"].items()
    } == dict.fromkeys(methods, 1)
    assert figures["sampling"] == {"kind": "greedy", "humaneval-raw": {"do_sample": False}}
    assert figures["families"]["all"]["plain"]["mean_tokens"] == 1
    session = figures["families"]["all"]["DraftSession"]
    assert session["low"] <= session["speedup"] <= session["high"]


class Timed:
    """Stands in for texts and the clock: each text takes the seconds of its method.

    Attributes:
        written: names of methods and first tokens of prompts, in order, warm-ups first.
        made: how often methods were made.
        lines: lines of progress.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **seconds: float) -> None:
        self.written: list[tuple[str, int]] = []
        self.made = 0
        self.lines: list[str] = []
        self._seconds = seconds
        self._now = 0.0
        monkeypatch.setattr(speed, "write", self._write)
        monkeypatch.setattr(speed.time, "perf_counter", lambda: self._now)

    def _write(self, model: Any, method: Any, prompt: list[int], *settings: Any) -> dict[str, Any]:
        self.written.append((method["name"], prompt[0]))
        took = self._seconds[method["name"]]
        if len(self.written) > len(self._seconds):  # no warm-up
            self._now += took
        return {"seconds": took, "passes": 2, "written": [1, 2], "tokens": 2}

    def measure(self, max_seconds: float | None) -> dict[str, Any]:
        def methods() -> dict[str, Any]:
            self.made += 1
            return {name: {"name": name} for name in self._seconds}

        prompts = [Prompt("a", "x", [7]), Prompt("b", "y", [8])]
        settings: dict[str, Any] = {
            "max_new_tokens": 2,
            "max_seconds": max_seconds,
            "progress": self.lines.append,
        }
        return speed.measure_speed(None, methods, prompts, **settings)


def test_rounds_are_repeated_until_it_is_certain_and_methods_take_turns(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timed = Timed(monkeypatch, plain=3.0, drafted=1.5)
    results = timed.measure(60.0)
    assert results["rounds"]["drafted"] == {"median": 2.0, "low": 2.0, "high": 2.0, "pairs": 4}
    assert results["families"]["b"]["drafted"]["median_speedup"] == 2
    written = timed.written[2:]
    assert len(written) == 4 * 2 * 2
    assert [name for name, _ in written[:4]] == ["drafted", "plain", "plain", "drafted"], (
        "each begins with another one"
    )
    assert timed.made == 5, "no method learns from an earlier round"
    assert timed.lines[:2] == [
        "round 1, prompt 1/2 (a), drafted: 1.5 s, 58 s left at most",
        "round 1, prompt 1/2 (a), plain: 3.0 s, 56 s left at most",
    ]


def test_the_time_is_looked_at_after_each_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    within_a_round = Timed(monkeypatch, plain=30.0, drafted=10.0)
    results = within_a_round.measure(100.0)  # a round takes 80 seconds
    assert len(within_a_round.written) == 2 + 4 + 2, (
        "it ends after the first prompt of the second round"
    )
    assert results["rounds"]["drafted"] == {"median": 3.0, "low": 3.0, "high": 3.0, "pairs": 1}, (
        "which does not count"
    )
    assert len(results["prompts"]) == 2
    slow = Timed(monkeypatch, plain=300.0, drafted=100.0)
    results = slow.measure(100.0)
    assert len(slow.written) == 2 + 2, "of the first round, one prompt"
    assert [one["family"] for one in results["prompts"]] == ["a"]
    assert set(results["families"]) == {"a", "all"}
    assert results["rounds"]["drafted"]["pairs"] == 1
    unlimited = Timed(monkeypatch, plain=300.0, drafted=100.0)
    assert len(unlimited.measure(None)["prompts"]) == 2
    assert len(unlimited.written) == 2 + 4, "one round, however long it takes"
    assert unlimited.lines[0] == "round 1, prompt 1/2 (a), drafted: 100.0 s"


def test_all_of_ones_own_prompts_are_taken(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("for i in\ndef add\n")
    command = [
        "bench",
        "speed",
        "--model",
        folder / "model",
        "--max-new-tokens",
        2,
        "--method",
        "DraftSession",
    ]
    command += [
        "--prompts",
        tmp_path / "prompts.txt",
        "--chat",
        "--recordings",
        folder / "traces.jsonl",
    ]
    status, shown = run(*command, "--out", tmp_path / "speed.json")
    assert status == 0, shown
    assert "62 prompts\n" in shown, "nothing is held back"
    assert read_results(tmp_path)["speed"].figures["families"]["all"]["plain"]["prompts"] == 62
    own = Calibration.default()
    own.provenance["data"] = [file_hash(folder / "traces.jsonl")]
    own.save(tmp_path / "own.calibration")
    known = sum(fold_number(f"HumanEval/{number}") < FIT_FOLDS for number in range(60))
    status, shown = run(*command, "--calibration", tmp_path / "own.calibration", "--per-family", 1)
    assert status == 0, shown
    assert f"2 prompts; left out: {known} that the calibration was fitted to\n" in shown
    other = tmp_path / "prompts.txt"
    status, shown = run(*command, "--calibration", other)
    assert (
        status,
        f"Error: {other}: this is no calibration file\n" in shown,
    ) == (1, True)


def test_what_cannot_be_compared_is_refused(folder: Path, tmp_path: Path) -> None:
    refused(
        DataFileError, lambda: speed.make_methods([], max_nodes=4, only=["magic"]), "magic", "plain"
    )
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    tokenizer.chat_template = None
    refused(
        DataFileError,
        lambda: chat_tokens(tokenizer, "a"),
        "chat template is absent",
        str(folder / "model"),
    )
    command = ["bench", "speed", "--model", folder / "model"]
    assert run(*command)[0] == 2
    command += ["--recordings", folder / "traces.jsonl"]
    status, shown = run(*command, "--method", "magic")
    assert (status, "'magic', expected one of 'plain'" in shown) == (1, True), shown
    stores = [open_datastore(tmp_path, ONE_TO_NINE) for _ in range(7)]
    refused(
        SourceError,
        lambda: speed.make_methods(stores, max_nodes=16),
        "7 datastores, services and grammars among the sources",
    )
