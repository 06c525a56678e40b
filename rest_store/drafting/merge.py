"""The scored trees of several sessions, merged into one, and parts of trees."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rest_store.datastore.kernel import native_kernel
from rest_store.datastore.tree import TokenTree
from rest_store.drafting.draft_options import DraftOptions
from rest_store.errors import ArgumentError


def merge_trees(
    trees: Sequence[TokenTree], limits: DraftOptions
) -> tuple[TokenTree, list[npt.NDArray[np.int32]]]:
    """Merge scored trees by path.

    A node's score is the mean of its scores in all trees, 0 in those without it: so no node has a
    greater score than its parent. Its origins are those of all trees. The nodes with the greatest
    scores are kept; of equals those of the earlier tree. The most probable path comes first, then
    the other nodes by score, as in `DraftSession.draft`.

    Args:
        trees: with scores and origins; no score is greater than that of the parent, and no path is
            there twice.
        limits: of the merged tree: `max_nodes` cuts it, then `costs` do, to the size that makes (1
            + sum of scores) / time greatest. A chain follows the likeliest token of each position.

    Returns:
        The merged tree, with scores and origins; and for each of `trees`, int32[N]: of each of its
        nodes, the node of the merged tree that it is part of; -1: it was cut.

    Raises:
        ArgumentError: a tree has no scores or origins, or a score that is not between 0 and its
            parent's.

    Thread-safe.
    """
    columns = [_packed(tree) for tree in trees]
    try:
        (packed, scores, origins), nodes = native_kernel().merge_trees(columns, *limits)
    except ValueError as error:
        raise ArgumentError(f"merge_trees: {error}") from None
    merged = TokenTree.from_packed(packed, (0, 0), scores, origins)
    return merged, [np.frombuffer(indices, np.int32) for indices in nodes]


def part_of(tree: TokenTree, nodes: npt.NDArray[np.intp]) -> TokenTree:
    """Return a tree of some nodes of `tree`, ascending, each with its parent."""
    index_of = np.full(len(tree) + 1, -1)  # the last one stands for parent -1
    index_of[nodes] = np.arange(nodes.size)
    scores = None if tree.scores is None else tree.scores[nodes]
    origins = None if tree.origins is None else tree.origins[nodes]
    parents = index_of[tree.parents[nodes]]
    return TokenTree(
        tree.tokens[nodes], parents, tree.counts[nodes], scores=scores, origins=origins
    )


def _packed(tree: TokenTree) -> tuple[bytes, bytes, bytes]:
    if tree.scores is None or tree.origins is None:
        raise ArgumentError("merge_trees: a tree without scores or origins")
    return tree.packed, tree.scores.tobytes(), tree.origins.tobytes()
