"""The client of a datastore service: the surface of `Datastore`, over gRPC."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import grpc

from rest_store.client.answers import ServiceInfo, parsed
from rest_store.client.circuit import Circuit
from rest_store.client.connections import Dialer, Tls, forks, target_of, unary_methods
from rest_store.client.conversation import Conversation
from rest_store.client.counterpart import Counterpart, longest
from rest_store.client.endpoints import Endpoint, Endpoints, Pursuit, seconds_of
from rest_store.client.exchange import StreamCall, open_stream
from rest_store.client.failures import failed_call
from rest_store.client.service_source import ServiceSource
from rest_store.client.stream import DraftStream
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

    def __init__(self, channel: grpc.Channel) -> None:
        self.channel = channel
        self.methods: dict[str, Callable[..., bytes]] = unary_methods(channel)


class DatastoreClient:
    """A datastore behind a service (`rest-store serve`), with the methods and answers of `Datastore`.

    Connects when it is first asked, and again by itself. A call that fails because the service is away or overloaded
    is made again, with growing pauses, at another endpoint where there is one, and never beyond its deadline; all calls
    only read. After five failures in a row an endpoint is left alone for a while, and calls that would need it fail in
    microseconds.

    Thread-safe. Not usable in a process forked after its first call: there it raises ServiceUnavailableError; make
    another.

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
        self._connecting = threading.Lock()
        self._endpoints = Endpoints(
            [Endpoint(target, Circuit(failure_threshold, pause), self._connect) for target in addresses],
            self._tally,
            retries,
        )
        self._counterpart = Counterpart(names, None if tokenizer is None else identity_of(tokenizer))
        self._forks: int | None = None
        self._closed = False

    def _connect(self, target: str) -> _Connection:
        with self._connecting:
            self._forks = forks()
            return _Connection(self._dialer.connect(target))

    @property
    def statistics(self) -> ClientStatistics:
        """What this client has done so far."""
        return self._tally.snapshot()

    @property
    def vocabulary_size(self) -> int:
        """Greatest token id + 1; asks the service if it has not been asked yet."""
        return self._known(self._timeout).vocabulary_size

    def connect(self, timeout: float = 10.0) -> ServiceInfo:
        """Connect and ask what the service is: what the first call would do, with time for it.

        Raises:
            TokenizerMismatchError: its tokenizer is not the one given; says what differs.
            ServiceError: no answer; the subclass says why.
        """
        return self.info(timeout=timeout)

    def info(self, *, timeout: float | None = None) -> ServiceInfo:
        """Ask what the service is, and which of its datastores this client asks. Raises as `connect`."""
        return self._call("Describe", b"", self._learn, self._seconds(timeout))

    def _learn(self, answer: bytes, target: str) -> ServiceInfo:
        return self._counterpart.learn(parsed(pb.DescribeResponse, answer, target), target)

    def longest_suffix_match(
        self, context: IntSequence, *, max_suffix: int = 16, timeout: float | None = None
    ) -> SuffixMatch:
        """Return what `Datastore.longest_suffix_match` does; of several datastores the longest, of equals the first.

        Raises:
            QueryError: as there.
            ServiceError: no answer; the subclass says why.
        """
        max_suffix = limit("max_suffix", max_suffix, MAX_SUFFIX)
        known, seconds = self._prepare(timeout)
        return self._call(
            "LongestSuffixMatch",
            known.match_request(context, max_suffix),
            lambda answer, target: known.match(
                parsed(pb.LongestSuffixMatchResponse, answer, target), max_suffix, target
            ),
            seconds,
        )

    def count(self, tokens: IntSequence, *, timeout: float | None = None) -> int:
        """Return what `Datastore.count` does; of several datastores the sum. Raises as `longest_suffix_match`."""
        known, seconds = self._prepare(timeout)
        return self._call(
            "Count",
            known.count_request(tokens),
            lambda answer, target: known.count(parsed(pb.CountResponse, answer, target), target),
            seconds,
        )

    def draft(
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
        return longest(self._draft([context], bounds, None, timeout)[1])

    def draft_each(
        self,
        context: IntSequence,
        *,
        max_nodes: int = 64,
        max_suffix: int = 16,
        max_depth: int = 10,
        timeout: float | None = None,
    ) -> dict[str, TokenTree]:
        """Return the tree of each datastore, by name; otherwise as `draft`."""
        names, trees = self._draft([context], limits(max_nodes, max_suffix, max_depth), None, timeout)
        return dict(zip(names, trees, strict=True))

    def draft_with(
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
        names, trees = self._draft([context], bounds, proposals, timeout)
        each = len(trees) // len(names)
        return {name: trees[place * each : (place + 1) * each] for place, name in enumerate(names)}

    def draft_batch(
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
        names, trees = self._draft(asked, bounds, None, timeout, several=True)
        step = len(names)
        return trees if step == 1 else [longest(trees[at : at + step]) for at in range(0, len(trees), step)]

    def _draft(
        self,
        contexts: Sequence[IntSequence],
        bounds: tuple[int, int, int],
        proposals: TokenTree | None,
        timeout: float | None,
        *,
        several: bool = False,
    ) -> tuple[tuple[str, ...], list[TokenTree]]:
        """Return the names of the datastores and, for each context and each of them, its trees."""
        known, seconds = self._prepare(timeout)
        each = 1 + (len(proposals) if isinstance(proposals, TokenTree) else 0)

        def read(answer: bytes, target: str) -> tuple[tuple[str, ...], list[TokenTree]]:
            response = parsed(pb.DraftResponse, answer, target)
            names = known.answering(response.datastores, target)
            return names, known.drafts(response.trees, names, bounds, target, groups=len(contexts), each=each)

        return self._call("Draft", known.draft_request(contexts, bounds, proposals, several=several), read, seconds)

    def stream(
        self, *, max_nodes: int = 64, max_suffix: int = 16, max_depth: int = 10, timeout: float | None = None
    ) -> DraftStream:
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
        return DraftStream(conversation, self._endpoints, self._open, self._known, self._seconds(timeout))

    def source(self) -> ServiceSource:
        """Return this client as a source of drafts that never raises: it answers an empty tree, and counts it."""
        return ServiceSource(self, self._tally)

    def _open(self, endpoint: Endpoint[_Connection]) -> StreamCall:
        return open_stream(endpoint.connection.channel, self._dialer.metadata, endpoint.target)

    def _seconds(self, timeout: float | None) -> float:
        return self._timeout if timeout is None else seconds_of(timeout)

    def _prepare(self, timeout: float | None) -> tuple[Counterpart, float]:
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
        return self._known(seconds), seconds - (time.monotonic() - began)

    def _known(self, seconds: float) -> Counterpart:
        self._require_usable()
        if not self._counterpart.is_known:
            self._call("Describe", b"", self._learn, seconds)
        return self._counterpart

    def _call(self, method: str, request: bytes, read: Callable[[bytes, str], T], seconds: float) -> T:
        """Make a call until it is answered or its deadline has come; count it."""
        try:
            self._require_usable()
            pursuit = Pursuit(self._endpoints, seconds)
            while True:
                endpoint = pursuit.endpoint
                try:
                    try:
                        answer = endpoint.connection.methods[method](
                            request, timeout=pursuit.allowance(), metadata=self._dialer.metadata
                        )
                    except grpc.RpcError as error:
                        raise failed_call(endpoint.target, error) from None
                    found = read(answer, endpoint.target)
                except RestStoreError as error:
                    wait = pursuit.failed(error)
                    if wait:
                        time.sleep(wait)
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

    def close(self) -> None:
        """Close its connections; calls from then on raise ServiceUnavailableError. May be called again."""
        self._closed = True
        for endpoint in self._endpoints.members:
            connection = endpoint.release()
            if connection is not None:
                connection.channel.close()

    def __enter__(self) -> DatastoreClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"DatastoreClient({str(self._endpoints)!r})"
