"""Text of tokens as they are written."""

from __future__ import annotations

from collections.abc import Sequence
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

    def words(self, tokens: Sequence[int], *, last: bool = False) -> list[str]:
        """Return the text that each token adds, "" while a character is incomplete.

        Args:
            tokens: that were written next.
            last: whether no more follow: the last one then also adds what was held back.
        """
        words = [self._word(token) for token in tokens]
        if last and words:
            words[-1] += self._decoded(len(self._tokens))[len(self._decoded(self._shown)) :]
        return words

    def _word(self, token: int) -> str:
        self._tokens.append(token)
        prefix, text = self._decoded(self._shown), self._decoded(len(self._tokens))
        if text.endswith("\ufffd") or len(text) <= len(prefix):
            return ""
        self._start, self._shown = self._shown, len(self._tokens)
        return text[len(prefix) :]

    def _decoded(self, end: int) -> str:
        return str(self._tokenizer.decode(self._tokens[self._start : end], skip_special_tokens=True))
