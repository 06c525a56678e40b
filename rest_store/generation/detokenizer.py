"""Text of tokens as they are written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_MAX_PENDING = 3  # tokens that end within a character: one has at most four bytes
_INCOMPLETE = "\ufffd"


class Detokenizer:
    """Turns tokens into text one by one.

    Incomplete characters are held back, while they can still be completed.

    A token takes the same time wherever it stands: a few tokens are decoded together, the latest
    ones.

    Args:
        tokenizer: a tokenizer of `transformers`.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []  # tokens that are decoded together
        self._context = 0  # of these, the ones before those that a later token may still change
        self._given = 0  # characters of their text that were returned
        self._pending = 0  # tokens since the text last ended with a whole character
        self._silent: dict[int, bool] = {}  # whether a token adds no text wherever it stands

    def words(self, tokens: Sequence[int], *, last: bool = False) -> list[str]:
        """Return the text that each token adds, "" while a character is incomplete.

        Args:
            tokens: that were written next.
            last: whether no more follow: the last one then also adds the text that was held back.
        """
        words = [self._word(token) for token in tokens]
        if last and words:
            words[-1] += self._decoded(self._window)[self._given :]
        return words

    def _word(self, token: int) -> str:
        if self._is_silent(token):
            return ""
        self._window.append(token)
        text = self._decoded(self._window)
        is_whole = not text.endswith(_INCOMPLETE)
        self._pending = 0 if is_whole else self._pending + 1
        if 0 < self._pending <= _MAX_PENDING:
            return ""
        word = text[self._given : len(text) if is_whole else len(text) - 1]
        if is_whole and word:
            del self._window[: self._context]
            self._context = len(self._window)
            self._given = len(self._decoded(self._window))
        elif not is_whole:
            del self._window[:-_MAX_PENDING]
            self._context = 0
            rest = self._decoded(self._window)
            self._given = len(rest) - rest.endswith(_INCOMPLETE)
        return word

    def _is_silent(self, token: int) -> bool:
        """Return whether a token is special, or an id without a token."""
        silent = self._silent.get(token)
        if silent is None:
            silent = self._silent[token] = not self._decoded([token, token])
        return silent

    def _decoded(self, tokens: list[int]) -> str:
        return str(self._tokenizer.decode(tokens, skip_special_tokens=True))
