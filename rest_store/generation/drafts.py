"""What a session drafts for one row: the check of its tree, and the part of it that is verified."""

from __future__ import annotations

import numpy as np

from rest_store.datastore.tree import TokenTree

EMPTY = TokenTree([], [], [])


def tree_fault(tree: object, max_nodes: int, vocabulary_size: int) -> str | None:
    """Return why `tree` cannot be verified; None if it can."""
    if type(tree) is not TokenTree:  # a subclass may answer anything
        return f"a {type(tree).__name__}, not a TokenTree"
    size = len(tree)
    if not size:
        return None
    if size > max_nodes:
        return f"{size} nodes, asked for at most {max_nodes}"
    columns = [column for column in (tree.origins, tree.scores) if column is not None]
    if len(tree.packed) != 20 * size or any(len(column) != size for column in columns):
        return "columns of unequal length"
    tokens, parents, depths = tree.tokens, tree.parents, tree.depths
    if int(tokens.min()) < 0 or int(tokens.max()) >= vocabulary_size:
        return f"a token outside 0..{vocabulary_size - 1}"
    if bool((parents >= np.arange(size)).any()) or int(parents.min()) < -1:
        return "a parent that does not come before its child"
    if bool((depths != np.where(parents < 0, 0, depths[parents]) + 1).any()):
        return "depths that do not follow from parents"
    return None


class Draft:
    """The tree of one row, cut to the depth that can still be accepted.

    Args:
        tree: a valid tree.
        max_depth: depth of its deepest node that is verified.

    Attributes:
        tree: what is verified.
        whole: whether nothing was cut off.
        origins: for each node of `tree` a bitmask of the sources that proposed it; all 1 if the session does not say.
    """

    def __init__(self, tree: TokenTree, max_depth: int) -> None:
        kept = np.flatnonzero(tree.depths <= max_depth)
        origins = tree.origins if tree.origins is not None else np.ones(len(tree), dtype=np.int64)
        self.tree = tree
        self.whole = kept.size == len(tree)
        self.origins: list[int] = origins[kept].tolist()
        if not self.whole:
            indices = np.full(len(tree) + 1, -1, dtype=np.int64)  # the last one stands for parent -1
            indices[kept] = np.arange(kept.size)
            scores = None if tree.scores is None else tree.scores[kept]
            self.tree = TokenTree(tree.tokens[kept], indices[tree.parents[kept]], tree.counts[kept], scores=scores)

    @property
    def promised(self) -> float:
        """How many draft tokens are accepted by their scores, as probabilities; without such scores, all of them."""
        scores = self.tree.scores
        if scores is None or not bool((scores >= 0).all() and (scores <= 1).all()):
            return float(len(self.tree))
        return float(scores.sum())


NO_DRAFT = Draft(EMPTY, 0)
