"""A grammar of a few texts, for tests: each token sequence that spells one of them is allowed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rest_store.drafting.grammar import Grammar
from rest_store.drafting.grammar_matchers import GrammarDefinition, Mask

END = 0  # the token that ends a text
TOKENS = [
    b"",
    *(bytes([letter]) for letter in range(1, 128)),
    b"na",
    b"name",
    b'":',
    b'": "',
    b'"}',
    b"re",
    b"red",
    b"green",
]
ID = {text: token for token, text in enumerate(TOKENS)}


class TextsMatcher:
    """A matcher of some texts (`GrammarMatcher`)."""

    def __init__(
        self, texts: Sequence[bytes], written: bytes = b"", *, ended: bool = False
    ) -> None:
        self.texts = texts
        self.written = written
        self.ended = ended

    def _may_follow(self, token: int) -> bool:
        if token == END:
            return self.written in self.texts
        text = self.written + TOKENS[token]
        return any(other.startswith(text) for other in self.texts)

    def accept(self, token: int) -> bool:
        if self.ended or not self._may_follow(token):
            return False
        self.written += TOKENS[token]
        self.ended = token == END
        return True

    def fork(self) -> TextsMatcher:
        return TextsMatcher(self.texts, self.written, ended=self.ended)

    def mask(self) -> Mask | None:
        if self.ended:
            return None
        mask = np.zeros((len(TOKENS) + 31) // 32, np.uint32)
        for token in range(len(TOKENS)):
            if self._may_follow(token):
                mask[token // 32] |= np.uint32(1 << token % 32)
        return mask.view(np.int32)


def grammar_of(*texts: str) -> Grammar:
    """Return the grammar of these texts."""
    encoded = [text.encode() for text in texts]
    return Grammar(GrammarDefinition(lambda: TextsMatcher(encoded), TOKENS))


def spelled(text: str) -> list[int]:
    """Return the tokens of a text, the longest one each time."""
    rest = text.encode()
    tokens: list[int] = []
    while rest:
        token = max(
            (token for token in range(1, len(TOKENS)) if rest.startswith(TOKENS[token])),
            key=lambda token: len(TOKENS[token]),
        )
        tokens.append(token)
        rest = rest[len(TOKENS[token]) :]
    return tokens
