"""`rest-store try --transcripts`: M and a verdict for each source from transcripts of agents."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from build_index.documents import CorpusCounts
from rest_store.bench import transcript_trial
from rest_store.bench.replay import Outcome, Replayed
from rest_store.bench.transcript_trial import TranscriptTrial, conversations_in
from rest_store.cli import main
from tests.shared.agents import transcript
from tests.shared.models import CHATML, byte_level_bpe

transformers = pytest.importorskip("transformers")

WORDS = [
    "open",
    "read",
    "edit",
    "run",
    "test",
    "file",
    "line",
    "all",
    "find",
    "plan",
    "call",
    "see",
]


def answer(number: int) -> str:
    """An answer of 40 words, the same for the same number alone."""
    return " ".join(f"{WORDS[(place * (number + 3)) % 12]} {number}" for place in range(20))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer with a chat template, as a model's directory has it."""
    directory = tmp_path_factory.mktemp("model")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=byte_level_bpe(), eos_token="<|im_end|>"
    )
    tokenizer.chat_template = CHATML
    tokenizer.save_pretrained(directory)
    return directory


def write(folder: Path, *sessions: list[int]) -> Path:
    """Write a transcript for each session, in order, with the answers of these numbers."""
    folder.mkdir()
    for order, numbers in enumerate(sessions):
        path = folder / f"{9 - order}.jsonl"
        path.write_text(transcript(*map(answer, numbers), session=f"s{order}"))
        os.utime(path, (1_000 + order, 1_000 + order))
    return folder


def tried(transcripts: Path, model: Path, *options: object) -> Result:
    words = ["try", "--model", model, "--transcripts", transcripts, *options]
    return CliRunner().invoke(main, [*map(str, words)])


def test_a_session_that_writes_as_an_earlier_one_gains_from_what_was_written(
    tmp_path: Path, model: Path
) -> None:
    folder = write(tmp_path / "sessions", [1, 2, 3], [4, 5], [2, 3, 1])
    done = tried(folder, model, "--json")
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert (facts["conversations"], facts["answers"]) == (3, 5), "the first has no memory"
    means = {name: outcome["M"] for name, outcome in facts["outcomes"].items()}
    assert list(means) == ["prompt lookup alone", "all sources", "without written", "without read"]
    assert means["all sources"] > 1.3 * means["prompt lookup alone"]
    assert means["all sources"] > 1.3 * means["without written"]
    assert "written, the answers of earlier conversations, raised M" in facts["verdict"]
    assert "read, the other texts of earlier conversations, " in facts["verdict"]
    shown = tried(folder, model)
    assert shown.stdout.splitlines()[-1] == facts["verdict"]


def test_a_conversation_that_was_copied_is_replayed_once(tmp_path: Path) -> None:
    folder = write(tmp_path / "sessions", [1, 2], [1, 2, 3], [1, 2, 3])
    conversations = conversations_in(str(folder), CorpusCounts())
    assert [len(one.answers) for one in conversations] == [2, 1]
    last = conversations[-1].answers[0]
    assert len(last.messages) == 6, "with all that is before it"
    assert last.messages[-1][1] == answer(3)
    assert [len(one.remembered["written"]) for one in conversations] == [2, 1]


def test_the_last_answers_are_replayed(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transcript_trial, "MAX_ANSWERS", 3)
    folder = write(tmp_path / "sessions", [1, 2, 3], [4, 5], [6, 7])
    assert json.loads(tried(folder, model, "--json").stdout)["answers"] == 3


def test_one_conversation_is_replayed_without_a_memory(tmp_path: Path, model: Path) -> None:
    done = tried(write(tmp_path / "sessions", [1, 1, 2]), model)
    assert done.exit_code == 0, done.output
    assert "There is one conversation: memory helps from the second one on." in done.stdout
    assert "written" not in done.stdout


def test_a_corpus_is_a_source_too(tmp_path: Path, model: Path) -> None:
    folder = write(tmp_path / "sessions", [1], [2])
    (tmp_path / "notes.txt").write_text(answer(2))
    corpus = ["--corpus", tmp_path / "notes.txt", "--out", tmp_path / "out"]
    done = tried(folder, model, *corpus, "--json")
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert [*facts["outcomes"]][2:] == ["without written", "without read", "without corpus"]
    assert "corpus, the text of --corpus, raised M from " in facts["verdict"]


@pytest.mark.parametrize(
    ("options", "status", "message"),
    [
        ([], 2, "--corpus and --prompts are needed, or --transcripts"),
        (["--corpus", "x"], 2, "--corpus and --prompts are needed, or --transcripts"),
        (["--prompts", "x", "--transcripts", "y"], 2, "exclude each other"),
        (["--transcripts", "absent"], 1, "absent: corpus is absent"),
    ],
)
def test_faults_are_said_in_one_line(
    options: list[str], status: int, message: str, model: Path
) -> None:
    done = CliRunner().invoke(main, ["try", "--model", str(model), *options])
    assert done.exit_code == status
    assert message in done.stderr.splitlines()[-1]


def test_files_without_an_answer_are_refused(tmp_path: Path, model: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "a.py").write_text("x = 1\n")
    done = tried(tmp_path / "tree", model)
    assert done.exit_code == 1
    assert "number of answers in transcripts is 0" in done.stderr


@pytest.mark.parametrize(
    ("without", "expected"),
    [
        (2.0, "written, the answers of earlier conversations, raised M from 2.00 to 2.50."),
        (2.52, "written, the answers of earlier conversations, brought nothing: M is 2.50 with"),
        (2.7, "written, the answers of earlier conversations, did harm: M is 2.50 with it and"),
    ],
)
def test_the_verdict_says_what_is_so(without: float, expected: str) -> None:
    def outcome(mean: float) -> Outcome:
        return Outcome([Replayed("all", round(mean * 100), 100)])

    trial = TranscriptTrial(4, 9, outcome(1.8), outcome(2.5), {"written": outcome(without)})
    assert expected in trial.verdict()
