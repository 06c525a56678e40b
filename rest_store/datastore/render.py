"""Text for a terminal: counts with their nouns, tables, and any text on one safe line."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

_COLUMNS = 80
_NAMES = 11  # columns of the names in a table


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun: "1 token", "2,000 tokens".

    Args:
        number: the count.
        noun: its noun for 1.
        plural: its noun for other numbers; None: the noun and an s.
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def table(rows: Iterable[tuple[str, str]]) -> str:
    """Return names and values in two columns, wrapped at 80 columns between words.

    Args:
        rows: name and value. A row without a name continues the row before.
    """
    lines = []
    for name, value in rows:
        first = f"{name + ':' * bool(name):<{_NAMES}}"
        later = " " * _NAMES
        wrapped = textwrap.wrap(
            one_line(value),
            _COLUMNS,
            initial_indent=first,
            subsequent_indent=later,
            break_long_words=False,
            break_on_hyphens=False,
        )
        lines += wrapped or [first]
    return "\n".join(lines)


def one_line(text: str) -> str:
    """Return `text` on one line, with escapes for characters that a terminal obeys or hides."""
    joined = " ".join(line.strip() for line in text.splitlines())
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in joined
    )
