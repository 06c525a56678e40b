"""Aider's history of chats, `.aider.chat.history.md`: Markdown, several sessions in one file.

Source: `aider/io.py` (`append_chat_history`) and `split_chat_history_markdown` of `aider/utils.py`.
A session begins with `# aider chat started at`. Lines with `#### ` are the user's, lines with
`> ` Aider's own, and all others the model's. An answer that quotes by `> ` loses
these lines, as in Aider itself when it reads its history.
"""

from __future__ import annotations

from build_index.readers.turns import Turns

HEADER = "# aider chat started at"
_SAID = "#### "
_PRINTED = "> "
_LEFT_OUT = "lines that Aider printed"


def is_aider(head: bytes) -> bool:
    """Return whether the first bytes of a file are those of a history of Aider."""
    return head.lstrip().startswith(HEADER.encode())


class AiderHistory:
    """The lines of one session.

    Args:
        turns: to add to.
    """

    def __init__(self, turns: Turns) -> None:
        self._turns = turns
        self._role = ""
        self._lines: list[str] = []

    def add(self, line: str) -> None:
        """Add a line, without its end."""
        if line.startswith(_SAID) or line == _SAID.rstrip():
            self._begin("user")
            self._lines.append(line[len(_SAID) :].removesuffix("  "))
        elif line.startswith(_PRINTED) or line == _PRINTED.rstrip():
            self._begin("")
            self._turns.left_out[_LEFT_OUT] += 1
        elif line.strip() or self._role == "assistant":
            self._begin("assistant")
            self._lines.append(line)

    def end(self) -> None:
        """Add the last turn."""
        self._begin("")

    def _begin(self, role: str) -> None:
        if role == self._role:
            return
        text = "\n".join(self._lines).strip("\n")
        if self._role == "assistant":
            self._turns.answered(object(), text if text.strip() else "")
        elif self._role:
            self._turns.said(self._role, text)
        self._role = role
        self._lines = []
