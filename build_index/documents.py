"""What a corpus is made of: documents, each a text or a conversation."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeAlias

Message: TypeAlias = tuple[str, str]
"""Role and content, for instance `("user", "What is a suffix array?")`."""


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a corpus: either a text or a conversation.

    Attributes:
        text: the text; empty for a conversation.
        messages: the turns, oldest first; empty for a text.
        origin: where it comes from, for messages: a path, with a line or row number where there are several; not
            compared.
    """

    text: str = ""
    messages: tuple[Message, ...] = ()
    origin: str = field(default="", compare=False)

    @property
    def is_conversation(self) -> bool:
        """Whether it is a conversation."""
        return bool(self.messages)

    @property
    def is_empty(self) -> bool:
        """Whether it holds nothing but white space."""
        return _is_blank(self.text) and all(_is_blank(content) for _, content in self.messages)

    @property
    def size(self) -> int:
        """Length in characters, over all turns."""
        return len(self.text) + sum(len(content) for _, content in self.messages)


def well_formed(text: str) -> str:
    r"""Return the text without lone surrogates, which no tokenizer accepts and JSON can hold (`"\ud83d"`).

    Args:
        text: any string.

    Returns:
        The same, with surrogate pairs joined and lone surrogates replaced by U+FFFD.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _is_blank(text: str) -> bool:
    return not text or text.isspace()
