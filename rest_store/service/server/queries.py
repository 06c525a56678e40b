"""Answers to `Draft`, `Count` and `Describe`, from the bytes of a request to those of its response."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

from rest_store.datastore.kernel import MAX_DEPTH, MAX_NODES, MAX_SUFFIX
from rest_store.datastore.tree import TokenTree
from rest_store.errors import MessageSizeError, QueryError, describe
from rest_store.service.server.catalog import Catalog
from rest_store.service.server.executor import Executor
from rest_store.service.server.hosted_datastore import HostedDatastore, reading
from rest_store.service.server.limits import Limits
from rest_store.service.server.metrics import Metrics
from rest_store.service.server.requests import (
    TreeLimits,
    parse,
    require_few,
    require_tokens,
    sequences_of,
    tails_of,
    tree_limits,
)
from rest_store.service.tokens import Grant
from rest_store.v1 import datastore_pb2 as pb

# The most work that runs in the event loop, by kind, and the most of a piece for a worker thread: a client that leaves
# wastes no more.
_SMALL_NODES, _PIECE_NODES = 512, 8192
_SMALL_COUNTS, _PIECE_COUNTS = 16, 256


class Queries:
    """Answers queries from the datastores of `catalog`. For use within one event loop.

    Each method takes the bytes of a request and what its call is allowed, returns the bytes of the response, and raises
    an error of the table in service/errors.py.
    """

    def __init__(self, catalog: Catalog, limits: Limits, metrics: Metrics, executor: Executor, version: str) -> None:
        self._catalog = catalog
        self._limits = limits
        self._metrics = metrics
        self._executor = executor
        self._version = version

    async def draft(self, data: bytes, grant: Grant) -> bytes:
        """Answer a DraftRequest."""
        request = parse(pb.DraftRequest, data)
        served = self._selected(request.selection, grant, len(request.contexts))
        limits = tree_limits(request.limits)
        contexts = tails_of(request.contexts, limits.max_suffix)
        del request  # frees the memory of a message while its work waits
        small = len(contexts) * len(served) * limits.max_nodes <= _SMALL_NODES
        response = pb.DraftResponse(datastores=[datastore.name for datastore in served])
        size, most, nodes = 0, self._limits.max_message_bytes, 0
        step = max(1, _PIECE_NODES // limits.max_nodes)
        for first in range(0, len(contexts), step):
            piece = contexts[first : first + step]
            drafts = [partial(_drafts, datastore, piece, limits, first) for datastore in served]
            columns = [await self._executor.run(draft, small=small) for draft in drafts]
            for of_context in zip(*columns, strict=True):
                for tree in of_context:
                    length, count = tree.match
                    response.trees.add(nodes=_little_endian(tree), match_length=length, match_count=count)
                    size, nodes = size + len(tree.packed), nodes + len(tree)
            if size > most:  # no more of an answer that will not be sent
                raise MessageSizeError(describe("response", "size", f"more than {size} bytes", f"at most {most}"))
        self._metrics.count_trees("Draft", len(response.trees), nodes)
        return response.SerializeToString()

    async def count(self, data: bytes, grant: Grant) -> bytes:
        """Answer a CountRequest."""
        request = parse(pb.CountRequest, data)
        served = self._selected(request.selection, grant, len(request.sequences))
        sequences = sequences_of(request.sequences)
        del request
        small = len(sequences) * len(served) <= _SMALL_COUNTS
        response = pb.CountResponse(datastores=[datastore.name for datastore in served])
        for first in range(0, len(sequences), _PIECE_COUNTS):
            counts = partial(_counts, served, sequences[first : first + _PIECE_COUNTS], first)
            response.counts.extend(await self._executor.run(counts, small=small))
        return response.SerializeToString()

    async def describe(self, data: bytes, grant: Grant) -> bytes:
        """Answer a DescribeRequest."""
        parse(pb.DescribeRequest, data)
        limits = self._limits
        return pb.DescribeResponse(
            version=self._version,
            datastores=[served.describe(writable=grant.may_write) for served in self._catalog.included(grant)],
            limits=pb.ServiceLimits(
                max_nodes=MAX_NODES,
                max_suffix=MAX_SUFFIX,
                max_depth=MAX_DEPTH,
                max_message_bytes=limits.max_message_bytes,
                max_request_bytes=limits.max_request_bytes,
                max_contexts=limits.max_contexts,
                max_streams=limits.max_streams,
                max_in_flight=limits.max_in_flight,
                max_session_tokens=limits.max_session_tokens,
                max_session_memory=limits.max_session_memory,
                session_idle_seconds=limits.session_idle_seconds,
            ),
        ).SerializeToString()

    def _selected(self, selection: pb.Selection, grant: Grant, contexts: int) -> tuple[HostedDatastore, ...]:
        """Return the datastores of a request; raise LimitError if it has too many contexts, times datastores."""
        most = self._limits.max_contexts
        require_few("datastores named", len(selection.datastores), most)
        served = self._catalog.select(selection, grant)
        require_few("contexts, times datastores,", contexts * len(served), most)
        return served


def _drafts(
    datastore: HostedDatastore, contexts: Sequence[list[int]], limits: TreeLimits, first: int
) -> list[TokenTree]:
    """Return the tree of each context; messages of errors count contexts from `first`."""
    try:
        with reading([datastore]):
            return datastore.store.draft_batch(contexts, **limits._asdict())
    except QueryError:
        require_tokens(contexts, datastore.store.vocabulary_size, "context", first)  # says which
        raise


def _counts(served: Sequence[HostedDatastore], sequences: Sequence[list[int]], first: int) -> list[int]:
    """Return the occurrences of each sequence in each datastore; messages of errors count sequences from `first`."""
    for datastore in served:
        require_tokens(sequences, datastore.store.vocabulary_size, "sequence", first)
    with reading(served):
        return [datastore.store.count(sequence) for sequence in sequences for datastore in served]


def _little_endian(tree: TokenTree) -> bytes:
    """Return the nodes as a Tree message has them."""
    if sys.byteorder == "little":
        return tree.packed
    columns = (tree.counts, tree.tokens, tree.parents, tree.depths)
    return b"".join(column.astype(column.dtype.newbyteorder("<")).tobytes() for column in columns)
