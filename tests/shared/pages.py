"""The pages of the documentation, and the code blocks in them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "examples").glob("*.md"),
        *(ROOT / "examples").glob("*/README.md"),
    ]
}
README = PAGES["README.md"]


class Block(NamedTuple):
    """A code block.

    Attributes:
        language: "" for commands; "text" for what a command prints.
        file: the name under which a reader saves it; "": it is no file.
        text: its lines, each with its end.
    """

    language: str
    file: str
    text: str

    @property
    def lines(self) -> list[str]:
        """Its lines as a shell reads them: joined where one ends with a backslash."""
        return self.text.replace("\\\n", " ").splitlines()


def blocks(page: str) -> list[Block]:
    """Return the code blocks of a page."""
    matches = re.findall(
        r'^```(\w*)(?: title="([^"]+)")?\n(.*?)^```$', page, re.DOTALL | re.MULTILINE
    )
    return [Block(*parts) for parts in matches]


def python_blocks(page: str) -> list[str]:
    """Return the Python of a page, block by block."""
    return [block.text for block in blocks(page) if block.language == "python"]


def commands(page: str, program: str) -> list[list[str]]:
    """Return the words of each command of `program` in a page, without a prompt sign."""
    lines = [
        line.strip().removeprefix("$ ")
        for block in blocks(page)
        if not block.language
        for line in block.lines
    ]
    return [shlex.split(line, comments=True) for line in lines if line.startswith(program + " ")]


def words_of(program: str) -> list[list[str]]:
    """Return the commands of `program` in all pages, each once."""
    matches = {tuple(words) for page in PAGES.values() for words in commands(page, program)}
    return [list(words) for words in sorted(matches)]


def section(page: str, heading: str) -> str:
    """Return what stands below a heading of the second level."""
    (text,) = re.findall(
        rf"^## {re.escape(heading)}\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE
    )
    return str(text)
