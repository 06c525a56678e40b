"""What sessions draft for one row: the check of a tree, and the part of it that is verified."""

from __future__ import annotations

import numpy as np

from rest_store.datastore.tree import TokenTree

EMPTY = TokenTree([], [], [])


def tree_fault(tree: object, max_nodes: int, vocabulary_size: int) -> str | None:
    """Return why `tree` cannot be verified; None if it can."""
    if not isinstance(tree, TokenTree):
        return f"a {type(tree).__name__}, not a TokenTree"
    if len(tree) > max_nodes:
        return f"{len(tree)} nodes, asked for at most {max_nodes}"
    if len(tree) and not 0 <= int(tree.tokens.min()) <= int(tree.tokens.max()) < vocabulary_size:
        return f"a token outside 0..{vocabulary_size - 1}"
    return None


def pruned(tree: TokenTree, max_depth: int) -> TokenTree:
    """Return the part of `tree` that is at most `max_depth` deep, all of it if that can still be accepted."""
    kept = np.flatnonzero(tree.depths <= max_depth)
    if kept.size == len(tree):
        return tree
    indices = np.full(len(tree) + 1, -1, dtype=np.int64)  # the last one stands for parent -1
    indices[kept] = np.arange(kept.size)
    return TokenTree(
        tree.tokens[kept],
        indices[tree.parents[kept]],
        tree.counts[kept],
        scores=None if tree.scores is None else tree.scores[kept],
        origins=None if tree.origins is None else tree.origins[kept],
    )


def origins_of(tree: TokenTree) -> list[int]:
    """Return for each node a bitmask of the sources that proposed it; all 1 if the session does not say."""
    return [1] * len(tree) if tree.origins is None else tree.origins.tolist()


def promised(tree: TokenTree) -> float:
    """Return how many of its tokens are accepted by their scores, as probabilities; without scores, all of them."""
    return float(len(tree)) if tree.scores is None else float(tree.scores.sum())
