"""What a build left out, in words for people."""

from __future__ import annotations

from collections.abc import Mapping

from build_index.documents import well_formed
from build_index.readers.unread import HINTS, reason_text
from build_index.size import size_text

_SINGULARS = {
    "tool calls": "tool call",
    "reasoning texts": "reasoning text",
    "message texts": "message text",
}


def left_out_texts(
    skipped: Mapping[str, int], sizes: Mapping[str, int], largest: Mapping[str, str]
) -> list[str]:
    """Return a text for each reason, that with the most bytes first:
    number, size, the largest example, what helps.

    Args:
        skipped: number of files and records by reason.
        sizes: their bytes, where they are known.
        largest: the largest of them.
    """
    texts = []
    for reason, number in sorted(
        skipped.items(), key=lambda item: (-sizes.get(item[0], 0), -item[1], item[0])
    ):
        text = reason_text(reason, number)
        if reason in sizes:
            text += f" ({size_text(sizes[reason])})"
        if example := largest.get(reason):
            text += f"{', the largest' if number > 1 else ''}: {well_formed(example)}"
        if hint := HINTS.get(reason):
            text += f"; {hint}"
        texts.append(text)
    return texts


def parts_text(left_out: Mapping[str, int]) -> str:
    """Return a text for the parts of stored conversations that are
    not stored: `1 reasoning text, 12 tool calls`.
    """
    return ", ".join(
        f"{number:,} {kind if number > 1 else _SINGULARS.get(kind, kind)}"
        for kind, number in sorted(left_out.items())
    )
