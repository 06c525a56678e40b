"""Answers of a service, read and verified: a wrong peer yields a ProtocolError, never a broken tree."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, TypeVar

import numpy as np
from google.protobuf.message import DecodeError, Message

from rest_store.datastore.kernel import MAX_NODES, native_tree_fault
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.datastore.tree import TokenTree
from rest_store.errors import ManifestError, ProtocolError, describe
from rest_store.v1 import datastore_pb2 as pb

M = TypeVar("M", bound=Message)

_NODE_SIZE = 20  # bytes of a node on the way
_PLACES = np.arange(MAX_NODES, dtype=np.uint32)
_SWAPPED = sys.byteorder == "big"
_CONTEXT = bytes(4)
_greatest, _any = np.maximum.reduce, np.logical_or.reduce  # faster than the methods of arrays
_BATCHED = 4  # trees from which on numpy verifies those of equal size together faster
_tree_fault = native_tree_fault()


@dataclass(frozen=True)
class ServedDatastore:
    """One datastore of a service.

    Attributes:
        name: what it is called there.
        tokenizer: identity of the tokenizer that it was built with.
        token_count: tokens of all shards.
        document_count: documents of all shards.
        shard_count: number of shards.
        size: bytes of all shard files.
        built: when its manifest was written.
        format_version: of its files.
        generation: 1 when the service started, one more for each time that it was swapped for a rebuilt one.
    """

    name: str
    tokenizer: TokenizerIdentity
    token_count: int
    document_count: int
    shard_count: int
    size: int
    built: datetime
    format_version: int
    generation: int


@dataclass(frozen=True)
class ServiceInfo:
    """What a service is, as far as a client asks it; named as in `DatastoreInfo` where it means the same.

    Attributes:
        target: the endpoint that answered.
        version: release of rest-store that serves.
        kernel: what answers queries there, "native" or "reference".
        datastores: those that the client asks, in the order of their answers.
        limits: name to value, as in the message ServiceLimits; 0 where the service publishes none.
    """

    target: str
    version: str
    kernel: str
    datastores: tuple[ServedDatastore, ...]
    limits: dict[str, int]

    @property
    def tokenizer(self) -> TokenizerIdentity:
        """The tokenizer of all of them."""
        return self.datastores[0].tokenizer

    @property
    def token_count(self) -> int:
        """Tokens of all of them."""
        return sum(datastore.token_count for datastore in self.datastores)

    @property
    def document_count(self) -> int:
        """Documents of all of them."""
        return sum(datastore.document_count for datastore in self.datastores)

    @property
    def shard_count(self) -> int:
        """Shards of all of them."""
        return sum(datastore.shard_count for datastore in self.datastores)

    @property
    def size(self) -> int:
        """Bytes of the files of all of them."""
        return sum(datastore.size for datastore in self.datastores)

    @property
    def built(self) -> datetime:
        """When the youngest of them was built."""
        return max(datastore.built for datastore in self.datastores)


def parsed(kind: type[M], data: bytes, where: str) -> M:
    """Return the message that `data` holds; raise ProtocolError if it is none of that kind."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        found = f"{len(data)} bytes that are none ({error})"
        raise ProtocolError(describe(where, kind.__name__, found, "a message of a datastore service")) from None


def served_by(response: pb.DescribeResponse, where: str) -> tuple[ServedDatastore, ...]:
    """Return the datastores that a service describes; raise ProtocolError for a description that cannot be."""
    found = []
    for one in response.datastores:
        fields = one.tokenizer
        described = {
            "name": fields.name,
            "fingerprint": fields.fingerprint,
            "vocabulary_size": fields.vocabulary_size,
            "special_tokens": dict(fields.special_tokens),
            "added_tokens": dict(fields.added_tokens),
        }
        try:
            tokenizer = TokenizerIdentity.from_manifest(described, f"{where}: datastore '{one.name}'")
            built = datetime.fromtimestamp(one.built.seconds + one.built.nanos / 1e9, timezone.utc)
        except (ManifestError, ValueError, OverflowError, OSError) as error:
            raise ProtocolError(describe(where, "description", f"wrong ({error})", "one of a datastore")) from None
        found.append(
            ServedDatastore(
                one.name,
                tokenizer,
                one.token_count,
                one.document_count,
                one.shard_count,
                one.size,
                built,
                one.format_version,
                one.generation,
            )
        )
    if not found or len({one.name for one in found}) != len(found):
        names = ", ".join(repr(one.name) for one in found) or "absent"
        raise ProtocolError(describe(where, "datastores", names, "one or more, each of its own name"))
    return tuple(found)


