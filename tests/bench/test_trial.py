"""`rest-store try`: the whole round with a tiny model, and the verdict."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from rest_store.bench import trial as trying
from rest_store.bench.results import read_results
from rest_store.bench.trial import Trial
from rest_store.cli import main
from rest_store.datastore.manifest import Manifest
from rest_store.generation.comparison import Speedup
from tests.shared.tiny import write_model

PROMPTS = [
    "for i in range(10):",
    "def add(first, second):",
    "What is a suffix array?",
    "import",
    "print(i",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, a corpus and prompts."""
    folder = tmp_path_factory.mktemp("trial")
    write_model(folder / "model")
    (folder / "corpus").mkdir()
    (folder / "corpus" / "code.py").write_text(
        "def add(first, second):\n    return first + second\n" * 20
    )
    (folder / "prompts.txt").write_text("\n".join(PROMPTS))
    return folder


@pytest.fixture(autouse=True)
def one_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trying, "_MAX_SECONDS", None)


def trial(folder: Path, *options: object) -> Any:
    words = [
        "--model",
        folder / "model",
        "--corpus",
        folder / "corpus",
        "--prompts",
        folder / "prompts.txt",
    ]
    words += ["--max-new-tokens", 8, *options]
    done = CliRunner().invoke(main, ["try", *map(str, words)])
    assert done.exit_code == 0, done.output
    return done


@pytest.fixture(scope="module")
def first(folder: Path) -> Any:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(trying, "_MAX_SECONDS", None)
        return trial(folder, "--out", folder / "out")


def test_one_command_builds_records_measures_and_writes_the_page(folder: Path, first: Any) -> None:
    out = folder / "out"
    assert Manifest.read(out / "datastore").document_count == 1
    assert len((out / "recordings.jsonl").read_text().splitlines()) == 5
    results = read_results(out / "results")
    assert set(results) == {"replay", "speed"}
    assert results["replay"].figures["reported"] == 5
    rows = {row["drafting"] for row in results["replay"].figures["rows"]}
    assert {
        "session",
        "session without datastore",
        "session, prompt lookup alone",
        "REST's rule, datastore",
    } <= rows
    methods = results["speed"].figures["families"]["all"]
    assert set(methods) == {"plain", "transformers prompt lookup", "DraftSession"}
    assert methods["DraftSession"]["prompts"] == 5
    assert methods["DraftSession"]["identical"] == 1
    assert "rest-store on model" in (out / "report.html").read_text(encoding="utf-8")
    *_, place, verdict = first.stdout.splitlines()
    assert place.startswith(f"{out}/report.html: ")
    assert verdict.startswith("5 prompts, drafts of all sources beside plain generation: ")
    ranges = results["speed"].figures["rounds"]
    assert f"{ranges['DraftSession']['median']:.2f} times as fast in 1 pair of runs" in verdict
    shown = re.search(r"DraftSession +([\d.]+ \([\d.]+ to [\d.]+);", first.stdout)
    assert shown is not None
    ours = ranges["DraftSession"]
    figures = f"{ours['median']:.2f} ({ours['low']:.2f} to {ours['high']:.2f}"
    assert shown[1] == figures, "the table has the figures of the verdict"
    assert ranges["DraftSession"]["pairs"] == ranges["transformers prompt lookup"]["pairs"] == 1
    for step in (
        "building",
        "model: ",
        "recording 5 outputs",
        "5/5 all",
        "replaying",
        "timing",
        "round 1, prompt 5/5 (all), plain: ",
    ):
        assert step in first.stderr, "progress"


def test_a_datastore_of_the_same_corpora_is_used_again(folder: Path, first: Any) -> None:
    assert "datastore: building" in first.stderr
    done = trial(folder, "--out", folder / "out", "--json")
    assert f"datastore: {folder}/out/datastore, as built before" in done.stderr
    facts = json.loads(done.stdout)
    assert facts["verdict"].endswith(".")
    assert facts["prompts"] == 5
    assert Path(facts["page"]).exists()
    other = folder / "prompts.txt"
    assert "datastore: building" in trial(folder, "--corpus", other, "--out", folder / "out").stderr


def test_what_it_writes_is_no_part_of_its_own_corpus(folder: Path, tmp_path: Path) -> None:
    corpus = shutil.copytree(folder / "corpus", tmp_path / "corpus")
    shutil.copy(folder / "prompts.txt", corpus)
    for _ in range(2):
        done = trial(
            folder, "--corpus", corpus, "--prompts", corpus / "prompts.txt", "--out", corpus / "out"
        )
    assert "as built before" in done.stderr
    assert Manifest.read(corpus / "out" / "datastore").document_count == 1, (
        "the same text is in both corpora"
    )


@pytest.mark.parametrize(
    ("words", "fragment"),
    [
        (["--corpus", "none"], "none: corpus is absent"),
        (["--model", "none.gguf"], "none.gguf: tokenizer is absent"),
        (["--prompts", "none.txt"], "none.txt: file is unreadable"),
    ],
)
def test_faults_are_said_in_one_line(
    words: list[str], fragment: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    common = {
        "--model": folder / "model",
        "--corpus": folder / "corpus",
        "--prompts": folder / "prompts.txt",
    }
    options = {**common, words[0]: words[1]}
    done = CliRunner().invoke(
        main, ["try", *(str(word) for pair in options.items() for word in pair)]
    )
    assert done.exit_code == 1
    assert done.stderr.splitlines()[-1].startswith(f"Error: {fragment}")


FIGURES = {
    **{"prompts": 5, "timed": 5, "other_texts": 0},
    **{
        "speedup": Speedup(1.94, 1.9, 1.98, 4),
        "prompt_lookup_speedup": Speedup(1.41, 1.4, 1.42, 4),
    },
    **{"mean_tokens": 2.9, "without_datastore": 2.12},
}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (
            {},
            (
                "5 prompts, drafts of all sources beside plain generation: 1.94 times as fast (1.90"
                " to 1.98 in 4 pairs of runs). Prompt lookup alone, which transformers has, gives"
                " 1.41. In replays, the datastore raised M from 2.12 to 2.90."
            ),
        ),
        (
            {"speedup": Speedup(0.8, 0.78, 0.81, 4)},
            "Prompt lookup alone, which transformers has, gives more: 1.41.",
        ),
        (
            {"speedup": Speedup(2.6, 2.5, 3.26, 2)},
            (
                ": faster, 2.50 to 3.26 times as fast in 2 pairs of runs; how much is uncertain."
                " Prompt"
            ),
        ),
        (
            {"speedup": Speedup(1.4, 0.62, 1.9, 6)},
            (
                "this machine is too busy for a verdict: 0.62 to 1.90 times as fast in 6 pairs of"
                " runs (median 1.40). "
            ),
        ),
        (
            {"without_datastore": 2.91},
            "In replays, the datastore brought nothing: M is 2.90 with it and 2.91 without.",
        ),
        (
            {"without_datastore": 3.21},
            " In replays, the datastore did harm: M is 2.90 with it and 3.21 without.",
        ),
        (
            {"timed": 2, "speedup": Speedup(2.0, 2.0, 2.0, 1)},
            (
                "2 of 5 prompts, for which there was time, drafts of all sources beside plain"
                " generation: faster, 2.00 times as fast in 1 pair of runs; how much is uncertain. "
            ),
        ),
        ({"other_texts": 2}, ". 2 of the texts differ from plain generation's."),
    ],
)
def test_the_verdict_says_what_is_so(changed: dict[str, Any], expected: str) -> None:
    verdict = Trial(**{**FIGURES, **changed}).verdict()
    assert expected in verdict
