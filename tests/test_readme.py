"""Commands, options, paths, links, metrics and Python of the documentation are real."""

from __future__ import annotations

import asyncio
import builtins
import re
import shutil
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from click.testing import CliRunner
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import rest_store
from rest_store import errors
from rest_store.cli import main
from rest_store.engines.engine_metrics import COUNTERS
from rest_store.service.address import Address
from rest_store.service.server.server import ServeOptions, Server
from tests.shared.models import byte_level_bpe
from tests.shared.pages import PAGES, README, ROOT, commands, python_blocks, words_of
from tests.shared.scripts import script
from tests.shared.services import running
from tests.shared.strategies import Corpus, write_datastore


def test_make_targets_exist() -> None:
    targets = set(
        re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    )
    pages = "".join(PAGES.values())
    named = {words[1] for words in words_of("make")} | set(re.findall(r"`make ([\w-]+)`", pages))
    assert {"demo", "test", "lint", "docs", "proto", "bench", "sanitize"} <= named <= targets


def test_the_site_begins_with_the_program_of_the_readme() -> None:
    [program] = [block for block in python_blocks(README) if "compare=True" in block]
    assert program in python_blocks(PAGES["docs/index.md"])


def test_the_test_command_of_ci_is_the_readmes() -> None:
    assert ["make", "test"] in commands(README, "make")
    assert "make test" in (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()


def options_of(command: click.Command, words: list[str]) -> None:
    """Require that the options in `words` belong to `command`, or to the one that they name."""
    named = []
    while (
        isinstance(command, click.Group)
        and len(named) < len(words)
        and not words[len(named)].startswith("-")
    ):
        context = click.Context(command)
        assert words[len(named)] in command.list_commands(context)
        subcommand = command.get_command(context, words[len(named)])
        assert subcommand is not None
        command = subcommand
        named.append(subcommand.name)
    # What follows is another command's.
    words = words[: words.index("--")] if "--" in words else words
    shown = CliRunner().invoke(command, ["--help"])
    assert shown.exit_code == 0
    assert {word for word in words if word.startswith("--")} <= set(
        re.findall(r"--[a-z-]+", shown.output)
    )


@pytest.mark.parametrize(
    "words",
    words_of("rest-store")
    + [["rest-store", "build", *words[1:]] for words in words_of("rest-build")],
)
def test_commands_take_the_options_shown(words: list[str]) -> None:
    options_of(main, words[1:])


@pytest.mark.parametrize("words", [words for words in words_of("python") if "/" in words[1]])
def test_scripts_take_the_options_shown(words: list[str]) -> None:
    path = words[1].removeprefix("../")  # as seen from a folder in the checkout
    # The scripts that train, and the one that runs vLLM.
    needed = {
        "benchmarks/bench_rollouts.py": "trl",
        "examples/grpo.py": "trl",
        "examples/vllm_drafts.py": "vllm",
    }
    if path in needed:
        pytest.importorskip(needed[path])
    options_of(script(path).main, words[2:])


def test_the_example_of_queries_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo" / "python.ds").mkdir(parents=True)
    write_datastore(
        tmp_path / "demo" / "python.ds",
        Corpus(49_152, [[[327, 335, 281, 2155, 24, 7, 8], [335, 281, 9]]]),
    )
    *_, example = python_blocks(README)
    names: dict[str, object] = {}
    exec(example, names)
    assert names["store"].longest_suffix_match(names["context"]) == rest_store.SuffixMatch(5, 1)
    tree = names["tree"]
    assert isinstance(tree, rest_store.TokenTree)
    assert np.array_equal(tree.tokens, [7, 8])


def test_the_example_of_generation_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "rest_store"
    folder = tmp_path / "first-hour"
    source.mkdir(parents=True)
    (source / "lines.py").write_text("def read_lines(path):\n    return path.read_text()\n" * 20)
    folder.mkdir()
    monkeypatch.chdir(folder)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_level_bpe(), eos_token="<|endoftext|>"
    )
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    tokenizer.save_pretrained("smollm2")
    LlamaForCausalLM(config).save_pretrained("smollm2")
    shortest, first, second, _ = python_blocks(README)
    names: dict[str, Any] = {}
    exec(first, names)
    output = names["output"]
    model = names["model"]
    assert output.comparison.identical
    assert capsys.readouterr().out == f"{output}\n"
    names["inputs"] = {"input_ids": output.sequences[:, : -output.statistics.tokens]}  # the prompt
    exec(second, names)
    assert names["output"].tolist() == model.generate(**names["inputs"], max_new_tokens=64).tolist()
    shutil.copytree(source, folder / "src")
    shutil.rmtree("code.ds")
    names["inputs"]["max_new_tokens"] = 64
    exec(shortest, names)
    assert names["output"].tolist() == model.generate(**names["inputs"]).tolist()