class TreeReader:
    """Reads trees of draft tokens; bound by what was asked.

    Args:
        where: the service, for messages.
        vocabulary_size: greatest token id + 1.
        max_nodes: most nodes of a tree.
        max_suffix: longest match.
        max_depth: deepest node.
    """

    __slots__ = ("_max_depth", "_max_nodes", "_max_suffix", "_vocabulary_size", "_where")

    def __init__(self, where: str, vocabulary_size: int, max_nodes: int, max_suffix: int, max_depth: int) -> None:
        self._where = where
        self._vocabulary_size = vocabulary_size
        self._max_nodes = max_nodes
        self._max_suffix = max_suffix
        self._max_depth = max_depth

    def read(self, trees: Sequence[pb.Tree]) -> list[TokenTree]:
        """Return the trees.

        Raises:
            ProtocolError: one is not a tree in the order of their parents, or larger than asked for.
        """
        packed, read = [], []
        for tree in trees:
            nodes, length, count = tree.nodes, tree.match_length, tree.match_count
            if len(nodes) % _NODE_SIZE or len(nodes) > _NODE_SIZE * self._max_nodes:
                self._refuse("nodes", f"{len(nodes)} bytes", f"up to {self._max_nodes} times {_NODE_SIZE} bytes")
            if length > self._max_suffix or (length == 0) != (count == 0) or (nodes and not length):
                found = f"{length} tokens, {count} occurrences, {len(nodes) // _NODE_SIZE} nodes"
                self._refuse("match", found, f"at most {self._max_suffix} tokens that occur")
            if _SWAPPED:
                nodes = _in_native_order(nodes)
            packed.append(nodes)
            read.append(TokenTree.from_packed(nodes, (length, count)))
        if _tree_fault is not None:
            for nodes in packed:
                fault = _tree_fault(nodes, self._vocabulary_size, self._max_depth)
                if fault:
                    self._verify([nodes])
                    raise AssertionError(f"fault {fault} of a tree that is none")
        elif len(packed) < _BATCHED:
            for nodes in packed:
                if nodes:
                    self._verify([nodes])
        else:
            by_size: dict[int, list[bytes]] = {}
            for nodes in packed:
                by_size.setdefault(len(nodes), []).append(nodes)
            for size, group in by_size.items():
                if size:
                    self._verify(group)
        return read

    def _verify(self, group: list[bytes]) -> None:
        """Raise ProtocolError unless all of `group`, packed trees of one size, are trees within the limits."""
        size = len(group[0]) // _NODE_SIZE
        # After each tree the context itself, at depth 0: the place -1 of a parent means it.
        joined = (
            group[0] + _CONTEXT if len(group) == 1 else b"".join([part for one in group for part in (one, _CONTEXT)])
        )
        columns: Any = np.frombuffer(joined, np.int32).reshape(len(group), 5 * size + 1)
        tokens, parents = columns[:, 2 * size : 3 * size], columns[:, 3 * size : 4 * size]
        depths, with_context = columns[:, 4 * size : -1], columns[:, 4 * size :]
        counts: Any = np.ascontiguousarray(columns[:, : 2 * size]).view(np.int64)
        greatest = _greatest(tokens.view(np.uint32), None)
        if greatest >= self._vocabulary_size:
            self._refuse("token ids", f"up to {greatest}", f"0..{self._vocabulary_size - 1}")
        if _any((parents + 1).view(np.uint32) > _PLACES[:size], None):
            self._refuse("parents", "not all before their children", "trees, parents first")
        if len(group) == 1:
            above = with_context[0][parents]
        else:
            above = np.take_along_axis(with_context, parents.astype(np.intp), 1)
        if _any(above + 1 != depths, None) or _greatest(depths, None) > self._max_depth:
            self._refuse("depths", "wrong", f"one more than the parent's, at most {self._max_depth}")
        least = np.minimum.reduce(counts, None)
        if least < 1:
            self._refuse("counts", f"as low as {least}", "at least 1")

    def _refuse(self, what: str, found: str, expected: str) -> None:
        raise ProtocolError(describe(self._where, f"{what} of a draft tree", found, expected))


def _in_native_order(nodes: bytes) -> bytes:
    """Return packed little-endian nodes as this machine orders bytes."""
    size = len(nodes) // _NODE_SIZE
    counts = np.frombuffer(nodes, "<i8", size).astype(np.int64)
    rest = np.frombuffer(nodes, "<i4", 3 * size, 8 * size).astype(np.int32)
    return counts.tobytes() + rest.tobytes()
