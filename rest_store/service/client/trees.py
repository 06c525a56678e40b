"""Draft trees in the answers of a service: read, validated once, and summed over partitions.

The message Tree has the layout of `TokenTree.packed`. Here its bytes enter the process, and here
their structure is validated: columns, tokens, parents and depths. A faulty service causes a
ProtocolError. Scores and the shape of a chain are validated where a tree enters a session, from
whichever member it comes (`rest_store.drafting.members.require_tree`).
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Sequence

from rest_store.datastore.render import counted
from rest_store.datastore.tree import NODE_BYTES, SuffixMatch, TokenTree
from rest_store.datastore.validation import TreeLimits
from rest_store.errors import ProtocolError, describe
from rest_store.v1 import datastore_pb2 as pb


def read_tree(message: pb.Tree, vocabulary_size: int, limits: TreeLimits, target: str) -> TokenTree:
    """Return the tree of a datastore.

    Args:
        message: as it was received.
        vocabulary_size: ids are `0 .. vocabulary_size - 1`.
        limits: of the request.
        target: address of the service, for messages.

    Raises:
        ProtocolError: the message is not a tree of the vocabulary within `limits`, or its counts or
            its match are not possible.
    """
    nodes = message.nodes
    depths = _valid_depths(nodes, vocabulary_size, limits.max_nodes, target)
    size = len(depths)
    if size and max(depths) > limits.max_depth:
        raise _invalid(target, "depths", str(max(depths)), f"at most {limits.max_depth}")
    counts = array("q", nodes[: 8 * size])
    if size and min(counts) < 1:
        raise _invalid(target, "counts", str(min(counts)), "at least 1")
    match = SuffixMatch(message.match_length, message.match_count)
    _require_match(match, size, limits.max_suffix, target)
    return TokenTree.from_packed(nodes, match)


def _require_match(match: SuffixMatch, size: int, max_suffix: int, target: str) -> None:
    """Raise ProtocolError if a tree of `size` nodes cannot follow the match."""
    is_empty = match == (0, 0)
    is_whole = match.count > 0 and 0 < match.length <= max_suffix
    if is_whole or (is_empty and size == 0):
        return
    length = counted(match.length, "token")
    count = counted(match.count, "occurrence")
    nodes = counted(size, "node")
    expected = f"at most {max_suffix} tokens that occur"
    raise _invalid(target, "match", f"{length}, {count}, {nodes}", expected)


def read_session_tree(
    message: pb.Tree, vocabulary_size: int, max_nodes: int, origins: bytes, target: str
) -> TokenTree:
    """Return the tree of a session, whose scores are not validated.

    Args:
        message: as it was received.
        vocabulary_size: ids are `0 .. vocabulary_size - 1`.
        max_nodes: of the request.
        origins: for each of the 256 masks of origins, the mask that takes its place.
        target: address of the service, for messages.

    Raises:
        ProtocolError: the message is not a tree of the vocabulary with scores and origins, or has
            more than `max_nodes` nodes.
    """
    nodes = message.nodes
    scores = message.scores
    proposers = message.origins
    size = len(_valid_depths(nodes, vocabulary_size, max_nodes, target))
    if len(scores) != 4 * size:
        raise _invalid(target, "scores", f"{len(scores)} bytes", f"{4 * size} bytes")
    if len(proposers) != size:
        raise _invalid(target, "origins", f"{len(proposers)} bytes", f"{size} bytes")
    return TokenTree.from_packed(nodes, (0, 0), scores, proposers.translate(origins))


def _valid_depths(nodes: bytes, vocabulary_size: int, max_nodes: int, target: str) -> array[int]:
    """Return the depth of each node.

    This works without numpy, whose calls take longer than the few nodes of a tree.

    Raises:
        ProtocolError: the bytes are not whole nodes, at most `max_nodes`, with tokens of the
            vocabulary, parents before their children, and depths that follow from the parents.
    """
    size, rest = divmod(len(nodes), NODE_BYTES)
    if rest or size > max_nodes:
        expected = f"up to {max_nodes} times {NODE_BYTES} bytes"
        raise _invalid(target, "nodes", f"{len(nodes)} bytes", expected)
    columns = array("i", nodes[8 * size :])
    tokens = columns[:size]
    parents = columns[size : 2 * size]
    if size and not 0 <= min(tokens) <= max(tokens) < vocabulary_size:
        raise _invalid(target, "token ids", "outside the vocabulary", f"0..{vocabulary_size - 1}")
    depths = array("i")
    for node, parent in enumerate(parents):
        if not -1 <= parent < node:
            raise _invalid(target, "parents", f"{parent} at node {node}", f"-1..{node - 1}")
        depth = 1 if parent == -1 else depths[parent] + 1
        depths.append(depth)
    if depths != columns[2 * size :]:
        raise _invalid(target, "depths", "others", "those of the parents and 1")
    return depths


def _invalid(target: str, name: str, actual: str, expected: str) -> ProtocolError:
    return ProtocolError(describe(target, f"{name} of a draft tree", actual, expected))


def sum_trees(trees: Sequence[TokenTree], max_nodes: int) -> TokenTree:
    """Return the tree of one context over a datastore, from the tree of each of its partitions.

    Trees of partitions with a shorter match than others are left out. Nodes with the same path
    become one, whose count is the sum of theirs. A partition's tree has only its `max_nodes`
    heaviest paths, so the counts of others are missing from the sum.
    """
    length = max(tree.match.length for tree in trees)
    longest = [tree for tree in trees if tree.match.length == length]
    if len(longest) == 1:
        return longest[0]
    counts: defaultdict[tuple[int, ...], int] = defaultdict(int)
    for tree in longest:
        for path, count in zip(_paths(tree), tree.counts.tolist(), strict=True):
            counts[path] += count

    def rank(path: tuple[int, ...]) -> tuple[int, int, tuple[int, ...]]:
        return -counts[path], len(path), path

    # The count of a path is at most that of its parent, so parents stay before their children.
    heaviest = sorted(counts, key=rank)[:max_nodes]
    index_by_path = {path: index for index, path in enumerate(heaviest)}
    index_by_path[()] = -1
    return TokenTree(
        [path[-1] for path in heaviest],
        [index_by_path[path[:-1]] for path in heaviest],
        [counts[path] for path in heaviest],
        match=SuffixMatch(length, sum(tree.match.count for tree in longest)),
    )


def _paths(tree: TokenTree) -> list[tuple[int, ...]]:
    """Return the path of each node: the tokens after the context, up to the node's own."""
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
        above = () if parent == -1 else paths[parent]
        paths.append((*above, token))
    return paths
