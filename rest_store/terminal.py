"""What commands say on a terminal while they work, and the draft trees that they show."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from rest_store.datastore.render import counted, one_line

if TYPE_CHECKING:  # what is loading can be said although numpy cannot be imported
    from rest_store.datastore.tree import TokenTree


@contextmanager
def loading(what: str) -> Iterator[None]:
    """Show on a terminal that something is loaded, and in the end the seconds that it took.

    Args:
        what: such as "tokenizer SmolLM2.gguf".
    """
    if not sys.stderr.isatty():
        yield
        return
    began = time.perf_counter()
    click.echo(f"loading {one_line(what)} ...", nl=False, err=True)
    try:
        yield
    except BaseException:
        click.echo(err=True)
        raise
    click.echo(f" {time.perf_counter() - began:.1f} s", err=True)


def draw_draft(tree: TokenTree, context: Sequence[int], label: Callable[[int], str]) -> str:
    """Return the match and the tree as lines of text, most frequent
    branches first, chains of equal counts on one line.

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
            while (
                len(below := tree.children(chain[-1])) == 1
                and tree.counts[below[0]] == tree.counts[child]
            ):
                chain.append(int(below[0]))
            text = " ".join(label(int(tree.tokens[node])) for node in chain)
            lines.append(
                f"{int(tree.counts[child]):>{width},} {before}{'└─' if last else '├─'} {text}"
            )
            draw(chain[-1], before + ("   " if last else "│  "))

    draw(-1, "")
    return "\n".join(lines)


def draft_as_json(
    tree: TokenTree, context: Sequence[int], text_of: Callable[[int], str] | None = None
) -> dict[str, Any]:
    """Return the match and the tree as a JSON object.

    Nodes in tree order, `parent` -1 for a child of the context.
    """
    columns = zip(
        tree.tokens.tolist(),
        tree.parents.tolist(),
        tree.depths.tolist(),
        tree.counts.tolist(),
        strict=True,
    )
    nodes: list[dict[str, Any]] = [
        {"token": token, "parent": parent, "depth": depth, "count": count}
        for token, parent, depth, count in columns
    ]
    if text_of is not None:
        for node in nodes:
            node["text"] = text_of(node["token"])
    match = {"length": tree.match.length, "count": tree.match.count}
    return {"context": list(context), "match": match, "nodes": nodes}
