"""A draft tree for the eye: decoded tokens and counts, drawn as a tree; and the same as JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rest_store.tree import TokenTree

TokenText = Callable[[int], str]


def draw_draft(tree: TokenTree, context: Sequence[int], token_text: TokenText) -> str:
    """Return the match and the tree as lines of text, heaviest branches first.

    Args:
        tree: what a source drafted for `context`.
        context: the tokens so far, oldest first.
        token_text: the text of one token id.
    """
    length, count = tree.match
    if length == 0:
        return "no match: the last token of the context does not occur"
    matched = " ".join(repr(token_text(token)) for token in context[len(context) - length :])
    plural = "" if length == 1 else "s"
    lines = [f"match: {length} token{plural}, {count:,} occurrences: {matched}"]
    if not len(tree):
        return lines[0] + "\nno continuation: documents end after it"
    width = len(f"{int(tree.counts.max()):,}")

    def draw(node: int, before: str) -> None:
        children = tree.children(node).tolist()
        for child in children:
            last = child == children[-1]
            text = repr(token_text(int(tree.tokens[child])))
            lines.append(f"{int(tree.counts[child]):>{width},} {before}{'└─' if last else '├─'} {text}")
            draw(child, before + ("   " if last else "│  "))

    draw(-1, "")
    return "\n".join(lines)


def draft_as_json(tree: TokenTree, context: Sequence[int], token_text: TokenText) -> dict[str, Any]:
    """Return the match and the tree as a JSON object; nodes in tree order, `parent` -1 for a child of the context."""
    columns = zip(tree.tokens.tolist(), tree.parents.tolist(), tree.depths.tolist(), tree.counts.tolist(), strict=True)
    return {
        "context": list(context),
        "match": {"length": tree.match.length, "count": tree.match.count},
        "nodes": [
            {"token": token, "text": token_text(token), "parent": parent, "depth": depth, "count": count}
            for token, parent, depth, count in columns
        ],
    }
