"""What the README says is true: its commands exist, and its Python runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import rest_store
from rest_store.cli import main
from tests.shared.models import byte_level_bpe
from tests.shared.strategies import Corpus, write_datastore

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
    command = words[1:3] if words[1] == "bench" else words[1:2]
    shown = CliRunner().invoke(main, [*command, "--help"]).output
    assert {word for word in words if word.startswith("--")} <= set(re.findall(r"--[a-z-]+", shown))


def test_the_python_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo" / "python.ds").mkdir(parents=True)
    write_datastore(tmp_path / "demo" / "python.ds", Corpus(49_152, [[[327, 335, 281, 2155, 24, 7, 8], [335, 281, 9]]]))
    (_, example) = (block for language, block in BLOCKS if language == "python")
    names: dict[str, object] = {}
    exec(example, names)
    assert names["store"].longest_suffix_match(names["context"]) == rest_store.SuffixMatch(5, 1)  # type: ignore[attr-defined]
    tree = names["tree"]
    assert isinstance(tree, rest_store.TokenTree)
    assert np.array_equal(tree.tokens, [7, 8])


def test_the_example_of_generation_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=byte_level_bpe(), eos_token="<|endoftext|>")
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4
    )
    tokenizer.save_pretrained("model")
    LlamaForCausalLM(config).save_pretrained("model")
    Path("text.txt").write_text("def fibonacci(n):\n    return n\n" * 20)
    build = ["build", "--corpus", "text.txt", "--tokenizer", "model", "--out", "demo/python.ds"]
    assert CliRunner().invoke(main, build).exit_code == 0
    (example, _) = (block for language, block in BLOCKS if language == "python")
    assert example.count("HuggingFaceTB/SmolLM2-135M-Instruct") == 1
    names: dict[str, Any] = {}
    exec(example.replace("HuggingFaceTB/SmolLM2-135M-Instruct", "model"), names)
    model, inputs = names["model"], names["inputs"]
    assert names["output"].tolist() == model.generate(**inputs, max_new_tokens=64).tolist()
    assert capsys.readouterr().out.startswith("def fibonacci(n):")


def test_the_source_of_contributing_drafts() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    names: dict[str, Any] = {}
    exec(example, names)
    assert names["tree"].tokens.tolist()[:1] == [7]


@pytest.mark.parametrize("path", re.findall(r"\]\(((?!https?:)[^)#]+)\)", README))
def test_links_lead_somewhere(path: str) -> None:
    assert (ROOT / path).exists()


def test_the_reference_has_every_public_name() -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "reference").glob("*.md"))
    named = set(re.findall(r"^::: rest_store\.(\w+)$", pages, re.MULTILINE))
    assert set(rest_store.__all__) - {"__version__", "RestStoreError"} <= named


def test_every_metric_is_named() -> None:
    source = (Path(rest_store.__file__).parent / "service" / "server" / "metrics.py").read_text(encoding="utf-8")
    names = re.findall(r'MetricFamily\(\s*"(rest_store_\w+)"', source)
    assert len(names) > 10
    assert [name for name in names if f"`{name}" not in README] == []
