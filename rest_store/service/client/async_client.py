"""The client of a datastore service for asyncio: the surface of `DatastoreClient`, each method to be awaited."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import grpc.aio

from rest_store.datastore.tree import SuffixMatch, TokenTree
from rest_store.datastore.validation import Contexts, IntSequence, limits
from rest_store.drafting.evidence import Evidence
from rest_store.service.client.answers import ServiceInfo
from rest_store.service.client.async_stream import AsyncDraftStream
from rest_store.service.client.client_base import WRITE_SECONDS, ClientBase, Connection
from rest_store.service.client.endpoints import Endpoint
from rest_store.service.client.generation_stream import Route
from rest_store.service.client.part_groups import Targets, is_in_parts
from rest_store.service.client.requests import Request, T
from rest_store.service.client.stream_call import AsyncStreamCall, task_is_cancelled
from rest_store.service.errors import error_of_call


class AsyncDatastoreClient(ClientBase):
    """`DatastoreClient` for asyncio, without sessions: the same methods, answers, errors, retries and counters.

    It takes the same arguments but those of sessions: `send_text`, `shared_calibration` and `remember`.

    Belongs to the event loop in which it is first used; not thread-safe. Any number of tasks may ask at once.
    """

    def __new__(cls, targets: Targets = (), **options: Any) -> AsyncDatastoreClient:
        """Make a client of several parts where `targets` are such."""
        if cls is AsyncDatastoreClient and is_in_parts(targets):
            from rest_store.service.client.async_parts_client import AsyncPartsClient

            return object.__new__(AsyncPartsClient)
        return object.__new__(cls)

    def _connect(self, target: str) -> Connection:
        return Connection(self._dialer.connect_async(target))

    async def connect(self, timeout: float = 10.0) -> ServiceInfo:
        """See `DatastoreClient.connect`."""
        return await self._ask(self._requests.describe, timeout)

    async def info(self, *, timeout: float | None = None) -> ServiceInfo:
        """See `DatastoreClient.info`."""
        return await self._ask(self._requests.describe, timeout)

    async def longest_suffix_match(
        self, context: IntSequence, *, max_suffix: int = 16, timeout: float | None = None
    ) -> SuffixMatch:
        """See `DatastoreClient.longest_suffix_match`."""
        return await self._ask(self._requests.match(context, max_suffix), timeout)

    async def count(self, tokens: IntSequence, *, timeout: float | None = None) -> int:
        """See `DatastoreClient.count`."""
        return await self._ask(self._requests.count(tokens), timeout)

    async def draft(
        self,
        context: IntSequence,
        *,
        max_nodes: int = 64,
        max_suffix: int = 16,
        max_depth: int = 10,
        timeout: float | None = None,
    ) -> TokenTree:
        """See `DatastoreClient.draft`."""
        return await self._ask(self._requests.draft(context, max_nodes, max_suffix, max_depth), timeout)

    async def draft_batch(
        self,
        contexts: Contexts,
        *,
        max_nodes: int = 64,
        max_suffix: int = 16,
        max_depth: int = 10,
        timeout: float | None = None,
    ) -> list[TokenTree]:
        """See `DatastoreClient.draft_batch`."""
        request = self._requests.draft_batch(contexts, max_nodes, max_suffix, max_depth)
        return [] if request is None else await self._ask(request, timeout)

    async def evidence(
        self,
        context: IntSequence,
        proposals: TokenTree,
        *,
        max_nodes: int,
        max_suffix: int = 16,
        max_rows: int | None = None,
        timeout: float | None = None,
    ) -> list[Evidence] | None:
        """See `DatastoreClient.evidence`."""
        began = await self._describe_once(timeout)
        request = self._requests.evidence(context, proposals, max_nodes, max_suffix, max_rows)
        return await self._ask(request, timeout, began) if self._codec.max_evidence_rows else None

    async def add(
        self,
        documents: Sequence[IntSequence],
        ids: Sequence[str] | None = None,
        *,
        datastore: str | None = None,
        timeout: float = WRITE_SECONDS,
    ) -> list[str]:
        """See `DatastoreClient.add`."""
        began = await self._describe_once(timeout)
        requests = self._requests.add(documents, ids, datastore)
        return [id for request in requests for id in await self._ask(request, timeout, began)]

    async def delete(self, ids: Sequence[str], *, datastore: str | None = None, timeout: float = WRITE_SECONDS) -> int:
        """See `DatastoreClient.delete`."""
        began = await self._describe_once(timeout)
        requests = self._requests.delete(ids, datastore)
        return sum([await self._ask(request, timeout, began) for request in requests])

    def stream(
        self, *, max_nodes: int = 64, max_suffix: int = 16, max_depth: int = 10, timeout: float | None = None
    ) -> AsyncDraftStream:
        """See `DatastoreClient.stream`."""
        tree_limits = limits(max_nodes, max_suffix, max_depth)
        route = Route(self._codec, self._endpoints, self._open, self.info, self._seconds(timeout))
        return AsyncDraftStream(route, tree_limits)

    async def _describe_once(self, timeout: float | None) -> float:
        """See `DatastoreClient._describe_once`."""
        began = time.monotonic()
        if not self._codec.is_known:
            await self._ask(self._requests.describe, timeout)
        return began

    def _open(self, endpoint: Endpoint[Connection]) -> AsyncStreamCall:
        return AsyncStreamCall(endpoint.connection.channel, self._dialer.metadata, endpoint.target)

    async def _ask(self, request: Request[T], timeout: float | None, began: float | None = None) -> T:
        began = time.monotonic() if began is None else began
        if self._needs_description(request):
            await self._ask(self._requests.describe, timeout)
        with self._counters.failures:
            message, policy = self._begin(request, timeout, began)
            return await policy.call_async(lambda endpoint, seconds: self._attempt(endpoint, request, message, seconds))

    async def _attempt(self, endpoint: Endpoint[Connection], request: Request[T], message: bytes, seconds: float) -> T:
        call = endpoint.connection.methods[request.method]
        try:
            answer: bytes = await call(message, timeout=seconds, metadata=self._dialer.metadata)
        except grpc.aio.AioRpcError as error:
            raise error_of_call(endpoint.target, error) from None
        except asyncio.CancelledError:  # closing the channel cancels its calls, too
            if not task_is_cancelled():
                endpoint.require_usable()
            raise
        return request.decode(answer, endpoint.target)

    async def close(self) -> None:
        """See `DatastoreClient.close`."""
        for connection in self._endpoints.close():
            await connection.channel.close(None)

    async def __aenter__(self) -> AsyncDatastoreClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
