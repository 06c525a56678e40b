"""Draft trees in answers: read and verified. A faulty service causes a ProtocolError."""

from __future__ import annotations

from array import array
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from rest_store.datastore.kernel import MAX_NODES
from rest_store.datastore.render import counted
from rest_store.datastore.tree import TokenTree
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
    _require_tree(tokens, parents, vocabulary_size, target)
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
        ProtocolError: not a tree of the vocabulary, parents before children, within `limits`. The session itself looks
            at the scores.
    """
    size = _size(nodes, _SESSION_NODE_BYTES, limits.max_nodes, target)
    if not size:
        return TokenTree.from_packed(b"", (0, 0), b"", b"")
    tokens = np.frombuffer(nodes, np.int32, size)
    parents = np.frombuffer(nodes, np.int16, size, 8 * size).astype(np.int32)
    _require_tree(tokens, parents, vocabulary_size, target)
    if limits.is_chain and (parents != np.arange(-1, size - 1)).any():
        raise _invalid(target, "parents", "those of a tree", "those of a chain")
    depths = array("i")
    for parent in parents.tolist():
        depths.append(1 if parent < 0 else depths[parent] + 1)
    packed = b"".join((bytes(8 * size), nodes[: 4 * size], parents.tobytes(), depths.tobytes()))
    return TokenTree.from_packed(packed, (0, 0), nodes[4 * size : 8 * size], nodes[10 * size :].translate(origins))


def _size(nodes: bytes, node_bytes: int, max_nodes: int, target: str) -> int:
    """Return the number of packed nodes; raise ProtocolError if it is not whole, or above `max_nodes`."""
    size, rest = divmod(len(nodes), node_bytes)
    if rest or size > max_nodes:
        raise _invalid(target, "nodes", f"{len(nodes)} bytes", f"up to {max_nodes} times {node_bytes} bytes")
    return size


def _require_tree(
    tokens: npt.NDArray[np.int32], parents: npt.NDArray[np.int32], vocabulary_size: int, target: str
) -> None:
    """Raise ProtocolError unless all tokens are in the vocabulary, and parents before their children."""
    if tokens.size and tokens.view(np.uint32).max() >= vocabulary_size:  # as which negative ones are large
        raise _invalid(target, "token ids", "wrong", f"0..{vocabulary_size - 1}")
    if parents.size and (parents.min() < -1 or (parents >= _PLACES[: parents.size]).any()):
        raise _invalid(target, "parents", "wrong", "each before its children")


def _invalid(target: str, what: str, found: str, expected: str) -> ProtocolError:
    return ProtocolError(describe(target, f"{what} of a draft tree", found, expected))
