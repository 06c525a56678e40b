"""The omissions of a build, in words for people."""

from __future__ import annotations

from collections.abc import Mapping

from build_index.documents import well_formed
from build_index.readers.unreadable_files import HINTS, reason_text
from build_index.size import size_text

_SINGULARS = {
    "tool calls": "tool call",
    "reasoning texts": "reasoning text",
    "message texts": "message text",
}


def skipped_texts(
    skipped: Mapping[str, int], sizes: Mapping[str, int], largest: Mapping[str, str]
) -> list[str]:
    """Return a text for each reason: number, size, the largest example, and a hint that helps.

    Reasons with more bytes come first.

    Args:
        skipped: number of files and records by reason.
        sizes: their bytes, where they are known.
        largest: the largest of them.
    """

    def rank(reason: str) -> tuple[int, int, str]:
        return -sizes.get(reason, 0), -skipped[reason], reason

    texts = []
    for reason in sorted(skipped, key=rank):
        number = skipped[reason]
        text = reason_text(reason, number)
        if reason in sizes:
            text += f" ({size_text(sizes[reason])})"
        if example := largest.get(reason):
            text += ", the largest: " if number > 1 else ": "
            text += well_formed(example)
        if hint := HINTS.get(reason):
            text += f"; {hint}"
        texts.append(text)
    return texts


def omissions_text(left_out: Mapping[str, int]) -> str:
    """Return the omissions from stored conversations as text: `1 reasoning text, 12 tool calls`."""
    texts = []
    for kind, number in sorted(left_out.items()):
        name = kind if number > 1 else _SINGULARS.get(kind, kind)
        texts.append(f"{number:,} {name}")
    return ", ".join(texts)
