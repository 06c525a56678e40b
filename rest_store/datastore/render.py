"""What a terminal shows: counts with their nouns, tables, any text on one safe line."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

_COLUMNS = 80
_NAMES = 11  # columns of the names in a table


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun: "1 token", "2,000 tokens".

    Args:
        number: how many.
        noun: for one.
        plural: for any other number, where that is not the noun and an s.
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def table(rows: Iterable[tuple[str, str]]) -> str:
    """Return names and values in two columns, wrapped at 80 columns between words.

    The values on safe lines.

    Args:
        rows: in order; one without a name goes on with the row before.
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
    """Return `text` on one line, with escapes for what a terminal would obey or hide."""
    joined = " ".join(line.strip() for line in text.splitlines())
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in joined
    )
