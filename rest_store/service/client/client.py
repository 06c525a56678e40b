"""The client of a datastore service: the surface of `Datastore`, over gRPC."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc

from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.datastore.tree import SuffixMatch, TokenTree
from rest_store.datastore.validation import Contexts, IntSequence, limits
from rest_store.drafting.evidence import Evidence
from rest_store.drafting.remote import SessionSettings
from rest_store.service.channel import Tls
from rest_store.service.client.answers import ServiceInfo
from rest_store.service.client.client_base import WRITE_SECONDS, ClientBase, Connection
from rest_store.service.client.client_sessions import ClientSessions
from rest_store.service.client.endpoints import Endpoint
from rest_store.service.client.generation_stream import Route
from rest_store.service.client.part_groups import Targets, is_in_parts
from rest_store.service.client.requests import Request, T
from rest_store.service.client.session_stream import SessionStream
from rest_store.service.client.shared_stream import SharedSession, SharedStreams
from rest_store.service.client.stream import DraftStream
from rest_store.service.client.stream_call import StreamCall
from rest_store.service.errors import error_of_call


class DatastoreClient(ClientBase):
    """A datastore behind a service (`rest-store serve`), with the methods and answers of `Datastore`.

    Also a source for `DraftSession`, which the service runs if it has all datastores of the session. Connects when
    it is first used, and reconnects by itself. A call that fails because the service is away or overloaded is made
    again, with growing pauses, at another endpoint where there is one, and never beyond its deadline: all calls only
    read, or do nothing more the second time. After five failures in a row an endpoint is left alone for a while, and
    calls that would need it fail in microseconds.

    Thread-safe. A pickled or copied client reaches the same service through connections of its own; a pickle holds the
    token. gRPC does not survive a fork: in a process forked after the first call, calls raise ServiceUnavailableError.
    Make the client there, or send it to the process pickled.

    Args:
        targets: `HOST:PORT` or `unix:/path`, or a list of several that serve the same. A datastore that is served in
            parts has a list of such lists, one for each part: `[["a:1", "b:1"], ["a:2", "b:2"]]`; or the path
            of a parts file, which ends with `.toml`. All parts are asked at once, and answer as one datastore.
        datastore: name or names of the datastores to ask; None: all whose tokenizer matches.
        tokenizer: the tokenizer in use, as for `Datastore.open`; a service with another is refused.
        token: bearer token.
        tls: certificates; True: those of gRPC; None: no TLS, for this machine and trusted networks.
        timeout: seconds for each call, all attempts together.
        retries: most further attempts of a call, 0 or more.
        failure_threshold: failures in a row after which an endpoint is left alone, 1 or more.
        pause: seconds for which it is left alone at first, 0 or more; doubled up to 30.
        send_text: whether the service may run draft sessions, for which it gets the whole text. Otherwise sessions are
            merged here, which takes longer, and it gets the last 64 tokens of the prompt at most, what the model
            writes, and a few proposed tokens in each step.
        shared_calibration: a name, such as the model's: sessions that the service runs share under it what their
            calibration learns, also those of other clients; None: they share nothing.
        remember: name of a live datastore to which the service adds what is accepted in the sessions that it runs, each
            with the last 16 tokens of its prompt, when they end; None: it adds nothing. A service that does not allow
            it drafts all the same, with a DraftingWarning.

    Raises:
        TargetError: an address, certificate, list of datastores or name that is not valid.
        LimitError: a number out of range.
        TokenizerLoadError: `tokenizer` is not a tokenizer.
    """

    def __new__(cls, targets: Targets = (), **options: Any) -> DatastoreClient:
        """Make a client of several parts where `targets` are such."""
        if cls is DatastoreClient and is_in_parts(targets):
            from rest_store.service.client.parts_client import PartsClient

            return object.__new__(PartsClient)
        return object.__new__(cls)

    def __init__(
        self,
        targets: Targets,
        *,
        datastore: str | Sequence[str] | None = None,
        tokenizer: object = None,
        token: str | None = None,
        tls: Tls | bool | None = None,
        timeout: float = 0.1,
        retries: int = 3,
        failure_threshold: int = 5,
        pause: float = 1.0,
        send_text: bool = True,
        shared_calibration: str | None = None,
        remember: str | None = None,
    ) -> None:
        super().__init__(
            targets,
            datastore=datastore,
            tokenizer=tokenizer,
            token=token,
            tls=tls,
            timeout=timeout,
            retries=retries,
            failure_threshold=failure_threshold,
            pause=pause,
        )
        self._options |= {"send_text": send_text, "shared_calibration": shared_calibration, "remember": remember}
        self._sessions = ClientSessions(
            SharedStreams(self._codec, self._dialer),
            send_text=send_text,
            shared_calibration=shared_calibration,
            remember=remember,
        )
        self._before_close: dict[Callable[[DatastoreClient], object], None] = {}

    def _connect(self, target: str) -> Connection:
        return Connection(self._dialer.connect(target))

    @property
    def vocabulary_size(self) -> int:
        """Greatest token id + 1; asks the service if it is not known yet."""
        if not self._codec.is_known:
            self.info()
        return self._codec.vocabulary_size

    @property
    def tokenizer(self) -> TokenizerIdentity:
        """The tokenizer of the datastores asked; asks the service if it is not known yet.

        Raises:
            ServiceError: no answer; the subclass says why.
        """
        return self._codec.tokenizer or self.info().tokenizer

    def connect(self, timeout: float = 10.0) -> ServiceInfo:
        """Connect and ask what the service is: what the first call would do, with more time.

        Raises:
            TokenizerMismatchError: its tokenizer is not the one passed in; says what differs.
            ServiceError: no answer; the subclass says why.
        """
        return self._ask(self._requests.describe, timeout)

    def info(self, *, timeout: float | None = None) -> ServiceInfo:
        """Ask what the service is, and which of its datastores this client asks. Raises as `connect`."""
        return self._ask(self._requests.describe, timeout)

    def longest_suffix_match(
        self, context: IntSequence, *, max_suffix: int = 16, timeout: float | None = None
    ) -> SuffixMatch:
        """Return what `Datastore.longest_suffix_match` does; of several datastores the longest, of equals the first.

        Raises:
            QueryError: as there.
            ServiceError: no answer; the subclass says why.
        """
        return self._ask(self._requests.match(context, max_suffix), timeout)

    def count(self, tokens: IntSequence, *, timeout: float | None = None) -> int:
        """Return what `Datastore.count` does; of several datastores the sum. Raises as `longest_suffix_match`."""
        return self._ask(self._requests.count(tokens), timeout)

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

        In one generation, `stream` sends new tokens only. Raises as `longest_suffix_match`.
        """
        return self._ask(self._requests.draft(context, max_nodes, max_suffix, max_depth), timeout)

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
        request = self._requests.draft_batch(contexts, max_nodes, max_suffix, max_depth)
        return [] if request is None else self._ask(request, timeout)

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
            max_rows: most paths, 1..1024, of which the service may give fewer; None: seven eighths of
                the nodes.
            timeout: seconds; None: as for other calls of this client.

        Returns:
            None if the service has no evidence: call `draft_batch` then.

        Raises:
            TreeError: `proposals` is not a draft tree.
            QueryError, ServiceError: as `draft`.
        """
        began = self._describe_once(timeout)
        request = self._requests.evidence(context, proposals, max_nodes, max_suffix, max_rows)
        return self._ask(request, timeout, began) if self._codec.max_evidence_rows else None

    def add(
        self,
        documents: Sequence[IntSequence],
        ids: Sequence[str] | None = None,
        *,
        datastore: str | None = None,
        timeout: float = WRITE_SECONDS,
    ) -> list[str]:
        """Add documents to a live datastore; return when they are durable, and visible to all its clients.

        An attempt that fails is repeated: an id makes sure that nothing is added twice. With several endpoints, that
        may be at another one, which has a live datastore of its own.

        Args:
            documents: token sequences, 1-D integers, at least one each.
            ids: one for each, 1..256 characters; one that is there already, or was given before in `ids`, stands for
                the same document, which is not added again. None: new ones.
            datastore: its name; None: the only live one that this client asks.
            timeout: seconds for all of it.

        Returns:
            The ids, in the order of `documents`.

        Raises:
            DocumentError: a document is empty, too large for the datastore or no tokens, or an id is invalid.
            TokenRangeError: a token is outside the vocabulary.
            MessageSizeError: a document is larger than what the service takes in one message.
            LiveFormatError: the datastore is frozen.
            UnknownDatastoreError: there is none of that name, or none was named and there are others than one.
            PermissionDeniedError: the token of this client may only read.
            StorageError: the service cannot write: its disk is full, for instance.
            ServiceError: no answer; the subclass says why.

        What does not fit into one message is sent in several. If one of them fails, those before have been added; after
        an error without an answer, that one may have been. Calling again with the same `ids` is safe.
        """
        began = self._describe_once(timeout)
        requests = self._requests.add(documents, ids, datastore)
        return [id for request in requests for id in self._ask(request, timeout, began)]

    def delete(self, ids: Sequence[str], *, datastore: str | None = None, timeout: float = WRITE_SECONDS) -> int:
        """Delete documents of a live datastore: when this returns, no answer of it holds them, and none of its files.

        Args:
            ids: of the documents; those that are not there are passed over.
            datastore: as in `add`.
            timeout: seconds for all of it; the segments that held them are sorted anew.

        Returns:
            How many documents there were; too few where an attempt had to be repeated.

        Raises:
            DocumentError: an id is invalid.
            LiveFormatError, UnknownDatastoreError, PermissionDeniedError, StorageError, ServiceError: as `add`.
        """
        began = self._describe_once(timeout)
        return sum(self._ask(request, timeout, began) for request in self._requests.delete(ids, datastore))

    def stream(
        self, *, max_nodes: int = 64, max_suffix: int = 16, max_depth: int = 10, timeout: float | None = None
    ) -> DraftStream:
        """Return a stream of drafts for one generation; its first step opens it.

        Args:
            max_nodes: most draft tokens of each tree, 1..1024.
            max_suffix: longest suffix tried, in tokens, 1..64.
            max_depth: longest continuation, in tokens, 1..32.
            timeout: seconds for each step; None: as for other calls of this client.

        Raises:
            LimitError: a limit is out of range.
        """
        tree_limits = limits(max_nodes, max_suffix, max_depth)
        open_call = functools.partial(self._open, "DraftStream")
        return DraftStream(
            Route(self._codec, self._endpoints, open_call, self.info, self._seconds(timeout)), tree_limits
        )

    def session(self, settings: SessionSettings) -> SessionStream | None:
        """Return a session for the service to run, for `DraftSession`; None without `send_text`."""
        if not self._sessions.send_text:
            return None
        route = Route(self._codec, self._endpoints, self._open_session, self.info, self._timeout)
        return SessionStream(route, settings, self._sessions)

    def _describe_once(self, timeout: float | None) -> float:
        """Ask what the service is, unless that is known; return when the call began (`time.monotonic`)."""
        began = time.monotonic()
        if not self._codec.is_known:
            self._ask(self._requests.describe, timeout)
        return began

    def _open_session(self, endpoint: Endpoint[Connection]) -> StreamCall | SharedSession:
        return self._sessions.streams.join(endpoint) or self._open("DraftSession", endpoint)

    def _open(self, method: str, endpoint: Endpoint[Connection]) -> StreamCall:
        channel = endpoint.connection.channel
        try:
            return StreamCall(channel, self._dialer.metadata, endpoint.target, method)
        except ValueError:  # grpc's error for a channel that has just been closed
            endpoint.require_usable()
            raise

    def _ask(self, request: Request[T], timeout: float | None, began: float | None = None) -> T:
        """Ask until there is an answer or the deadline has come, and count it; ask first what the service is.

        The deadline is `timeout` after the call `began` (`time.monotonic`); None: now.
        """
        began = time.monotonic() if began is None else began
        if self._needs_description(request):
            self._ask(self._requests.describe, timeout)
        with self._counters.failures:
            message, policy = self._begin(request, timeout, began)
            return policy.call(lambda endpoint, seconds: self._attempt(endpoint, request, message, seconds))

    def _start(self, request: Request[T], timeout: float) -> Callable[[], T]:
        """Ask as `_ask`, of a known service; return what waits for the answer, so that others are asked meanwhile."""
        with self._counters.failures:
            message, policy = self._begin(request, timeout, time.monotonic())
            endpoint = policy.endpoint
            with self._call_errors(endpoint):
                method = endpoint.connection.methods[request.method]
                call = method.future(message, timeout=policy.allowance(), metadata=self._dialer.metadata)

        def first() -> T:
            with self._call_errors(endpoint):
                answer: bytes = call.result()
            return request.decode(answer, endpoint.target)

        def finish() -> T:
            with self._counters.failures:
                return policy.finish(
                    first, lambda endpoint, seconds: self._attempt(endpoint, request, message, seconds)
                )

        return finish

    def _attempt(self, endpoint: Endpoint[Connection], request: Request[T], message: bytes, seconds: float) -> T:
        with self._call_errors(endpoint):
            call = endpoint.connection.methods[request.method]
            answer: bytes = call(message, timeout=seconds, metadata=self._dialer.metadata)
        return request.decode(answer, endpoint.target)

    @contextlib.contextmanager
    def _call_errors(self, endpoint: Endpoint[Connection]) -> Iterator[None]:
        """Raise our errors for those of a call at `endpoint`."""
        try:
            yield
        except grpc.RpcError as error:
            raise error_of_call(endpoint.target, error) from None
        except ValueError:  # grpc's error for a channel that has just been closed
            endpoint.require_usable()
            raise

    def close(self) -> None:
        """Close its connections; later calls raise ServiceUnavailableError. May be called again.

        What is to be remembered of sessions that have just ended has up to a second to be sent.
        """
        for call in tuple(self._before_close):
            call(self)
        self._sessions.wait()
        for connection in self._endpoints.close():
            connection.channel.close()

    def before_close(self, call: Callable[[DatastoreClient], object]) -> None:
        """Have `close` call `call` with this client first, for what is queued to be added; once for each `call`."""
        self._before_close[call] = None

    def __enter__(self) -> DatastoreClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
