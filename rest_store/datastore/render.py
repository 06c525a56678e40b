"""What a terminal shows: a draft tree, with decoded tokens and counts, also as JSON; any text on one safe line."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # one line can be said although numpy cannot be imported
    from rest_store.datastore.tree import TokenTree

_COLUMNS = 80
_NAMES = 11  # columns of the names in a table


def draw_draft(tree: TokenTree, context: Sequence[int], label: Callable[[int], str]) -> str:
    """Return the match and the tree as lines of text, most frequent branches first, chains of equal counts on one line.

    Args:
        tree: what a source drafted for `context`.
        context: the tokens so far, oldest first.
        label: the text to show for a token id.
    """
    length, count = tree.match
    if length == 0:
        return "no match: the last token of the context does not occur"
    matched = " ".join(label(token) for token in context[len(context) - length :])
    lines = [f"match: {counted(length, 'token')}, {counted(count, 'occurrence')}: {matched}"]
    if not len(tree):
        return lines[0] + "\nno continuation: documents end after it"
    width = len(f"{int(tree.counts.max()):,}")

    def draw(node: int, before: str) -> None:
        children = tree.children(node).tolist()
        for child in children:
            last = child == children[-1]
            chain = [child]
            while len(below := tree.children(chain[-1])) == 1 and tree.counts[below[0]] == tree.counts[child]:
                chain.append(int(below[0]))
            text = " ".join(label(int(tree.tokens[node])) for node in chain)
            lines.append(f"{int(tree.counts[child]):>{width},} {before}{'└─' if last else '├─'} {text}")
            draw(chain[-1], before + ("   " if last else "│  "))

    draw(-1, "")
    return "\n".join(lines)


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Return a number with its noun: "1 token", "2,000 tokens".

    Args:
        number: how many.
        noun: for one.
        plural: for any other number, where that is not the noun and an s.
    """
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def table(rows: Iterable[tuple[str, str]]) -> str:
    """Return names and values in two columns, wrapped at 80 columns between words; the values on safe lines.

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


def draft_as_json(
    tree: TokenTree, context: Sequence[int], text_of: Callable[[int], str] | None = None
) -> dict[str, Any]:
    """Return the match and the tree as a JSON object; nodes in tree order, `parent` -1 for a child of the context."""
    columns = zip(tree.tokens.tolist(), tree.parents.tolist(), tree.depths.tolist(), tree.counts.tolist(), strict=True)
    nodes: list[dict[str, Any]] = [
        {"token": token, "parent": parent, "depth": depth, "count": count} for token, parent, depth, count in columns
    ]
    if text_of is not None:
        for node in nodes:
            node["text"] = text_of(node["token"])
    match = {"length": tree.match.length, "count": tree.match.count}
    return {"context": list(context), "match": match, "nodes": nodes}
