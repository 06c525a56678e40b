"""What commands say where a package of an extra is not installed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from rest_store.cli import main
from rest_store.extras import EXTRAS
from tests.shared.strategies import Corpus, write_datastore


@pytest.mark.parametrize(
    ("words", "module", "package", "extra"),
    [
        ("bench speed --model m", "rest_store.bench.speed_command", "torch", "hf"),
        ("serve d", "rest_store.service.server.server", "grpc", "server"),
        ("query 127.0.0.1:1 --tokens 3", "rest_store.service.channel", "grpc", "server"),
        ("generate --model m --prompt p", "rest_store.generation.generator", "torch", "hf"),
        ("live delete d x", "rest_store.live.live_datastore", "pydivsufsort", "build"),
    ],
)
def test_a_command_without_its_packages_names_the_extra(
    words: str, module: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    done = CliRunner().invoke(main, words.split())
    assert done.exit_code == 1
    expected = (
        f"the package '{package}' is missing, expected it to be installed: pip install"
        f" 'rest-store[{extra}]'"
    )
    assert done.stderr == f"Error: rest-store: {expected}\n"


# --- Public names ---------------------------------------------------------------------------------

NEEDED = {
    "build": ("pydivsufsort", ["LiveDatastore"]),
    "hf": ("torch", ["Generator", "generate", "prepacked_weights"]),
    "server": ("grpc", ["AsyncDatastoreClient", "DatastoreClient", "Tls"]),
}


# What the extras install; numpy and click are always there.
BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {packages!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocked())
"""


def in_bare_process(program: str) -> str:
    """Return what a program prints in a process in which no package of an extra can be imported."""
    program = BLOCKED.format(packages=set(EXTRAS)) + program
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("extra", NEEDED)
def test_a_name_without_its_extra_names_it(extra: str) -> None:
    package, names = NEEDED[extra]
    shown = in_bare_process(f"""
import rest_store
for name in {names!r}:
    assert name in dir(rest_store)
    try:
        getattr(rest_store, name)
    except rest_store.RestStoreError as error:
        assert isinstance(error, ImportError)
        print(error)
""")
    expected = (
        f"the package '{package}' is missing, expected it to be installed: pip install"
        f" 'rest-store[{extra}]'"
    )
    assert shown.splitlines() == [f"rest_store.{name}: {expected}" for name in names]


def test_completion_and_help_of_commands_survive_without_extras() -> None:
    shown = in_bare_process("""
import os
import click
from rest_store.cli import main

def run(words, **environment):
    os.environ.update(environment)
    try:
        main(words, prog_name="rest-store")
    except SystemExit as end:
        assert not end.code, words

def walk(command, words):
    run([*words, "--help"])
    words_so_far = " ".join(["rest-store", *words])
    run(
        [],
        _REST_STORE_COMPLETE="bash_complete",
        COMP_WORDS=words_so_far + " --",
        COMP_CWORD=str(len(words) + 1),
    )
    os.environ.pop("_REST_STORE_COMPLETE")
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            walk(command.get_command(context, name), [*words, name])

walk(main, [])
run([], _REST_STORE_COMPLETE="bash_source")
run([], _REST_STORE_COMPLETE="bash_complete", COMP_WORDS="rest-store be", COMP_CWORD="1")
""")
    assert "plain,--version" in shown
    assert "plain,--seed" in shown
    assert "complete -o nosort -F _rest_store_completion rest-store" in shown
    assert shown.endswith("plain,bench\n")


def test_a_module_of_nobodys_extra_is_a_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(text: str) -> bool:
        raise ModuleNotFoundError("No module named 'elsewhere'", name="elsewhere")

    monkeypatch.setattr("rest_store.cli.is_remote", fail)
    done = CliRunner().invoke(main, ["query", "d", "--tokens", "1"])
    assert isinstance(done.exception, ModuleNotFoundError)


def test_ids_are_asked_about_without_the_package_of_tokenizers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ds").mkdir()
    datastore = write_datastore(tmp_path / "ds", Corpus(300, [[[1, 2, 3, 4, 9], [1, 2, 3, 5]]]))
    (datastore / "tokenizer.json").write_text("{}")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    done = CliRunner().invoke(main, ["query", str(datastore), "--tokens", "1 2"])
    assert done.exit_code == 0, done.output
    assert done.output.startswith("match: 2 tokens, 2 occurrences: 1 2")
