"""SentencePiece's mark of a space before the first word, for an encoder that has no `Metaspace`.

`transformers` 5 loads the tokenizers of Llama 2's family with the pre-tokenizer `Metaspace`, which
`fastokens` does not know. Without splitting, `Metaspace` does two things. It replaces each space by
the mark, which a normalizer does as well. It puts a mark before sections of the text: the texts
between added tokens (`tokenizers`, pre_tokenizers/metaspace.rs). This module does the second
before the text is encoded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

# Added tokens with these flags make other sections.
_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")


@dataclass(frozen=True)
class SpaceMarks:
    """Puts the mark of a space before sections of texts.

    Attributes:
        mark: one character.
        scheme: `"always"`: before each section; `"first"`: before one with which a text begins;
            `"never"`.
        added: finds the added tokens, in a group.
    """

    mark: str
    scheme: str
    added: re.Pattern[str]

    def before_sections(self, text: str) -> str:
        """Return a text with marks before its sections.

        A section that begins with a mark or a space gets none.
        """
        if self.scheme == "never" or not text:
            return text
        if self.scheme == "first":
            return text if self.added.match(text) else self._marked(text)
        return "".join(self._sections(text))

    def _sections(self, text: str) -> Iterator[str]:
        """Yield the sections, marked, and the added tokens between them."""
        for number, section in enumerate(self.added.split(text)):
            yield section if number % 2 else self._marked(section)

    def _marked(self, section: str) -> str:
        if not section or section[0] in (" ", self.mark):
            return section
        return f"{self.mark}{section}"


def without_metaspace(tokenizer: dict[str, Any]) -> tuple[dict[str, Any], SpaceMarks] | None:
    """Return an equal tokenizer without `Metaspace`, for texts with marks before their sections.

    None: the tokenizer has no such equal.

    Args:
        tokenizer: the object of a `tokenizer.json`.
    """
    pre_tokenizer = tokenizer.get("pre_tokenizer") or {}
    added = tokenizer.get("added_tokens", [])
    if (
        pre_tokenizer.get("type") != "Metaspace"
        or pre_tokenizer.get("split", True)
        or tokenizer.get("normalizer")
    ):
        return None
    for token in added:
        if any(token[flag] for flag in _FLAGS):
            return None
    mark = pre_tokenizer["replacement"]
    # Longest first: of several added tokens at one place, the longest counts.
    texts = sorted((token["content"] for token in added), key=len, reverse=True)
    pattern = re.compile(f"({'|'.join(map(re.escape, texts))})" if texts else "((?!))")
    marks = SpaceMarks(mark, pre_tokenizer.get("prepend_scheme", "always"), pattern)
    normalizer = {"type": "Replace", "pattern": {"String": " "}, "content": mark}
    return {**tokenizer, "normalizer": normalizer, "pre_tokenizer": None}, marks
