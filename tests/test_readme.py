"""What the documentation says is true: its commands, options, paths, links and metrics exist, and its Python runs."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import rest_store
from rest_store.cli import main
from rest_store.service.server.limits import Limits
from rest_store.service.server.metrics import Metrics
from rest_store.service.server.sessions import Sessions
from tests.shared.models import byte_level_bpe
from tests.shared.services import running
from tests.shared.strategies import Corpus, write_datastore

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*/README.md")]
}
README = PAGES["README.md"]


def blocks(page: str, language: str) -> list[str]:
    """Return the code blocks of a page in a language; "" for commands."""
    return [block for found, block in re.findall(r"```(\w*)\n(.*?)```", page, re.DOTALL) if found == language]


def commands(page: str, program: str) -> list[list[str]]:
    """Return the words of each command of `program` in a page's code blocks."""
    lines = [line for block in blocks(page, "") for line in block.replace("\\\n", " ").splitlines()]
    return [
        shlex.split(line, comments=True)
        for line in map(str.strip, lines)
        if line.removeprefix("$ ").startswith(program)
    ]


def words_of(program: str) -> list[list[str]]:
    """Return the commands of `program` in all pages, each once, without a prompt sign."""
    found = {tuple(words[words[0] == "$" :]) for page in PAGES.values() for words in commands(page, program + " ")}
    return [list(words) for words in sorted(found)]


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= 200


def test_make_targets_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    pages = "".join(PAGES.values())
    named = {words[1] for words in words_of("make")} | set(re.findall(r"`make ([\w-]+)`", pages))
    assert {"demo", "test", "lint", "docs", "proto", "bench", "sanitize"} <= named <= targets


def test_the_test_command_of_ci_is_the_readmes() -> None:
    assert ["make", "test"] in commands(README, "make ")
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize(
    "words", words_of("rest-store") + [["rest-store", "build", *words[1:]] for words in words_of("rest-build")]
)
def test_commands_take_the_options_shown(words: list[str]) -> None:
    command = words[1:3] if words[1] in ("bench", "live") else words[1:2]
    shown = CliRunner().invoke(main, [*command, "--help"])
    assert shown.exit_code == 0
    assert {word for word in words if word.startswith("--")} <= set(re.findall(r"--[a-z-]+", shown.output))


@pytest.mark.parametrize("words", [words for words in words_of("python") if words[1].startswith("benchmarks/")])
def test_scripts_take_the_options_shown(words: list[str]) -> None:
    main = importlib.import_module(Path(words[1]).stem).main
    command = words[2:3] if isinstance(main, click.Group) else []
    shown = CliRunner().invoke(main, [*command, "--help"])
    assert shown.exit_code == 0
    assert {word for word in words if word.startswith("--")} <= set(re.findall(r"--[a-z-]+", shown.output))


def test_the_example_of_queries_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo" / "python.ds").mkdir(parents=True)
    write_datastore(tmp_path / "demo" / "python.ds", Corpus(49_152, [[[327, 335, 281, 2155, 24, 7, 8], [335, 281, 9]]]))
    (_, example) = blocks(README, "python")
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
    (example, _) = blocks(README, "python")
    assert example.count("HuggingFaceTB/SmolLM2-135M-Instruct") == 1
    names: dict[str, Any] = {}
    exec(example.replace("HuggingFaceTB/SmolLM2-135M-Instruct", "model"), names)
    model, inputs = names["model"], names["inputs"]
    assert names["output"].tolist() == model.generate(**inputs, max_new_tokens=64).tolist()
    assert capsys.readouterr().out.startswith("def fibonacci(n):")


def test_the_example_of_the_protocol_runs(tmp_path: Path) -> None:
    datastore = write_datastore(tmp_path, Corpus(300, [[[5, 6, 7, 8]]]))
    (example,) = blocks(PAGES["docs/protocol.md"], "python")
    output: list[int] = []
    drafts: list[list[int]] = []

    def verify(tokens: np.ndarray[Any, Any], parents: np.ndarray[Any, Any]) -> list[int]:
        assert len(tokens) == len(parents)
        drafts.append(tokens[:3].tolist())
        return [5, 6, 7, 8] * 16 if len(drafts) == 2 else [6]

    with running(datastore) as service:
        code = example.replace("127.0.0.1:50051", service.target)
        assert code != example
        exec(code, {"prompt": [5], "output": output, "verify": verify})
    assert drafts == [[6, 7, 8], [7, 8]]
    assert len(output) == 65


def test_the_source_of_contributing_drafts() -> None:
    (example,) = blocks(PAGES["CONTRIBUTING.md"], "python")
    names: dict[str, Any] = {}
    exec(example, names)
    assert names["tree"].tokens.tolist()[:1] == [7]


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    """Links without a scheme lead to a file, and those with an anchor to one of its headings."""
    for path, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)", PAGES[name]):
        target = (ROOT / name).parent / path if path else ROOT / name
        assert target.exists(), path
        headings = re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE) if anchor else []
        assert not anchor or anchor in {re.sub(r"[^\w -]", "", text).lower().replace(" ", "-") for text in headings}


@pytest.mark.parametrize("name", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_paths_named_exist(name: str) -> None:
    """Of every path in back quotes with a folder; a folder ends with a slash."""
    tops = "rest_store|build_index|benchmarks|tests|docs|proto|deploy|examples"
    named = re.findall(rf"`((?:{tops}|\.ci)/[\w./-]*)`", PAGES[name])
    assert len(named) > 10
    absent = [path for path in named if not (ROOT / path).exists()]
    assert [path for path in absent if path != "benchmarks/bench_NAME.py"] == []


def test_modules_named_by_their_package_exist() -> None:
    """The table of packages in docs/architecture.md names a package, then modules of it."""
    rows = re.findall(
        r"^\| `((?:rest_store|build_index)/\w*/?)` \| (.*) \|$", PAGES["docs/architecture.md"], re.MULTILINE
    )
    assert len(rows) > 5
    for package, contents in rows:
        for name in re.findall(r"`(\w+\.py|\w+/)`", contents):
            assert (ROOT / package / name).exists(), f"{package}{name}"


def test_the_reference_has_every_public_name() -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "reference").glob("*.md"))
    named = set(re.findall(r"^::: rest_store\.(\w+)$", pages, re.MULTILINE))
    assert set(rest_store.__all__) - {"__version__", "RestStoreError"} <= named


def test_the_metrics_named_are_those_of_the_service() -> None:
    families = Metrics(["Draft"], "0.1.0", "native").collect(0, 0, False, [], Sessions(Limits()))
    names = {family.name for family in families}
    assert len(names) > 10
    named = {name.removesuffix("_total") for name in re.findall(r"`(rest_store_\w+)`", PAGES["docs/serving.md"])}
    assert named == names
