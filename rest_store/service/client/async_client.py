"""The client of a datastore service for asyncio: the surface of `Datastore`, each method to be awaited."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc.aio

from rest_store.datastore.tree import SuffixMatch, TokenTree
from rest_store.datastore.validation import Contexts, IntSequence
from rest_store.drafting.evidence import Evidence, rows_for
from rest_store.errors import RestStoreError
from rest_store.service.client.answers import ServiceInfo
from rest_store.service.client.async_stream import AsyncDraftStream, AsyncStreamCall
from rest_store.service.client.cancellation import is_cancelled
from rest_store.service.client.client_base import ClientBase
from rest_store.service.client.connections import METHOD, Connection
from rest_store.service.client.endpoints import Endpoint
from rest_store.service.client.requests import Question, T
from rest_store.service.errors import failed_call


class AsyncDatastoreClient(ClientBase):
    """`DatastoreClient` for asyncio: the same arguments, answers, errors, retries and counters.

    Belongs to the event loop in which it is first asked; not thread-safe. Any number of tasks may ask at once.

    Args:
        targets: `HOST:PORT` or `unix:/path`, or several that serve the same.
        datastore: name or names of the datastores to ask; None: all whose tokenizer matches.
        tokenizer: the tokenizer in use, as for `Datastore.open`; a service with another is refused.
        token: bearer token.
        tls: certificates; True: those of gRPC; None: no TLS, for this machine and trusted networks.
        timeout: seconds for each call, all attempts together.
        retries: most further attempts of a call, 0 or more.
        failure_threshold: failures in a row after which an endpoint is left alone, 1 or more.
        pause: seconds for which it is at first, 0 or more; doubled up to 30.

    Raises:
        TargetError: an address, certificate or list of datastores that is none.
        LimitError: a number out of range.
        TokenizerLoadError: `tokenizer` is none.
    """

    def _connect(self, target: str) -> Connection:
        return Connection(self._dialer.connect_async(target))

    async def connect(self, timeout: float = 10.0) -> ServiceInfo:
        """Connect and ask what the service is: what the first call would do, with time for it.

        Raises:
            TokenizerMismatchError: its tokenizer is not the one given; says what differs.
            ServiceError: no answer; the subclass says why.
        """
        return await self._ask(self._questions.describe, timeout)

    async def info(self, *, timeout: float | None = None) -> ServiceInfo:
        """Ask what the service is, and which of its datastores this client asks. Raises as `connect`."""
        return await self._ask(self._questions.describe, timeout)

    async def longest_suffix_match(
        self, context: IntSequence, *, max_suffix: int = 16, timeout: float | None = None
    ) -> SuffixMatch:
        """Return what `Datastore.longest_suffix_match` does; of several datastores the longest, of equals the first.

        Raises:
            QueryError: as there.
            ServiceError: no answer; the subclass says why.
        """
        return await self._ask(self._questions.match(context, max_suffix), timeout)

    async def count(self, tokens: IntSequence, *, timeout: float | None = None) -> int:
        """Return what `Datastore.count` does; of several datastores the sum. Raises as `longest_suffix_match`."""
        return await self._ask(self._questions.count(tokens), timeout)

    async def draft(
        self,
        context: IntSequence,
        *,
        max_nodes: int = 64,
        max_suffix: int = 16,
        max_depth: int = 10,
        timeout: float | None = None,
    ) -> TokenTree:
        """Return what `Datastore.draft` does; of several datastores the tree of the longest match, of equals the first.

        For one generation `stream` is faster. Raises as `longest_suffix_match`.
        """
        return await self._ask(self._questions.draft(context, max_nodes, max_suffix, max_depth), timeout)

    async def draft_each(
        self,
        context: IntSequence,
        *,
        max_nodes: int = 64,
        max_suffix: int = 16,
        max_depth: int = 10,
        timeout: float | None = None,
    ) -> dict[str, TokenTree]:
        """Return the tree of each datastore, by name; otherwise as `draft`."""
        return await self._ask(self._questions.draft_each(context, max_nodes, max_suffix, max_depth), timeout)

    async def draft_with(
        self,
        context: IntSequence,
        proposals: TokenTree,
        *,
        max_nodes: int = 64,
        max_suffix: int = 16,
        max_depth: int = 10,
        timeout: float | None = None,
    ) -> dict[str, list[TokenTree]]:
        """Return, by name of datastore, the tree of `context`, then for each node of `proposals` that of its path.

        Raises:
            TreeError: `proposals` is no draft tree.
            RestStoreError: as `draft`.
        """
        return await self._ask(
            self._questions.draft_with(context, proposals, max_nodes, max_suffix, max_depth), timeout
        )

    async def draft_batch(
        self,
        contexts: Contexts,
        *,
        max_nodes: int = 64,
        max_suffix: int = 16,
        max_depth: int = 10,
        timeout: float | None = None,
    ) -> list[TokenTree]:
        """Return what `draft` returns, for each of `contexts`; the service limits how many (`info().limits`).

        Raises:
            QueryError: as `draft`; the message names the context's place.
            ServiceError: as `draft`.
        """
        question = self._questions.draft_batch(contexts, max_nodes, max_suffix, max_depth)
        return [] if question is None else await self._ask(question, timeout)

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
        """Return what each datastore knows along the paths that a session's tree may take, in one round trip.

        Args:
            context: the end of the text, oldest first; its last `max_suffix` tokens are read; may be empty.
            proposals: the tree that the session's other sources would draft, with scores.
            max_nodes: of the session's tree, 1..1024.
            max_suffix: longest suffix of `context` tried, in tokens, 1..64.
            max_rows: most paths, 1..1024, of which the service may give fewer; None: 8 more than nodes.
            timeout: seconds; None: as for other calls of this client.

        Returns:
            None if the service is of a release that knows no evidence: ask for `draft_batch`.

        Raises:
            TreeError: `proposals` is no draft tree.
            RestStoreError: as `draft`.
        """
        if not self._counterpart.is_known:
            await self._ask(self._questions.describe, timeout)
        rows = rows_for(max_nodes) if max_rows is None else max_rows
        question = self._questions.evidence(context, proposals, max_nodes, max_suffix, rows)
        return await self._ask(question, timeout) if self._counterpart.max_evidence_rows else None

    def stream(
        self, *, max_nodes: int = 64, max_suffix: int = 16, max_depth: int = 10, timeout: float | None = None
    ) -> AsyncDraftStream:
        """Return a stream of drafts for one generation; it is opened by its first step.

        Args:
            max_nodes: most draft tokens of each tree, 1..1024.
            max_suffix: longest suffix tried, in tokens, 1..64.
            max_depth: longest continuation, in tokens, 1..32.
            timeout: seconds for each step; None: as for other calls of this client.

        Raises:
            LimitError: a limit is out of range.
        """
        conversation = self._conversation(max_nodes, max_suffix, max_depth)
        return AsyncDraftStream(conversation, self._endpoints, self._open, self.info, self._seconds(timeout))

    def _open(self, endpoint: Endpoint[Connection]) -> AsyncStreamCall:
        method: Any = endpoint.connection.channel.stream_stream(METHOD + "DraftStream", None, None)
        return AsyncStreamCall(method(metadata=self._dialer.metadata), endpoint.target)

    async def _ask(self, question: Question[T], timeout: float | None) -> T:
        """Ask until there is an answer or the deadline has come; count it. Asks what the service is before all else."""
        began = time.monotonic()
        if self._needs_description(question):
            await self._ask(self._questions.describe, timeout)
        try:
            request, pursuit = self._pursue(question, timeout, began)
            while True:
                seconds = pursuit.allowance()
                try:
                    answer = await self._attempt(pursuit.endpoint, question.method, request, seconds)
                    found = question.read(answer, pursuit.endpoint.target)
                except RestStoreError as error:
                    wait = pursuit.failed(error)
                    if wait:
                        await asyncio.sleep(wait)
                else:
                    pursuit.succeeded()
                    return found
        except RestStoreError as error:
            self._tally.failed(error)
            raise

    async def _attempt(self, endpoint: Endpoint[Connection], method: str, request: bytes, seconds: float) -> bytes:
        call = endpoint.connection.methods[method]
        try:
            answer: bytes = await call(request, timeout=seconds, metadata=self._dialer.metadata)
        except grpc.aio.AioRpcError as error:
            raise failed_call(endpoint.target, error) from None
        except asyncio.CancelledError:  # closing the channel cancels its calls, too
            if is_cancelled():
                raise
            endpoint.require_usable()
            raise
        return answer

    async def close(self) -> None:
        """Close its connections; calls from then on raise ServiceUnavailableError. May be called again."""
        for connection in self._endpoints.close():
            await connection.channel.close(None)

    async def __aenter__(self) -> AsyncDatastoreClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
