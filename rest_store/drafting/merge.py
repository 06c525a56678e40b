"""Scored trees: between their two layouts, merged, and cut to some of their nodes.

A tree has two layouts: the kernel's `DraftNode`s, and the columns that a `TokenTree` holds. The
kernel takes and returns a tree as these columns (`ScoredColumns` of `rest_store/_kernel.pyi`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from rest_store.datastore.kernel import native_kernel
from rest_store.datastore.tree import TokenTree
from rest_store.drafting.draft_options import DraftOptions
from rest_store.errors import ArgumentError

if TYPE_CHECKING:
    from rest_store._kernel import ScoredColumns


def tree_from_columns(columns: ScoredColumns) -> TokenTree:
    """Return the tree of a session, as the kernel returns it."""
    nodes, scores, origins = columns
    return TokenTree.from_packed(nodes, (0, 0), scores, origins)


def _columns(tree: TokenTree) -> ScoredColumns:
    """Return a scored tree as the kernel takes it."""
    if tree.scores is None or tree.origins is None:
        raise ArgumentError("merge_trees: a tree has no scores or no origins")
    return tree.packed, tree.scores.tobytes(), tree.origins.tobytes()


def merge_trees(
    trees: Sequence[TokenTree], options: DraftOptions
) -> tuple[TokenTree, list[npt.NDArray[np.int32]]]:
    """Merge scored trees by path.

    A node's score is the mean of its scores in all trees; a tree without the node counts as 0. So
    no node has a greater score than its parent. Its origins are those of all trees. The nodes with
    the greatest scores stay; of equal ones, the nodes of the earlier tree. The most probable path
    comes first, then the other nodes by score, as in `DraftSession.draft`.

    Args:
        trees: with scores and origins. No score is greater than that of the parent, and no path
            occurs twice in a tree.
        options: of the merged tree. `max_nodes` cuts it, then `costs` cut it to the size that makes
            (1 + sum of scores) / time greatest. A chain follows the likeliest token of each
            position.

    Returns:
        The merged tree, with scores and origins. And for each of `trees`, int32[N]: for each of its
        nodes, the index of the node of the merged tree; -1: it was cut.

    Raises:
        ArgumentError: a tree has no scores or origins, or a score that is not between 0 and its
            parent's.

    Thread-safe.
    """
    columns = [_columns(tree) for tree in trees]
    try:
        merged, nodes = native_kernel().merge_trees(columns, *options)
    except ValueError as error:
        raise ArgumentError(f"merge_trees: {error}") from None
    return tree_from_columns(merged), [np.frombuffer(indices, np.int32) for indices in nodes]


def subtree(tree: TokenTree, nodes: npt.NDArray[np.intp]) -> TokenTree:
    """Return the tree of some nodes of `tree`: ascending indices, each with its parent's."""
    index_of = np.full(len(tree) + 1, -1)  # the last element stands for parent -1
    index_of[nodes] = np.arange(nodes.size)
    return TokenTree(
        tree.tokens[nodes],
        index_of[tree.parents[nodes]],
        tree.counts[nodes],
        scores=None if tree.scores is None else tree.scores[nodes],
        origins=None if tree.origins is None else tree.origins[nodes],
    )
