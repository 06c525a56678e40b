"""The client of a datastore service: the surface of `Datastore`, over gRPC."""

from __future__ import annotations

import time

import grpc

from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.datastore.tree import SuffixMatch, TokenTree
from rest_store.datastore.validation import Contexts, IntSequence
from rest_store.drafting.evidence import Evidence, rows_for
from rest_store.errors import RestStoreError
from rest_store.service.client.answers import ServiceInfo
from rest_store.service.client.client_base import ClientBase
from rest_store.service.client.connections import Connection
from rest_store.service.client.endpoints import Endpoint
from rest_store.service.client.requests import Question, T
from rest_store.service.client.service_source import ServiceSource
from rest_store.service.client.stream import DraftStream
from rest_store.service.client.stream_call import StreamCall
from rest_store.service.errors import failed_call


class DatastoreClient(ClientBase):
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
        retries: most further attempts of a call, 0 or more.
        failure_threshold: failures in a row after which an endpoint is left alone, 1 or more.
        pause: seconds for which it is at first, 0 or more; doubled up to 30.

    Raises:
        TargetError: an address, certificate or list of datastores that is none.
        LimitError: a number out of range.
        TokenizerLoadError: `tokenizer` is none.
    """

    def _connect(self, target: str) -> Connection:
        return Connection(self._dialer.connect(target))

    @property
    def vocabulary_size(self) -> int:
        """Greatest token id + 1; asks the service if it has not been asked yet."""
        if not self._counterpart.is_known:
            self.info()
        return self._counterpart.vocabulary_size

    @property
    def tokenizer(self) -> TokenizerIdentity:
        """The tokenizer of the datastores asked; without one given, asks the service if it has not been asked yet.

        Raises:
            ServiceError: no answer; the subclass says why.
        """
        return self._counterpart.tokenizer or self.info().tokenizer

    def connect(self, timeout: float = 10.0) -> ServiceInfo:
        """Connect and ask what the service is: what the first call would do, with time for it.

        Raises:
            TokenizerMismatchError: its tokenizer is not the one given; says what differs.
            ServiceError: no answer; the subclass says why.
        """
        return self._ask(self._questions.describe, timeout)

    def info(self, *, timeout: float | None = None) -> ServiceInfo:
        """Ask what the service is, and which of its datastores this client asks. Raises as `connect`."""
        return self._ask(self._questions.describe, timeout)

    def longest_suffix_match(
        self, context: IntSequence, *, max_suffix: int = 16, timeout: float | None = None
    ) -> SuffixMatch:
        """Return what `Datastore.longest_suffix_match` does; of several datastores the longest, of equals the first.

        Raises:
            QueryError: as there.
            ServiceError: no answer; the subclass says why.
        """
        return self._ask(self._questions.match(context, max_suffix), timeout)

    def count(self, tokens: IntSequence, *, timeout: float | None = None) -> int:
        """Return what `Datastore.count` does; of several datastores the sum. Raises as `longest_suffix_match`."""
        return self._ask(self._questions.count(tokens), timeout)

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
        return self._ask(self._questions.draft(context, max_nodes, max_suffix, max_depth), timeout)

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
        return self._ask(self._questions.draft_each(context, max_nodes, max_suffix, max_depth), timeout)

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
        return self._ask(self._questions.draft_with(context, proposals, max_nodes, max_suffix, max_depth), timeout)

    def draft_batch(
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
        return [] if question is None else self._ask(question, timeout)

    def evidence(
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
            self._ask(self._questions.describe, timeout)
        rows = rows_for(max_nodes) if max_rows is None else max_rows
        question = self._questions.evidence(context, proposals, max_nodes, max_suffix, rows)
        return self._ask(question, timeout) if self._counterpart.max_evidence_rows else None

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
        conversation = self._conversation(max_nodes, max_suffix, max_depth)
        return DraftStream(conversation, self._endpoints, self._open, self.info, self._seconds(timeout))

    def source(self) -> ServiceSource:
        """Return this client as a source of drafts that never raises: it answers an empty tree, and counts it."""
        return ServiceSource(self, self._tally)

    def _open(self, endpoint: Endpoint[Connection]) -> StreamCall:
        channel = endpoint.connection.channel
        try:
            return StreamCall(channel, self._dialer.metadata, endpoint.target)
        except ValueError:  # what grpc says of a channel that has just been closed
            endpoint.require_usable()
            raise

    def _ask(self, question: Question[T], timeout: float | None) -> T:
        """Ask until there is an answer or the deadline has come; count it. Asks what the service is before all else."""
        began = time.monotonic()
        if self._needs_description(question):
            self._ask(self._questions.describe, timeout)
        try:
            request, pursuit = self._pursue(question, timeout, began)
            while True:
                seconds = pursuit.allowance()
                try:
                    answer = self._attempt(pursuit.endpoint, question.method, request, seconds)
                    found = question.read(answer, pursuit.endpoint.target)
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

    def _attempt(self, endpoint: Endpoint[Connection], method: str, request: bytes, seconds: float) -> bytes:
        call = endpoint.connection.methods[method]
        try:
            answer: bytes = call(request, timeout=seconds, metadata=self._dialer.metadata)
        except grpc.RpcError as error:
            raise failed_call(endpoint.target, error) from None
        except ValueError:  # what grpc says of a channel that has just been closed
            endpoint.require_usable()
            raise
        return answer

    def close(self) -> None:
        """Close its connections; calls from then on raise ServiceUnavailableError. May be called again."""
        for connection in self._endpoints.close():
            connection.channel.close()

    def __enter__(self) -> DatastoreClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
