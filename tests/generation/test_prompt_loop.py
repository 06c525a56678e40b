"""`rest-store generate` without a prompt: piped lines, and a terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from rest_store.cli import main
from tests.shared.tiny import write_model


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
    given = [word for prompt in ("for i in", "i in i") for word in ("--prompt", prompt)]
    first, second = texts(piped(without_template, "", *given, "--json"))
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


# --- On a terminal ---------------------------------------------------------------------------------------------------


class Terminal:
    """A command on a terminal of its own, in whose session it is alone."""

    def __init__(self, *command: str) -> None:
        self._main, terminal = pty.openpty()
        environment = {**os.environ, "TERM": "dumb", "HF_HUB_OFFLINE": "1"}
        self.process = subprocess.Popen(
            command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment, preexec_fn=_with_terminal
        )
        os.close(terminal)
        self.shown = ""

    def read_to(self, pattern: str, *, again: str = "") -> str:
        """Read until what is shown since the last call matches; return it.

        A key that comes between the prompt and readline's first look at the terminal is lost: meanwhile type `again`.
        """
        while re.search(pattern, self.shown) is None:
            ready, _, _ = select.select([self._main], [], [], 1.0 if again else None)
            if not ready:
                self.write(again)
                continue
            try:
                self.shown += os.read(self._main, 1 << 16).decode("utf-8", "replace")
            except OSError:  # the command has ended
                raise AssertionError(self.shown) from None
        shown, self.shown = self.shown, ""
        return shown

    def write(self, text: str) -> None:
        os.write(self._main, text.encode())

    def end(self) -> int:
        """Type Ctrl-D until the command ends; return its exit status."""
        while self.process.poll() is None:
            self.write("\x04")
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(1.0)
        return self.process.returncode

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._main)


def _with_terminal() -> None:
    os.setsid()
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.fixture
def terminal(model: Path) -> Iterator[Terminal]:
    command = ["-m", "rest_store", "generate", "--model", str(model), "--max-new-tokens", "100000", "--no-chat"]
    opened = Terminal(sys.executable, *command)
    yield opened
    opened.close()


@pytest.mark.slow
def test_a_loop_on_a_terminal(terminal: Terminal) -> None:
    """Ctrl-C ends a text, Ctrl-D the command."""
    begun = terminal.read_to(r"> $")
    assert re.search(r"loading tokenizer .*/model\w* \.\.\. \d+\.\d s\r\n", begun)
    assert re.search(r"loading model .* \d+\.\d s\r\n", begun)
    terminal.write("for i in\n")
    terminal.read_to(r"for i in\r\n.", again="\n")
    terminal.write("\x03")
    shown = terminal.read_to(r"\r\n> $")
    assert re.search(r"\ninterrupted\r\n> $", shown)
    assert terminal.end() == 0
