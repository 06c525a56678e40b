"""The client of a datastore service for asyncio: the surface of `Datastore`, each method to be awaited."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import grpc
import grpc.aio

from rest_store.client.answers import ServiceInfo, parsed
from rest_store.client.async_stream import AsyncDraftStream, AsyncStreamCall
from rest_store.client.circuit import Circuit
from rest_store.client.connections import METHOD, Dialer, Tls, forks, target_of, unary_methods
from rest_store.client.conversation import Conversation
from rest_store.client.counterpart import Counterpart, longest
from rest_store.client.endpoints import Endpoint, Endpoints, Pursuit, seconds_of
from rest_store.client.failures import failed_call
from rest_store.client.tally import ClientStatistics, Tally
from rest_store.errors import (
    RestStoreError,
    ServiceUnavailableError,
    TargetError,
    describe,
)
from rest_store.kernel import MAX_SUFFIX
from rest_store.queries import IntSequence, batch, limit, limits
from rest_store.tokenizer import identity_of
from rest_store.tree import SuffixMatch, TokenTree
from rest_store.v1 import datastore_pb2 as pb

T = TypeVar("T")


class _Connection:
    """A channel and its methods, on bytes."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.channel = channel
        self.methods: dict[str, Callable[..., Awaitable[bytes]]] = unary_methods(channel)


