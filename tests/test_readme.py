"""What the README says is true: its commands exist, and its Python runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from strategies import Corpus, write_datastore

import rest_store
from rest_store.cli import main

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", README, re.DOTALL)


def commands(program: str) -> list[list[str]]:
    lines = [line.strip("$ ") for language, block in BLOCKS if not language for line in block.splitlines()]
    return [shlex.split(line, comments=True) for line in lines if line.startswith(program + " ")]


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {words[1] for words in commands("make")} | set(re.findall(r"`make (\w+)`", README))
    assert {"demo", "test", "lint", "bench", "sanitize"} <= named <= targets


def test_the_test_command_of_ci_is_the_readmes() -> None:
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize(
    "words", commands("rest-store") + [["rest-store", "build", *w[1:]] for w in commands("rest-build")]
)
def test_commands_take_the_options_shown(words: list[str]) -> None:
    shown = CliRunner().invoke(main, [words[1], "--help"]).output
    assert {word for word in words if word.startswith("--")} <= set(re.findall(r"--[a-z-]+", shown))


def test_the_python_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo" / "python.ds").mkdir(parents=True)
    write_datastore(tmp_path / "demo" / "python.ds", Corpus(49_152, [[[327, 335, 281, 2155, 24, 7, 8], [335, 281, 9]]]))
    (example,) = (block for language, block in BLOCKS if language == "python")
    names: dict[str, object] = {}
    exec(example, names)
    assert names["store"].longest_suffix_match(names["context"]) == rest_store.SuffixMatch(5, 1)  # type: ignore[attr-defined]
    tree = names["tree"]
    assert isinstance(tree, rest_store.TokenTree)
    assert np.array_equal(tree.tokens, [7, 8])


@pytest.mark.parametrize("path", re.findall(r"\]\(((?!https?:)[^)#]+)\)", README))
def test_links_lead_somewhere(path: str) -> None:
    assert (ROOT / path).exists()
