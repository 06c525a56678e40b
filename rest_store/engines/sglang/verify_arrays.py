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
    """Return the arrays that SGLang verifies: for each request its last token, then its draft.

    Shorter drafts are padded with nodes without ancestors. These are no children of the last token,
    and are never accepted. SGLang's own n-gram lookup pads with siblings of equal tokens, which
    could be accepted, and count more than once when it samples.

    Args:
        last: the last token of each request.
        trees: the draft of each request, of less than `nodes` tokens.
        nodes: the width.

    Returns:
        The tokens int64[B * nodes], and the mask bool[B * nodes * nodes]. The row of a node has its
        ancestors and itself; the row of padding has itself alone.
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