class AsyncDatastoreClient:
    """`DatastoreClient` for asyncio: the same arguments, answers, errors, retries and counters.

    Belongs to the event loop in which it is first asked; not thread-safe. Any number of tasks may ask at once.

    Args:
        targets: `HOST:PORT` or `unix:/path`, or several that serve the same.
        datastore: name or names of the datastores to ask; None: all whose tokenizer matches.
        tokenizer: the tokenizer in use, as for `Datastore.open`; a service with another is refused.
        token: bearer token.
        tls: certificates; True: those of gRPC; None: no TLS, for this machine and trusted networks.
        timeout: seconds for each call, all attempts together.
        retries: most further attempts of a call.
        failure_threshold: failures in a row after which an endpoint is left alone.
        pause: seconds for which it is at first, doubled up to 30.

    Raises:
        TargetError: an address or certificate that is none.
        TokenizerLoadError: `tokenizer` is none.
    """

    def __init__(
        self,
        targets: str | list[str] | tuple[str, ...],
        *,
        datastore: str | Sequence[str] | None = None,
        tokenizer: object = None,
        token: str | None = None,
        tls: Tls | bool | None = None,
        timeout: float = 0.1,
        retries: int = 3,
        failure_threshold: int = 5,
        pause: float = 1.0,
    ) -> None:
        addresses = [target_of(target) for target in (targets if isinstance(targets, list | tuple) else [targets])]
        if not addresses:
            raise TargetError(describe("client", "targets", "empty", "at least one address"))
        names = () if datastore is None else (datastore,) if isinstance(datastore, str) else tuple(datastore)
        self._timeout = seconds_of(timeout)
        self._dialer = Dialer(token, tls)
        self._tally = Tally()
        self._endpoints = Endpoints(
            [Endpoint(target, Circuit(failure_threshold, pause), self._connect) for target in addresses],
            self._tally,
            retries,
        )
        self._counterpart = Counterpart(names, None if tokenizer is None else identity_of(tokenizer))
        self._forks: int | None = None
        self._closed = False

    def _connect(self, target: str) -> _Connection:
        self._forks = forks()
        return _Connection(self._dialer.connect_async(target))

    @property
    def statistics(self) -> ClientStatistics:
        """What this client has done so far."""
        return self._tally.snapshot()

    async def connect(self, timeout: float = 10.0) -> ServiceInfo:
        """Connect and ask what the service is: what the first call would do, with time for it.

        Raises:
            TokenizerMismatchError: its tokenizer is not the one given; says what differs.
            ServiceError: no answer; the subclass says why.
        """
        return await self.info(timeout=timeout)

    async def info(self, *, timeout: float | None = None) -> ServiceInfo:
        """Ask what the service is, and which of its datastores this client asks. Raises as `connect`."""
        return await self._call("Describe", b"", self._learn, self._seconds(timeout))

    def _learn(self, answer: bytes, target: str) -> ServiceInfo:
        return self._counterpart.learn(parsed(pb.DescribeResponse, answer, target), target)

    async def longest_suffix_match(
        self, context: IntSequence, *, max_suffix: int = 16, timeout: float | None = None
    ) -> SuffixMatch:
        """Return what `Datastore.longest_suffix_match` does; of several datastores the longest, of equals the first.

        Raises:
            QueryError: as there.
            ServiceError: no answer; the subclass says why.
        """
        max_suffix = limit("max_suffix", max_suffix, MAX_SUFFIX)
        known, seconds = await self._prepare(timeout)
        return await self._call(
            "LongestSuffixMatch",
            known.match_request(context, max_suffix),
            lambda answer, target: known.match(
                parsed(pb.LongestSuffixMatchResponse, answer, target), max_suffix, target
            ),
            seconds,
        )

    async def count(self, tokens: IntSequence, *, timeout: float | None = None) -> int:
        """Return what `Datastore.count` does; of several datastores the sum. Raises as `longest_suffix_match`."""
        known, seconds = await self._prepare(timeout)
        return await self._call(
            "Count",
            known.count_request(tokens),
            lambda answer, target: known.count(parsed(pb.CountResponse, answer, target), target),
            seconds,
        )

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
        bounds = limits(max_nodes, max_suffix, max_depth)
        return longest((await self._draft([context], bounds, None, timeout))[1])

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
        names, trees = await self._draft([context], limits(max_nodes, max_suffix, max_depth), None, timeout)
        return dict(zip(names, trees, strict=True))

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
        bounds = limits(max_nodes, max_suffix, max_depth)
        names, trees = await self._draft([context], bounds, proposals, timeout)
        each = len(trees) // len(names)
        return {name: trees[place * each : (place + 1) * each] for place, name in enumerate(names)}

    async def draft_batch(
        self,
        contexts: Sequence[IntSequence],
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
        bounds = limits(max_nodes, max_suffix, max_depth)
        asked = batch(contexts)
        if not asked:
            return []
        names, trees = await self._draft(asked, bounds, None, timeout, several=True)
        step = len(names)
        return trees if step == 1 else [longest(trees[at : at + step]) for at in range(0, len(trees), step)]

    async def _draft(
        self,
        contexts: Sequence[IntSequence],
        bounds: tuple[int, int, int],
        proposals: TokenTree | None,
        timeout: float | None,
        *,
        several: bool = False,
    ) -> tuple[tuple[str, ...], list[TokenTree]]:
        """Return the names of the datastores and, for each context and each of them, its trees."""
        known, seconds = await self._prepare(timeout)
        each = 1 + (len(proposals) if isinstance(proposals, TokenTree) else 0)

        def read(answer: bytes, target: str) -> tuple[tuple[str, ...], list[TokenTree]]:
            response = parsed(pb.DraftResponse, answer, target)
            names = known.answering(response.datastores, target)
            return names, known.drafts(response.trees, names, bounds, target, groups=len(contexts), each=each)

        return await self._call(
            "Draft", known.draft_request(contexts, bounds, proposals, several=several), read, seconds
        )

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
        bounds = limits(max_nodes, max_suffix, max_depth)
        conversation = Conversation(self._counterpart, bounds)
        return AsyncDraftStream(conversation, self._endpoints, self._open, self._known, self._seconds(timeout))

    def _open(self, endpoint: Endpoint[_Connection]) -> AsyncStreamCall:
        method: Any = endpoint.connection.channel.stream_stream(METHOD + "DraftStream", None, None)
        return AsyncStreamCall(method(metadata=self._dialer.metadata), endpoint.target)

    def _seconds(self, timeout: float | None) -> float:
        return self._timeout if timeout is None else seconds_of(timeout)

    async def _prepare(self, timeout: float | None) -> tuple[Counterpart, float]:
        """Return the service, described, and the seconds that are left for the call itself."""
        seconds = self._seconds(timeout)
        try:
            self._endpoints.require_one()
        except RestStoreError as error:
            self._tally.failed(error)
            raise
        if self._counterpart.is_known:
            return self._counterpart, seconds
        began = time.monotonic()
        return await self._known(seconds), seconds - (time.monotonic() - began)

    async def _known(self, seconds: float) -> Counterpart:
        self._require_usable()
        if not self._counterpart.is_known:
            await self._call("Describe", b"", self._learn, seconds)
        return self._counterpart

    async def _call(self, method: str, request: bytes, read: Callable[[bytes, str], T], seconds: float) -> T:
        """Make a call until it is answered or its deadline has come; count it."""
        try:
            self._require_usable()
            pursuit = Pursuit(self._endpoints, seconds)
            while True:
                endpoint = pursuit.endpoint
                try:
                    try:
                        answer = await endpoint.connection.methods[method](
                            request, timeout=pursuit.allowance(), metadata=self._dialer.metadata
                        )
                    except grpc.aio.AioRpcError as error:
                        raise failed_call(endpoint.target, error) from None
                    found = read(answer, endpoint.target)
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

    def _require_usable(self) -> None:
        if self._closed:
            raise ServiceUnavailableError(describe("client", "client", "closed", "an open one"))
        if self._forks is not None and self._forks != forks():
            found = "a fork of the one that connected"
            raise ServiceUnavailableError(describe("client", "process", found, "a client made after the fork"))

    async def close(self) -> None:
        """Close its connections; calls from then on raise ServiceUnavailableError. May be called again."""
        self._closed = True
        for endpoint in self._endpoints.members:
            connection = endpoint.release()
            if connection is not None:
                await connection.channel.close(None)

    async def __aenter__(self) -> AsyncDatastoreClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncDatastoreClient({str(self._endpoints)!r})"