def test_the_example_of_the_protocol_runs(tmp_path: Path) -> None:
    datastore = write_datastore(tmp_path, Corpus(300, [[[5, 6, 7, 8]]]))
    (example,) = python_blocks(PAGES["docs/reference/protocol.md"])
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


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    """Links without a scheme lead to a file, and those with an anchor to one of its headings."""
    for path, anchor in re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]+))?\)", PAGES[name]):
        target = (ROOT / name).parent / path if path else ROOT / name
        assert target.exists(), path
        headings = (
            re.findall(r"^#+ (.*)$", target.read_text(encoding="utf-8"), re.MULTILINE)
            if anchor
            else []
        )
        assert not anchor or anchor in {
            re.sub(r"[^\w -]", "", text).lower().replace(" ", "-") for text in headings
        }


@pytest.mark.parametrize("name", PAGES)
def test_errors_and_commands_named_exist(name: str) -> None:
    names = set(re.findall(r"`(\w+(?:Error|Warning))`", PAGES[name]))
    known = {error for error in names if hasattr(errors, error) or hasattr(builtins, error)}
    assert names == known
    commands = set(re.findall(r"`rest-store ([a-z]+)\b", PAGES[name]))
    assert commands <= set(main.list_commands(click.Context(main)))


@pytest.mark.parametrize(
    "name", ["docs/explanation/architecture.md", "docs/explanation/methods.md", "CONTRIBUTING.md"]
)
def test_paths_named_exist(name: str) -> None:
    """Paths in back quotes with a folder exist; a folder ends with a slash."""
    tops = "rest_store|build_index|benchmarks|tests|docs|proto|deploy|examples"
    named = re.findall(rf"`((?:{tops}|\.ci)/[\w./-]*)`", PAGES[name])
    assert len(named) > 10
    absent = [path for path in named if not (ROOT / path).exists()]
    assert [path for path in absent if path != "benchmarks/bench_NAME.py"] == []


def test_the_reference_has_every_public_name() -> None:
    pages = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "reference").glob("*.md")
    )
    named = set(re.findall(r"^::: rest_store\.(\w+)$", pages, re.MULTILINE))
    assert set(rest_store.__all__) - {"__version__", "RestStoreError"} <= named


async def metrics_of_a_server(options: ServeOptions) -> set[str]:
    """The names of our metrics, as Prometheus shows them."""
    server = Server(options, "0.1.0")
    await server.start()
    families = [
        family
        for family in server.metrics.registry.collect()
        if family.name.startswith("rest_store_")
    ]
    await server.drain()
    return {family.name + "_total" * (family.type == "counter") for family in families}


def test_the_reference_has_every_metric(tmp_path: Path) -> None:
    directory = write_datastore(tmp_path, Corpus(300, [[[1, 2]]]))
    options = ServeOptions([("a", directory)], metrics=Address.parse("127.0.0.1:0"))
    served = asyncio.run(metrics_of_a_server(options))
    engines = {f"rest_store_engine_{name}_total" for name in COUNTERS} | {
        "rest_store_engine_sessions"
    }
    assert min(len(served), len(engines)) >= 10
    page = PAGES["docs/reference/metrics.md"]
    assert sorted(re.findall(r"`(rest_store_\w+)`", page)) == sorted(served | engines)
    others = "".join(text for name, text in PAGES.items() if name.startswith("docs/"))
    assert set(re.findall(r"`(rest_store_\w+)`", others)) <= served | engines
    for path in (ROOT / "deploy" / "monitoring").iterdir():
        watched = set(re.findall(r"rest_store_\w+", path.read_text(encoding="utf-8")))
        assert len(watched) > 4
        assert {name.removesuffix("_bucket") for name in watched} <= served, path.name
