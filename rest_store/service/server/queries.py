"""Answers to `Draft`, `Count` and `Describe`, from bytes to bytes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from rest_store.datastore.kernel import MAX_SEQUENCE
from rest_store.datastore.tree import NODE_BYTES, TokenTree
from rest_store.datastore.validation import TreeLimits, check_tree_limits
from rest_store.service.bearer_tokens import Grant
from rest_store.service.server.catalog import Catalog, HostedDatastore, reading
from rest_store.service.server.executor import Executor
from rest_store.service.server.metrics import Metrics
from rest_store.service.server.request_checks import parse, require_few
from rest_store.service.server.service_limits import ServiceLimits
from rest_store.v1 import datastore_pb2 as pb

_SMALL_NODES = 512  # that are drafted in the event loop


class Queries:
    """Answers queries from the datastores of `catalog`. For use within one event loop.

    Each method takes the bytes of a request and the grant of its call, and returns the bytes of the
    response. It raises errors of the table in service/statuses.py.
    """

    def __init__(
        self,
        catalog: Catalog,
        limits: ServiceLimits,
        metrics: Metrics,
        executor: Executor,
        version: str,
    ) -> None:
        self._catalog = catalog
        self._limits = limits
        self._metrics = metrics
        self._executor = executor
        self._version = version

    async def draft(self, data: bytes, grant: Grant) -> bytes:
        """Answer a DraftRequest."""
        request = parse(pb.DraftRequest, data)
        served = self._catalog.select(request.selection, grant)
        limits = check_tree_limits(
            request.limits.max_nodes or 64,
            request.limits.max_suffix or 16,
            request.limits.max_depth or 10,
        )
        trees = len(request.contexts) * len(served)
        max_nodes = trees * limits.max_nodes
        require_few("contexts, times datastores,", trees, self._limits.max_contexts)
        require_few("nodes of all trees", max_nodes, self._limits.max_message_bytes // NODE_BYTES)
        contexts = [context.tokens[-limits.max_suffix :] for context in request.contexts]
        del request  # frees the memory of a message while its work waits
        small = max_nodes <= _SMALL_NODES
        batches = await self._executor.run(partial(_drafts, served, contexts, limits), small=small)
        response = pb.DraftResponse()
        nodes = 0
        for context_trees in zip(*batches, strict=True):
            for tree in context_trees:
                length, count = tree.match
                response.trees.add(nodes=tree.packed, match_length=length, match_count=count)
                nodes += len(tree)
        self._metrics.count_trees("Draft", trees, nodes)
        return response.SerializeToString()

    async def count(self, data: bytes, grant: Grant) -> bytes:
        """Answer a CountRequest."""
        request = parse(pb.CountRequest, data)
        served = self._catalog.select(request.selection, grant)
        require_few("tokens", len(request.tokens), MAX_SEQUENCE)
        tokens = list(request.tokens)
        with reading(served):
            counts = [datastore.store.count(tokens) for datastore in served]
        return pb.CountResponse(counts=counts).SerializeToString()

    async def describe(self, data: bytes, _: Grant) -> bytes:
        """Answer a DescribeRequest."""
        parse(pb.DescribeRequest, data)
        names = pb.ServiceLimits.DESCRIPTOR.fields_by_name
        limits = {name: getattr(self._limits, name) for name in names}
        response = pb.DescribeResponse(
            version=self._version,
            datastores=[served.describe() for served in self._catalog.served],
            limits=pb.ServiceLimits(**limits),
        )
        return response.SerializeToString()


def _drafts(
    served: Sequence[HostedDatastore], contexts: Sequence[list[int]], limits: TreeLimits
) -> list[list[TokenTree]]:
    """Return for each datastore the tree of each context."""
    with reading(served):
        return [datastore.store.draft_batch(contexts, **limits._asdict()) for datastore in served]
