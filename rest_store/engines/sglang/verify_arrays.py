"""The drafts of a batch as SGLang verifies them: arrays of one width for all requests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rest_store.datastore.tree import TokenTree

_PAD = 0  # a token that any vocabulary has


def verify_arrays(
    last: Sequence[int], trees: Sequence[TokenTree], nodes: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Return what SGLang verifies for each request: its last token
    and the draft below it, parents first.

    Drafts of fewer nodes are padded with nodes that nothing leads to: without ancestors, they are
    no children of the last token, and are never accepted. Siblings of equal tokens, as SGLang's own
    n-gram lookup pads with, could be, and would be counted more than once when it samples.

    Args:
        last: the last token of each request.
        trees: its draft, of less than `nodes` tokens.
        nodes: the width.

    Returns:
        The tokens int64[B * nodes], and the mask bool[B * nodes * nodes], in which the row of a
        node has its ancestors and itself; that of padding has itself alone.
    """
    tokens = np.full((len(trees), nodes), _PAD, np.int64)
    mask = np.zeros((len(trees), nodes, nodes), np.bool_)
    mask[:, range(nodes), range(nodes)] = True
    tokens[:, 0] = last
    for row, tree in enumerate(trees):
        size = 1 + len(tree)
        tokens[row, 1:size] = tree.tokens
        mask[row, :size, 0] = True
        mask[row, 1:size, 1:size] = tree.mask()
    return tokens.reshape(-1), mask.reshape(-1)
