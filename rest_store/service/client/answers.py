"""Answers of a service, read and verified: a faulty service causes a ProtocolError, never a broken tree."""

from __future__ import annotations

import reprlib
import sys
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TypeVar

import numpy as np
from google.protobuf.message import DecodeError, Message
from google.protobuf.timestamp_pb2 import Timestamp

from rest_store.datastore.kernel import MAX_NODES, native_kernel
from rest_store.datastore.render import counted
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.datastore.tree import TokenTree
from rest_store.errors import ManifestError, ProtocolError, describe
from rest_store.service.served_part import ServedPart
from rest_store.v1 import datastore_pb2 as pb

M = TypeVar("M", bound=Message)

# Largest sizes of answers and their parts, in bytes.
DESCRIPTION_BYTES = 4 << 20
NUMBER_BYTES = 64  # of a few numbers, and the headers of messages
_NODE_SIZE = 20
_ROW_SIZE = 4 + 2 + 1 + 6 * (11 + 16 * 5)  # token, parent, and six suffixes of sixteen continuations
_MOST_DATASTORES = 1024  # of a service
_LONGEST_DIGEST = 128  # characters


@dataclass(frozen=True)
class LiveDescription:
    """What a service says of a live datastore beyond `ServedDatastore`; names as in `LiveInfo`.

    Attributes:
        writable: whether the token of this client may add and delete.
    """

    memory_token_count: int
    memory_size: int
    oldest: datetime | None
    max_tokens: int | None
    max_age: float | None
    failure: str | None
    writable: bool


@dataclass(frozen=True)
class ServedDatastore:
    """One datastore of a service; fields as in the message DatastoreDescription.

    Attributes:
        built: of a live one, when the newest document was added; None: there is none.
        live: None: the datastore is frozen.
        part: which part of a larger datastore this is; None: it is whole.
    """

    name: str
    tokenizer: TokenizerIdentity
    token_count: int
    document_count: int
    shard_count: int
    size: int
    built: datetime | None
    format_version: int
    generation: int
    live: LiveDescription | None
    part: ServedPart | None = None


@dataclass(frozen=True)
class PartInfo:
    """What a client knows of one part of a datastore that is served in parts.

    Attributes:
        targets: the endpoints of its replicas.
        part: which part of which build it is; None: not known yet.
        fault: why the part is missing from the latest answer; None: it is not.
        info: description of its service; None: not known yet.
    """

    targets: tuple[str, ...]
    part: ServedPart | None
    fault: str | None
    info: ServiceInfo | None


@dataclass(frozen=True)
class ServiceInfo:
    """What a client asks of a service; names as in `DatastoreInfo` where they mean the same.

    Attributes:
        target: the endpoint that answered.
        version: release of rest-store that serves.
        kernel: what answers queries there, "native" or "reference".
        datastores: those that the client asks, in the order of their answers.
        limits: name to value, as in the message ServiceLimits; 0 where the service publishes none.
        parts: the parts of a datastore that is served in parts; `target` then has all endpoints, and the figures of the
            datastores are sums over the parts that have answered. Empty: the datastores are whole.
    """

    target: str
    version: str
    kernel: str
    datastores: tuple[ServedDatastore, ...]
    limits: dict[str, int]
    parts: tuple[PartInfo, ...] = ()

    @property
    def tokenizer(self) -> TokenizerIdentity:
        """The tokenizer of all datastores."""
        return self.datastores[0].tokenizer

    @property
    def token_count(self) -> int:
        """Tokens of all datastores."""
        return sum(datastore.token_count for datastore in self.datastores)

    @property
    def document_count(self) -> int:
        """Documents of all datastores."""
        return sum(datastore.document_count for datastore in self.datastores)

    @property
    def shard_count(self) -> int:
        """Shards of all datastores."""
        return sum(datastore.shard_count for datastore in self.datastores)

    @property
    def size(self) -> int:
        """Bytes of the files of all datastores."""
        return sum(datastore.size for datastore in self.datastores)

    @property
    def built(self) -> datetime | None:
        """When the youngest datastore was built, or its newest document added; None: there is nothing in them."""
        return max((datastore.built for datastore in self.datastores if datastore.built is not None), default=None)


def tree_bytes(max_nodes: int) -> int:
    """Return the size of the largest tree of `max_nodes` in an answer."""
    return _NODE_SIZE * max_nodes + NUMBER_BYTES


def evidence_bytes(limits: pb.EvidenceLimits) -> int:
    """Return the size of the largest evidence within `limits` in an answer; an old service answers with a tree."""
    return max(_ROW_SIZE * limits.max_rows + NUMBER_BYTES, tree_bytes(MAX_NODES))


def parse(kind: type[M], data: bytes, where: str, most: int) -> M:
    """Return the message in `data`; raise ProtocolError if it is not of type `kind`, or larger than `most` bytes."""
    if len(data) > most:  # checked first: a parsed message may take many times its size
        raise ProtocolError(describe(where, f"size of a {kind.__name__}", f"{len(data)} bytes", f"at most {most}"))
    try:
        return kind.FromString(data)
    except DecodeError as error:
        found = f"{len(data)} malformed bytes ({error})"
        raise ProtocolError(describe(where, kind.__name__, found, "a message of a datastore service")) from None


