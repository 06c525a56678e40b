"""Answers to `Draft`, `Count` and `Describe`, from the bytes of a request to those of its response."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rest_store.datastore.kernel import MAX_DEPTH, MAX_NODES, MAX_SUFFIX
from rest_store.datastore.tree import TokenTree
from rest_store.datastore.validation import limits as tree_limits
from rest_store.datastore.validation import tails
from rest_store.errors import MessageSizeError, QueryError, describe
from rest_store.service.server.catalog import Catalog
from rest_store.service.server.executor import Executor
from rest_store.service.server.hosted_datastore import HostedDatastore, reading
from rest_store.service.server.limits import Limits
from rest_store.service.server.metrics import Metrics
from rest_store.service.server.requests import parse, require_few, sequences_of
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
        served = self._selected(request.selection, len(request.contexts), grant)
        asked = request.limits
        limits = tree_limits(asked.max_nodes or 64, asked.max_suffix or 16, asked.max_depth or 10)
        max_nodes, max_suffix, _ = limits
        contexts = [context.tokens[-max_suffix:] for context in request.contexts]
        del request  # frees the memory of a message while its work waits
        small = len(contexts) * len(served) * max_nodes <= _SMALL_NODES
        response = pb.DraftResponse(datastores=[datastore.name for datastore in served])
        size, most, nodes = 0, self._limits.max_message_bytes, 0
        step = max(1, _PIECE_NODES // max_nodes)
        for first in range(0, len(contexts), step):
            piece = slice(first, first + step)
            drafts = [partial(_drafts, datastore, contexts, piece, limits) for datastore in served]
            columns = [await self._executor.run(draft, small=small) for draft in drafts]
            for of_context in zip(*columns, strict=True):
                for tree in of_context:
                    length, count = tree.match
                    response.trees.add(nodes=tree.packed, match_length=length, match_count=count)
                    size, nodes = size + len(tree.packed), nodes + len(tree)
            if size > most:  # no more of an answer that will not be sent
                raise MessageSizeError(describe("response", "size", f"more than {size} bytes", f"at most {most}"))
        self._metrics.count_trees("Draft", len(response.trees), nodes)
        return response.SerializeToString()

    async def count(self, data: bytes, grant: Grant) -> bytes:
        """Answer a CountRequest."""
        request = parse(pb.CountRequest, data)
        served = self._selected(request.selection, len(request.sequences), grant)
        sequences = sequences_of(request.sequences)
        del request
        small = len(sequences) * len(served) <= _SMALL_COUNTS
        response = pb.CountResponse(datastores=[datastore.name for datastore in served])
        for first in range(0, len(sequences), _PIECE_COUNTS):
            counts = partial(_counts, served, sequences[first : first + _PIECE_COUNTS])
            response.counts.extend(await self._executor.run(counts, small=small))
        return response.SerializeToString()

    async def describe(self, data: bytes, grant: Grant) -> bytes:
        """Answer a DescribeRequest."""
        parse(pb.DescribeRequest, data)
        limits = {
            **vars(self._limits),
            "max_request_bytes": self._limits.max_request_bytes,
            "max_nodes": MAX_NODES,
            "max_suffix": MAX_SUFFIX,
            "max_depth": MAX_DEPTH,
        }
        return pb.DescribeResponse(
            version=self._version,
            datastores=[served.describe(writable=grant.may_write) for served in self._catalog.served],
            limits=pb.ServiceLimits(**{name: limits[name] for name in pb.ServiceLimits.DESCRIPTOR.fields_by_name}),
        ).SerializeToString()

    def _selected(self, selection: pb.Selection, contexts: int, grant: Grant) -> tuple[HostedDatastore, ...]:
        """Return the datastores of a request; raise LimitError if it has too many contexts, times datastores."""
        most = self._limits.max_contexts
        require_few("datastores named", len(selection.datastores), most)
        served = self._catalog.select(selection, grant)
        require_few("contexts, times datastores,", contexts * len(served), most)
        return served


def _drafts(
    datastore: HostedDatastore, contexts: Sequence[list[int]], piece: slice, limits: tuple[int, int, int]
) -> list[TokenTree]:
    """Return the tree of each context of a piece; messages of errors count all contexts."""
    max_nodes, max_suffix, max_depth = limits
    try:
        with reading([datastore]):
            return datastore.store.draft_batch(
                contexts[piece], max_nodes=max_nodes, max_suffix=max_suffix, max_depth=max_depth
            )
    except QueryError:
        tails(contexts, max_suffix, datastore.store.vocabulary_size)  # says which
        raise


def _counts(served: Sequence[HostedDatastore], sequences: Sequence[list[int]]) -> list[int]:
    """Return the occurrences of each sequence in each datastore."""
    with reading(served):
        return [datastore.store.count(sequence) for sequence in sequences for datastore in served]
