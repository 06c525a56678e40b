"""`rest-store generate` without a prompt: piped lines, and a terminal."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from rest_store.cli import main
from rest_store.errors import ArgumentError
from rest_store.generation.printer import Printer
from tests.shared.tiny import text_tokenizer, write_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that writes on and on: a text as long as its positions takes minutes."""
    return write_model(tmp_path_factory.mktemp("model"), max_position_embeddings=1 << 17)


@pytest.fixture(scope="module")
def without_template(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    copied = shutil.copytree(model, tmp_path_factory.mktemp("models") / "plain")
    (copied / "chat_template.jinja").unlink()
    return copied


def piped(model: Path, text: str | bytes, *words: str) -> Result:
    command = ["generate", "--model", str(model), "--max-new-tokens", "6", *words]
    done = CliRunner().invoke(main, command, input=text)
    assert done.exit_code == 0, done.output
    return done


def texts(done: Result) -> list[str]:
    return [json.loads(line)["text"] for line in done.stdout.splitlines()]


def test_each_line_is_a_prompt(without_template: Path) -> None:
    loop = texts(piped(without_template, "for i in\n\n  \ni in i\nfor i in", "--json"))
    options = [word for prompt in ("for i in", "i in i") for word in ("--prompt", prompt)]
    first, second = texts(piped(without_template, "", *options, "--json"))
    assert loop == [first, second, first], "blank lines are none, and the last needs no end"


def test_lines_are_turns_of_one_chat(model: Path) -> None:
    first, second = texts(piped(model, "for\nfor\n", "--json"))
    assert texts(piped(model, "", "--prompt", "for", "--chat", "--json")) == [first]
    assert second != first, "it reads the first turn and its answer, too"
    plain = texts(piped(model, "for\nfor\n", "--json", "--no-chat"))
    assert plain[0] == plain[1]
    assert plain == 2 * texts(piped(model, "", "--prompt", "for", "--json"))


def test_bytes_that_are_no_text_are_read(model: Path) -> None:
    assert len(texts(piped(model, b"caf\xe9\n", "--json"))) == 1


# --- On a terminal --------------------------------------------------------------------------------


def test_on_a_terminal_an_interrupt_ends_the_text_and_the_end_of_input_the_loop(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = iter(["for", "  ", "interrupted", "in"])
    written = []

    class Interrupted:
        """Writes a text for a prompt, unless it is typed while Ctrl-C is."""

        tokenizer = text_tokenizer()

        def generate(self, inputs: Any, **_: Any) -> Any:
            prompt = self.tokenizer.decode(inputs["input_ids"][0], skip_special_tokens=True)
            written.append(prompt)
            raise KeyboardInterrupt if prompt == "interrupted" else ArgumentError("no such luck")

    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setattr("builtins.input", lambda sign: next(lines, None) or _end())
    Printer(Interrupted(), {}, seed=None, compare=False, as_json=False).write_lines(chat=False)
    assert written == ["for", "interrupted", "in"]
    assert capsys.readouterr().err.split("\n") == [
        "",
        "no such luck",
        "",
        "interrupted",
        "",
        "no such luck",
        "",
    ]


def _end() -> str:
    raise EOFError