def served_by(response: pb.DescribeResponse, where: str) -> tuple[ServedDatastore, ...]:
    """Return the datastores that a service describes; raise ProtocolError if it is not valid."""
    if len(response.datastores) > _MOST_DATASTORES:
        expected = f"at most {_MOST_DATASTORES}"
        raise ProtocolError(describe(where, "number of datastores", len(response.datastores), expected))
    served = []
    for datastore in response.datastores:
        fields = datastore.tokenizer
        described = {
            "name": fields.name,
            "fingerprint": fields.fingerprint,
            "vocabulary_size": fields.vocabulary_size,
            "special_tokens": dict(fields.special_tokens),
            "added_tokens": dict(fields.added_tokens),
        }
        try:
            tokenizer = TokenizerIdentity.from_manifest(described, f"{where}: datastore '{datastore.name}'")
            live = _live(datastore.live) if datastore.HasField("live") else None
            built = None if live is not None and not datastore.HasField("built") else _time(datastore.built)
        except (ManifestError, ValueError, OverflowError, OSError) as error:
            raise ProtocolError(describe(where, "description", f"wrong ({error})", "one of a datastore")) from None
        sizes = (datastore.token_count, datastore.document_count, datastore.shard_count, datastore.size)
        part = ServedPart.of(datastore.part) if datastore.HasField("part") else None
        if part is not None and (not 1 <= part.number <= part.parts or len(part.build) > _LONGEST_DIGEST):
            raise ProtocolError(
                describe(where, f"part of datastore '{datastore.name}'", part, "one of the parts that there are")
            )
        versions = (datastore.format_version, datastore.generation)
        served.append(ServedDatastore(datastore.name, tokenizer, *sizes, built, *versions, live, part))
    if not served or len({datastore.name for datastore in served}) != len(served):
        names = reprlib.repr([datastore.name for datastore in served]) if served else "absent"
        raise ProtocolError(describe(where, "datastores", names, "one or more, with distinct names"))
    return tuple(served)


def _live(message: pb.LiveDescription) -> LiveDescription:
    return LiveDescription(
        message.memory_token_count,
        message.memory_size,
        _time(message.oldest) if message.HasField("oldest") else None,
        message.max_tokens or None,
        message.max_age or None,
        message.failure or None,
        message.writable,
    )


def _time(message: Timestamp) -> datetime:
    """Return the time of a message; raise ValueError, OverflowError or OSError if it is out of range."""
    return datetime.fromtimestamp(message.seconds + message.nanos / 1e9, timezone.utc)


def read_tree(message: pb.Tree, vocabulary_size: int, limits: tuple[int, int, int], where: str) -> TokenTree:
    """Return the tree of a message.

    Raises:
        ProtocolError: not a tree of the vocabulary, parents before children, or larger than `limits`, the max_nodes,
            max_suffix and max_depth of the request.
    """
    max_nodes, max_suffix, max_depth = limits
    nodes, length, count = message.nodes, message.match_length, message.match_count
    if len(nodes) % _NODE_SIZE or len(nodes) > _NODE_SIZE * max_nodes:
        raise _invalid(where, "nodes", f"{len(nodes)} bytes", f"up to {max_nodes} times {_NODE_SIZE} bytes")
    if length > max_suffix or (length == 0) != (count == 0) or (nodes and not length):
        found = ", ".join(map(counted, (length, count, len(nodes) // _NODE_SIZE), ("token", "occurrence", "node")))
        raise _invalid(where, "match", found, f"at most {max_suffix} tokens that occur")
    if sys.byteorder == "big":
        nodes = native_order(nodes)
    fault = _tree_fault(nodes, vocabulary_size, max_depth)
    if fault:
        what, expected = (
            ("token ids", f"0..{vocabulary_size - 1}"),
            ("parents", "each before its children"),
            ("depths", f"one more than the parent's, at most {max_depth}"),
            ("counts", "at least 1"),
        )[fault - 1]
        raise _invalid(where, what, "wrong", expected)
    return TokenTree.from_packed(nodes, (length, count))


def _invalid(where: str, what: str, found: str, expected: str) -> ProtocolError:
    return ProtocolError(describe(where, f"{what} of a draft tree", found, expected))


def native_order(nodes: bytes) -> bytes:
    """Return packed little-endian nodes as this machine orders bytes."""
    size = len(nodes) // _NODE_SIZE
    counts = np.frombuffer(nodes, "<i8", size).astype(np.int64)
    rest = np.frombuffer(nodes, "<i4", 3 * size, 8 * size).astype(np.int32)
    return counts.tobytes() + rest.tobytes()


def tree_fault(nodes: bytes, vocabulary_size: int, max_depth: int) -> int:
    """Return a fault of packed nodes, numbered as by the kernel's check; 0: there is none."""
    size = len(nodes) // _NODE_SIZE
    counts = np.frombuffer(nodes, np.int64, size)
    tokens, parents, depths = np.frombuffer(nodes, np.int32, 3 * size, 8 * size).reshape(3, size)
    if ((tokens < 0) | (tokens >= vocabulary_size)).any():
        return 1
    if ((parents < -1) | (parents >= np.arange(size))).any():
        return 2
    with_context = np.append(depths.astype(np.int64), 0)  # the parent at place -1 is the context, at depth 0
    if ((depths != with_context[parents] + 1) | (depths > max_depth)).any():
        return 3
    return 4 if (counts < 1).any() else 0


_tree_fault = native_kernel().tree_fault
