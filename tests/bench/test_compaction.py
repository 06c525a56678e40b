"""`bench replay --compact`: prompts that have lost their middle, with and without an archive."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rest_store.bench.compaction import KEPT_FIRST, WHOLE, contexts
from rest_store.bench.recordings import Recording
from tests.shared.commands import run
from tests.shared.strategies import Corpus, write_datastore

VOCABULARY = 8_000
CUT = np.arange(3_000, 3_400)  # a text in the middle of a prompt, which the output copies
NEVER_SEEN = np.arange(5_000, 5_400)


def prompt() -> np.ndarray[Any, Any]:
    """A text of 1,600 tokens, the text that is cut, and 200 last tokens."""
    return np.concatenate([np.arange(1_600), CUT, np.arange(7_000, 7_200)])


def recording(top_k: int = 0) -> Recording:
    size = prompt().size + CUT.size
    likely = np.arange(size * top_k, dtype=np.int32).reshape(size, top_k)
    return Recording(
        "all", 9, prompt().astype(np.int32), CUT.astype(np.int32), likely, key="task/1"
    )


def test_a_compaction_keeps_the_first_and_the_last_tokens_and_what_is_known_of_them() -> None:
    one = recording(top_k=2)
    whole, compacted, archived = contexts(100)
    assert whole.cut(one)[0] is one
    cut, references = compacted.cut(one)
    positions = [*range(KEPT_FIRST), *range(one.prompt.size - 100, one.prompt.size)]
    assert cut.prompt.tolist() == one.prompt[positions].tolist()
    assert cut.top_k.tolist() == one.top_k[[*positions, *range(one.prompt.size, 2_600)]].tolist()
    assert (cut.output.tolist(), references) == (one.output.tolist(), [])
    same, [archive] = archived.cut(one)
    assert same.prompt.tolist() == cut.prompt.tolist()
    assert archive.tolist() == one.prompt[KEPT_FIRST:-100].tolist()


@pytest.mark.parametrize("kept_last", [700, 701, 10_000])
def test_a_prompt_that_fits_is_left_alone(kept_last: int) -> None:
    one = recording()
    for context in (WHOLE, *contexts(kept_last)):
        assert context.cut(one) == (one, [])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A datastore of another text, a long recording and a short one."""
    write_datastore(tmp_path, Corpus(VOCABULARY, [[NEVER_SEEN.tolist()]]))
    lines = [
        {"prompt": prompt().tolist(), "output": CUT.tolist(), "set": "a"},
        {"prompt": [1, 2, 3], "output": [4, 5, 6], "set": "a"},
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "recordings.jsonl").write_text(text)
    return tmp_path


def bench_replay(folder: Path, *options: object) -> tuple[int, str]:
    recordings = folder / "recordings.jsonl"
    return run(
        *("bench", "replay", "--datastore", folder, "--recordings", recordings),
        *("--max-nodes", 4, "--no-ablations", *options),
    )


def test_the_command_shows_the_cost_of_a_compaction_and_an_archive_that_makes_up_for_it(
    folder: Path,
) -> None:
    out = folder / "compacted.json"
    status, shown = bench_replay(folder, "--compact", 150, "--history", "--out", out)
    assert status == 0, shown
    assert "prompts too short to be cut: 1" in shown
    results = json.loads(out.read_text())["results"]
    assert results["reported"] == 1
    figures = {
        row["context"]: row["M"]
        for row in results["known"]
        if row["remembered"] == "nothing" and not row["datastores"]
    }
    assert list(figures) == ["whole", "compacted", "compacted, with an archive"]
    assert figures["compacted"] < 1.1, "the text is nowhere"
    assert figures["whole"] > 4
    assert figures["compacted, with an archive"] > 0.98 * figures["whole"]
    assert {row["remembered"] for row in results["known"]} > {"nothing", "those before it"}


def test_prompts_of_which_none_is_cut_are_refused(folder: Path) -> None:
    status, shown = bench_replay(folder, "--compact", 5_000)
    assert status == 1
    assert "number of prompts with more than 6,500 tokens is 0" in shown
