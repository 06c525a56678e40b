"""What is wrong with a draft tree that nobody has checked."""

from __future__ import annotations

import numpy as np

from rest_store.datastore.tree import TokenTree


def tree_fault(tree: object, max_nodes: int, vocabulary_size: int) -> str | None:
    """Why `tree` cannot be verified; None if it can."""
    if not isinstance(tree, TokenTree):
        return f"a {type(tree).__name__}, not a TokenTree"
    size = len(tree)
    columns = [column for column in (tree.origins, tree.scores) if column is not None]
    if size > max_nodes:
        return f"{size} nodes, asked for at most {max_nodes}"
    if len(tree.packed) != 20 * size or any(len(column) != size for column in columns):
        return "columns of unequal length"
    tokens = tree.tokens
    parents = tree.parents
    depths = tree.depths
    if size and not 0 <= int(tokens.min()) <= int(tokens.max()) < vocabulary_size:
        return f"a token outside 0..{vocabulary_size - 1}"
    if bool(((parents >= np.arange(size)) | (parents < -1)).any()):
        return "a parent that does not come before its child"
    if bool((depths != np.where(parents < 0, 0, depths[parents]) + 1).any()):
        return "depths that do not follow from parents"
    return None
