"""Text of tokens as they are written."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class Detokenizer:
    """Turns tokens into text one by one; incomplete characters are held back.

    Args:
        tokenizer: a tokenizer of `transformers`.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._tokens: list[int] = []
        self._start = self._shown = 0  # tokens from `_start` on are decoded together; those before `_shown` are shown

    def push(self, token: int) -> str:
        """Return the text that `token` adds; empty while a character is incomplete."""
        self._tokens.append(token)
        prefix, text = self._decoded(self._shown), self._decoded(len(self._tokens))
        if text.endswith("\ufffd") or len(text) <= len(prefix):
            return ""
        self._start, self._shown = self._shown, len(self._tokens)
        return text[len(prefix) :]

    def push_all(self, tokens: Iterable[int], *, flush: bool = False) -> str:
        """Return the text that several tokens add; with `flush`, what is held back, too."""
        text = "".join(map(self.push, tokens))
        return text + self.flush() if flush else text

    def flush(self) -> str:
        """Return what was held back, at the end."""
        prefix, text = self._decoded(self._shown), self._decoded(len(self._tokens))
        self._shown = len(self._tokens)
        return text[len(prefix) :]

    def _decoded(self, end: int) -> str:
        return str(self._tokenizer.decode(self._tokens[self._start : end], skip_special_tokens=True))
