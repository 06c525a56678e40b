"""The kernel that reads trees from their masks; see the package."""

from __future__ import annotations

from typing import Any

import torch

from sgl_kernel import __getattr__ as _absent


def reconstruct_indices_from_tree_mask(
    mask: torch.Tensor,
    lengths: torch.Tensor,
    positions: torch.Tensor,
    index: torch.Tensor,
    next_token: torch.Tensor,
    next_sibling: torch.Tensor,
    batch: int,
    nodes: int,
) -> None:
    """Write positions and links of the nodes.

    The last ancestor in a node's row of the mask is its parent.
    """
    trees = mask.view(batch, nodes, nodes).tolist()
    for row, tree in enumerate(trees):
        ancestors = [[node for node in range(child) if tree[child][node]] for child in range(nodes)]
        parents = [above[-1] if above else -1 for above in ancestors]
        for node in range(nodes):
            children = [child for child in range(node + 1, nodes) if parents[child] == node]
            siblings = [
                other for other in range(node + 1, nodes) if parents[other] == parents[node]
            ]
            positions[row * nodes + node] = int(lengths[row]) + len(ancestors[node])
            index[row, node] = row * nodes + node
            next_token[row, node] = children[0] if children else -1
            next_sibling[row, node] = siblings[0] if siblings and parents[node] >= 0 else -1


def __getattr__(name: str) -> Any:
    return _absent(name)
