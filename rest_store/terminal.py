"""Messages of commands on a terminal while they work, and the draft trees that they show."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from rest_store.datastore.render import counted, one_line

if TYPE_CHECKING:  # `loading` works even where numpy cannot be imported
    from rest_store.datastore.tree import TokenTree


@contextmanager
def loading(thing: str) -> Iterator[None]:
    """Show on a terminal that something is loaded, and in the end the seconds that it took.

    Args:
        thing: its name, such as "tokenizer SmolLM2.gguf".
    """
    if not sys.stderr.isatty():
        yield
        return
    began = time.perf_counter()
    click.echo(f"loading {one_line(thing)} ...", nl=False, err=True)
    try:
        yield
    except BaseException:
        click.echo(err=True)
        raise
    click.echo(f" {time.perf_counter() - began:.1f} s", err=True)


def draw_draft(tree: TokenTree, context: Sequence[int], label: Callable[[int], str]) -> str:
    """Return the match and the tree as lines of text, the most frequent branches first.

    A chain of equal counts stands on one line.

    Args:
        tree: a draft for `context`.
        context: the tokens so far, oldest first.
        label: a function from a token id to its text.
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
    tree: TokenTree, context: Sequence[int], token_text: Callable[[int], str] | None = None
) -> dict[str, Any]:
    """Return the match and the tree as a JSON object.

    Nodes stand in the order of the tree; `parent` is -1 for a child of the context. With
    `token_text`, a function from a token id to its text, nodes have texts.
    """
    nodes: list[dict[str, Any]] = []
    for index in range(len(tree)):
        node: dict[str, Any] = {
            "token": int(tree.tokens[index]),
            "parent": int(tree.parents[index]),
            "depth": int(tree.depths[index]),
            "count": int(tree.counts[index]),
        }
        if token_text is not None:
            node["text"] = token_text(node["token"])
        nodes.append(node)
    match = {"length": tree.match.length, "count": tree.match.count}
    return {"context": list(context), "match": match, "nodes": nodes}
