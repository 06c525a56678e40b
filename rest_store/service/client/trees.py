"""Draft trees in answers: read, verified, and summed over partitions.

A faulty service causes a ProtocolError.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Sequence
from typing import TypeAlias

from rest_store.datastore.render import counted
from rest_store.datastore.tree import SuffixMatch, TokenTree
from rest_store.drafting.draft_options import DraftOptions
from rest_store.errors import ProtocolError, describe
from rest_store.v1 import datastore_pb2 as pb

TreeLimits: TypeAlias = tuple[int, int, int]  # max_nodes, max_suffix, max_depth

_NODE_BYTES = 20  # of a node of the message Tree
_SESSION_NODE_BYTES = 11  # of a node of the message DraftSessionResponse


def read_tree(message: pb.Tree, vocabulary_size: int, limits: TreeLimits, target: str) -> TokenTree:
    """Return the tree of a message.

    Raises:
        ProtocolError: not a tree of the vocabulary, parents before children, or larger than
            `limits`.
    """
    max_nodes, max_suffix, max_depth = limits
    nodes, length, count = message.nodes, message.match_length, message.match_count
    size = _size(nodes, _NODE_BYTES, max_nodes, target)
    if length > max_suffix or (length == 0) != (count == 0) or (size and not length):
        found = ", ".join(map(counted, (length, count, size), ("token", "occurrence", "node")))
        raise _invalid(target, "match", found, f"at most {max_suffix} tokens that occur")
    counts, columns = array("q", nodes[: 8 * size]), array("i", nodes[8 * size :])
    depths = _depths(columns[:size], columns[size : 2 * size], vocabulary_size, target)
    if depths != columns[2 * size :] or max(depths, default=0) > max_depth:
        raise _invalid(
            target, "depths", "wrong", f"one more than the parent's, at most {max_depth}"
        )
    if min(counts, default=1) < 1:
        raise _invalid(target, "counts", "wrong", "at least 1")
    return TokenTree.from_packed(nodes, (length, count))


def read_session_tree(
    nodes: bytes, vocabulary_size: int, limits: DraftOptions, origins: bytes, target: str
) -> TokenTree:
    """Return the tree of an answer of a session, as the message DraftSessionResponse has it.

    Args:
        nodes: packed.
        vocabulary_size: ids are `0 .. vocabulary_size - 1`.
        limits: what the tree was asked for with.
        origins: for each of the 256 masks of origins, the one that takes its place.
        target: address of the service, for messages.

    Raises:
        ProtocolError: not a tree of the vocabulary with scores, parents before children, within
            `limits`.
    """
    size = _size(nodes, _SESSION_NODE_BYTES, limits.max_nodes, target)
    scores, parents = (
        array("f", nodes[4 * size : 8 * size]),
        array("h", nodes[8 * size : 10 * size]),
    )
    depths = _depths(array("i", nodes[: 4 * size]), parents, vocabulary_size, target)
    if limits.is_chain and depths != array("i", range(1, size + 1)):
        raise _invalid(target, "parents", "those of a tree", "those of a chain")
    for parent, score in zip(parents, scores, strict=True):
        if not 0 <= score <= (1 if parent < 0 else scores[parent]):  # as NaN is not
            raise _invalid(target, "scores", "wrong", "0.. that of the parent, or 1")
    packed = b"".join(
        (bytes(8 * size), nodes[: 4 * size], array("i", parents).tobytes(), depths.tobytes())
    )
    return TokenTree.from_packed(
        packed, (0, 0), nodes[4 * size : 8 * size], nodes[10 * size :].translate(origins)
    )


def _size(nodes: bytes, node_bytes: int, max_nodes: int, target: str) -> int:
    """Return the number of packed nodes.

    Raise ProtocolError if it is not whole, or above `max_nodes`.
    """
    size, rest = divmod(len(nodes), node_bytes)
    if rest or size > max_nodes:
        raise _invalid(
            target, "nodes", f"{len(nodes)} bytes", f"up to {max_nodes} times {node_bytes} bytes"
        )
    return size


def _depths(
    tokens: array[int], parents: array[int], vocabulary_size: int, target: str
) -> array[int]:
    """Return the depth of each node; raise ProtocolError unless these are nodes of the vocabulary.

    Without numpy, whose calls take longer than a few nodes do.
    """
    if tokens and not 0 <= min(tokens) <= max(tokens) < vocabulary_size:
        raise _invalid(target, "token ids", "wrong", f"0..{vocabulary_size - 1}")
    depths = array("i")
    for node, parent in enumerate(parents):
        if not -1 <= parent < node:
            raise _invalid(target, "parents", "wrong", "each before its children")
        depths.append(1 if parent < 0 else depths[parent] + 1)
    return depths


def _invalid(target: str, what: str, found: str, expected: str) -> ProtocolError:
    return ProtocolError(describe(target, f"{what} of a draft tree", found, expected))


def sum_of_trees(trees: Sequence[TokenTree], max_nodes: int) -> TokenTree:
    """Return the tree of one context over several partitions of a
    datastore, from the tree of each partition.

    The partitions with the longest match count. Their nodes are joined by path, and their counts
    summed. A path that a partition has beyond its `max_nodes` heaviest is not in its tree, so that
    its count there is missing from the sum.
    """
    length = max(tree.match.length for tree in trees)
    longest = [tree for tree in trees if tree.match.length == length]
    if len(longest) == 1:
        return longest[0]
    counts: defaultdict[tuple[int, ...], int] = defaultdict(int)
    for tree in longest:
        paths: list[tuple[int, ...]] = []
        for token, parent, count in zip(
            tree.tokens.tolist(), tree.parents.tolist(), tree.counts.tolist(), strict=True
        ):
            paths.append((*paths[parent], token) if parent >= 0 else (token,))
            counts[paths[-1]] += count
    # A path counts no more than its beginnings, so parents stay before their children.
    kept = sorted(counts, key=lambda path: (-counts[path], len(path), path))[:max_nodes]
    index_of = {path: index for index, path in enumerate(kept)} | {(): -1}
    return TokenTree(
        [path[-1] for path in kept],
        [index_of[path[:-1]] for path in kept],
        [counts[path] for path in kept],
        match=SuffixMatch(length, sum(tree.match.count for tree in longest)),
    )
