"""Draft trees in answers: read, verified, and summed over parts. A faulty service causes a ProtocolError."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np

from rest_store.datastore.kernel import MAX_NODES
from rest_store.datastore.render import counted
from rest_store.datastore.tree import SuffixMatch, TokenTree
from rest_store.drafting.limits import DraftLimits
from rest_store.errors import ProtocolError, describe
from rest_store.v1 import datastore_pb2 as pb

TreeLimits: TypeAlias = tuple[int, int, int]  # max_nodes, max_suffix, max_depth

_PLACES = np.arange(MAX_NODES, dtype=np.int32)
_NODE_BYTES = 20  # of a node of the message Tree
_SESSION_NODE_BYTES = 11  # of a node of the message DraftSessionResponse


def read_tree(message: pb.Tree, vocabulary_size: int, limits: TreeLimits, target: str) -> TokenTree:
    """Return the tree of a message.

    Raises:
        ProtocolError: not a tree of the vocabulary, parents before children, or larger than `limits`.
    """
    max_nodes, max_suffix, max_depth = limits
    nodes, length, count = message.nodes, message.match_length, message.match_count
    size = _size(nodes, _NODE_BYTES, max_nodes, target)
    if length > max_suffix or (length == 0) != (count == 0) or (size and not length):
        found = ", ".join(map(counted, (length, count, size), ("token", "occurrence", "node")))
        raise _invalid(target, "match", found, f"at most {max_suffix} tokens that occur")
    counts = np.frombuffer(nodes, np.int64, size)
    columns = np.frombuffer(nodes, np.int32, 3 * size, 8 * size)
    tokens, parents, depths = columns.reshape(3, size)
    if size and not 0 <= tokens.min() <= tokens.max() < vocabulary_size:
        raise _invalid(target, "token ids", "wrong", f"0..{vocabulary_size - 1}")
    if ((parents < -1) | (parents >= _PLACES[:size])).any():
        raise _invalid(target, "parents", "wrong", "each before its children")
    above = np.append(depths.astype(np.int64), 0)[parents]  # the parent at place -1 is the context, at depth 0
    if ((depths != above + 1) | (depths > max_depth)).any():
        raise _invalid(target, "depths", "wrong", f"one more than the parent's, at most {max_depth}")
    if (counts < 1).any():
        raise _invalid(target, "counts", "wrong", "at least 1")
    return TokenTree.from_packed(nodes, (length, count))


def read_session_tree(
    nodes: bytes, vocabulary_size: int, limits: DraftLimits, origins: bytes, target: str
) -> TokenTree:
    """Return the tree of an answer of a session, as the message DraftSessionResponse has it.

    Args:
        nodes: packed.
        vocabulary_size: ids are `0 .. vocabulary_size - 1`.
        limits: what the tree was asked for with.
        origins: for each of the 256 masks of origins, the one that takes its place.
        target: address of the service, for messages.

    Raises:
        ProtocolError: not a tree of the vocabulary with scores, parents before children, within `limits`.
    """
    size = _size(nodes, _SESSION_NODE_BYTES, limits.max_nodes, target)
    # Without numpy, whose calls take longer than a few nodes do.
    tokens, scores = array("i", nodes[: 4 * size]), array("f", nodes[4 * size : 8 * size])
    parents, depths = array("h", nodes[8 * size : 10 * size]), array("i")
    if size and not 0 <= min(tokens) <= max(tokens) < vocabulary_size:
        raise _invalid(target, "token ids", "wrong", f"0..{vocabulary_size - 1}")
    for place, parent in enumerate(parents):
        if not (parent == place - 1 if limits.is_chain else -1 <= parent < place):
            raise _invalid(target, "parents", "wrong", "each before its children, in a chain right before")
        if not 0 <= scores[place] <= (1 if parent < 0 else scores[parent]):  # as NaN is not
            raise _invalid(target, "scores", "wrong", "0.. that of the parent, or 1")
        depths.append(1 if parent < 0 else depths[parent] + 1)
    packed = b"".join((bytes(8 * size), nodes[: 4 * size], array("i", parents).tobytes(), depths.tobytes()))
    return TokenTree.from_packed(packed, (0, 0), nodes[4 * size : 8 * size], nodes[10 * size :].translate(origins))


def _size(nodes: bytes, node_bytes: int, max_nodes: int, target: str) -> int:
    """Return the number of packed nodes; raise ProtocolError if it is not whole, or above `max_nodes`."""
    size, rest = divmod(len(nodes), node_bytes)
    if rest or size > max_nodes:
        raise _invalid(target, "nodes", f"{len(nodes)} bytes", f"up to {max_nodes} times {node_bytes} bytes")
    return size


def _invalid(target: str, what: str, found: str, expected: str) -> ProtocolError:
    return ProtocolError(describe(target, f"{what} of a draft tree", found, expected))


def sum_of_trees(trees: Sequence[TokenTree], max_nodes: int) -> TokenTree:
    """Return the tree of one context over several parts of a datastore, from the tree of each part.

    The parts with the longest match count. Their nodes are joined by path, and their counts summed. A path that a part
    has beyond its `max_nodes` heaviest is not in its tree, so that its count there is missing from the sum.
    """
    length = max(tree.match.length for tree in trees)
    longest = [tree for tree in trees if tree.match.length == length]
    if len(longest) == 1:
        return longest[0]
    counts: defaultdict[tuple[int, ...], int] = defaultdict(int)
    for tree in longest:
        paths: list[tuple[int, ...]] = []
        for token, parent, count in zip(tree.tokens.tolist(), tree.parents.tolist(), tree.counts.tolist(), strict=True):
            paths.append((*paths[parent], token) if parent >= 0 else (token,))
            counts[paths[-1]] += count
    # A path counts no more than its beginnings, so parents stay before their children.
    kept = sorted(counts, key=lambda path: (-counts[path], len(path), path))[:max_nodes]
    places = {path: place for place, path in enumerate(kept)} | {(): -1}
    return TokenTree(
        [path[-1] for path in kept],
        [places[path[:-1]] for path in kept],
        [counts[path] for path in kept],
        match=SuffixMatch(length, sum(tree.match.count for tree in longest)),
    )
