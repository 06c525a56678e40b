"""The client of a datastore service: the surface of `Datastore`, over gRPC."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from rest_store.datastore.tokenizer import TokenizerIdentity, identity_of
from rest_store.datastore.tree import SuffixMatch, TokenTree
from rest_store.datastore.validation import (
    Contexts,
    IntSequence,
    TreeLimits,
    batch,
    check_tree_limits,
    label,
    tail,
    tails,
)
from rest_store.drafting.members import MemberSettings
from rest_store.errors import ArgumentError, describe
from rest_store.live.added_documents import AddedDocuments
from rest_store.service.address import is_name
from rest_store.service.channel import (
    Dialer,
    Targets,
    Tls,
    check_seconds,
    split_location,
    target_groups,
)
from rest_store.service.client.descriptions import ServiceInfo
from rest_store.service.client.member import ServiceMember
from rest_store.service.client.partition_clients import PartitionClient, Partitions
from rest_store.service.client.requests import WRITE_SECONDS, Request, Requests
from rest_store.service.client.trees import sum_trees

_OPENING_TOKENS = 64  # of the text, where the client is not to send all of it

T = TypeVar("T")


class DatastoreClient:
    """The datastores of a service (`rest-store serve`), with the methods of `Datastore`.

    A client is also a source for `DraftSession`: the service runs a whole session, and its trees
    are merged with those of the other sources.

    The client connects when it is first used, and reconnects by itself. It repeats a call that
    fails because the service is away, late or overloaded: at another endpoint if there is one, then
    after growing pauses, and never beyond the deadline. This is safe: a call only reads, or does
    nothing more the second time.

    Thread-safe. gRPC does not survive a fork: in a process that was forked after the first call,
    calls raise ServiceUnavailableError. Make another client there.

    Args:
        targets: an address, `HOST:PORT` or `unix:/path`, or a list of the addresses of equal
            services. A datastore that is served in partitions has a list of such lists, one for
            each partition: `[["a:1", "b:1"], ["a:2", "b:2"]]`. The same as one string, as on
            command lines, is `a:1,b:1;a:2,b:2`. An address may end with the name of a datastore:
            `a:1/code`, `unix:/path#code`. A query needs the answers of all partitions. A draft
            session leaves a partition that does not answer out of a step.
        datastore: name or names of the datastores to ask; None: all datastores with the same
            tokenizer that are there when the client connects.
        namespace: of live datastores, the namespace that is read and written; "": the documents
            without one.
        group: of live datastores that are shared with `shared_after`, the group that reads: the
            answers tell it of its own documents, and of token sequences that enough groups wrote.
            Documents are added to it unless `add` names another group. "": a reader of no group.
            The `group` of a `DraftSession` goes before this one.
        tokenizer: the tokenizer in use: an object, a path or a name, as for `Datastore.open`. A
            service with another tokenizer is refused.
        token: bearer token.
        tls: certificates; None: no TLS, for this machine and trusted networks.
        timeout: seconds for each query, all attempts together, and for each step of a session.
        send_text: whether the service gets the whole text of a draft session. Otherwise it gets the
            last 64 tokens, and the tokens that the model writes from then on.

    Raises:
        ArgumentError: an address, a certificate, the list of datastores or a name is not valid, or
            a number is out of range.
        DocumentError: `namespace` or `group` is not a name.
        TokenizerLoadError: `tokenizer` is not a tokenizer.
    """

    def __init__(
        self,
        targets: Targets,
        *,
        datastore: str | Sequence[str] | None = None,
        namespace: str = "",
        group: str = "",
        tokenizer: object = None,
        token: str | None = None,
        tls: Tls | None = None,
        timeout: float = 0.1,
        send_text: bool = True,
    ) -> None:
        if isinstance(targets, str):
            targets, name = split_location(targets)
            if datastore is None:
                datastore = name
        equal_targets = target_groups(targets)
        self._target = ";".join(",".join(equal) for equal in equal_targets)
        self._names = _names(datastore)
        self._timeout = check_seconds(timeout)
        self._opening_tokens = None if send_text else _OPENING_TOKENS
        identity = None if tokenizer is None else identity_of(tokenizer)
        dialer = Dialer(token, tls)
        labels = label("client", "a namespace", namespace), label("client", "a group", group)
        self._partitions = Partitions(
            [
                PartitionClient(equal, dialer, self._names, identity, *labels)
                for equal in equal_targets
            ]
        )
        self._before_close: dict[Callable[[DatastoreClient], object], None] = {}

    @property
    def tokenizer(self) -> TokenizerIdentity:
        """The tokenizer of the datastores. The first use may ask the service.

        Raises:
            ServiceError: no answer; the subclass says why.
        """
        requests = self._partitions.members[0].requests
        info = self.info() if requests is None else requests.info
        return info.tokenizer

    @property
    def shared_after(self) -> int:
        """The number of groups that have to write a text before others are told of it.

        Of several datastores, the greatest number. 2 as long as the service has not been described:
        nothing is known to be for everybody.
        """
        numbers = []
        for partition in self._partitions.members:
            if partition.requests is not None:
                numbers += [
                    datastore.shared_after for datastore in partition.requests.info.datastores
                ]
        return max(numbers, default=2)

    def info(self, *, timeout: float = 10.0) -> ServiceInfo:
        """Ask for the description of the service and of the datastores that this client asks.

        Raises:
            TokenizerMismatchError: its tokenizer is not the one passed in; names the difference.
            DatastoreFormatError: the partitions are not those of one build.
            ServiceError: no answer; the subclass says why.
        """
        return self._partitions.describe(_ends(timeout))

    def longest_suffix_match(
        self, context: IntSequence, *, max_suffix: int = 16, datastore: str | None = None
    ) -> SuffixMatch:
        """Return the answer of `Datastore.longest_suffix_match`.

        Of several datastores it is the longest match, of equals the first.

        Raises:
            QueryError: as there.
            ServiceError: as `draft`.
        """
        tree = self.draft(
            context, max_nodes=1, max_suffix=max_suffix, max_depth=1, datastore=datastore
        )
        return tree.match

    def count(self, tokens: IntSequence, *, datastore: str | None = None) -> int:
        """Return the answer of `Datastore.count`, summed over datastores and partitions.

        Raises:
            QueryError, ServiceError: as `draft`.
        """
        counts = self._partitions.ask(
            lambda requests: requests.count(tokens, datastore), _ends(self._timeout)
        )
        return sum(counts)

    def draft(
        self,
        context: IntSequence,
        *,
        max_nodes: int = 64,
        max_suffix: int = 16,
        max_depth: int = 10,
        datastore: str | None = None,
    ) -> TokenTree:
        """Return the answer of `Datastore.draft`.

        Of several datastores it is the tree of the longest match, of equals the first. `datastore`
        names the only one to ask; likewise in the other queries.

        Of several partitions, the trees with the longest match are joined by path, and the counts
        of a path are summed. The sum lacks the counts of partitions in which the path is not among
        the `max_nodes` heaviest. So counts may be too small, and light nodes may differ from those
        of the whole datastore.

        Raises:
            QueryError: as there.
            ServiceError: no answer; the subclass says why.
        """
        limits = check_tree_limits(max_nodes, max_suffix, max_depth)

        def ends(vocabulary_size: int) -> list[list[int]]:
            return [tail(context, limits.max_suffix, vocabulary_size)]

        [tree] = self._draft(ends, limits, datastore)
        return tree

    def draft_batch(
        self,
        contexts: Contexts,
        *,
        max_nodes: int = 64,
        max_suffix: int = 16,
        max_depth: int = 10,
        datastore: str | None = None,
    ) -> list[TokenTree]:
        """Return the answer of `draft` for each of `contexts`.

        The service limits the number of contexts (`info().limits`).

        Raises:
            QueryError: as `draft`; the message names the index of the context.
            ServiceError: as `draft`.
        """
        limits = check_tree_limits(max_nodes, max_suffix, max_depth)
        if not batch(contexts):
            return []

        def ends(vocabulary_size: int) -> list[list[int]]:
            return tails(contexts, limits.max_suffix, vocabulary_size)

        return self._draft(ends, limits, datastore)

    def _draft(
        self,
        ends: Callable[[int], list[list[int]]],
        limits: TreeLimits,
        datastore: str | None,
    ) -> list[TokenTree]:
        """Return the tree of each context.

        Args:
            ends: returns the last tokens of each context, given the size of the vocabulary.
            limits: of each tree.
            datastore: name of the only datastore to ask; None: all.
        """

        def request(requests: Requests) -> Request[list[list[TokenTree]]]:
            return requests.draft(ends(requests.vocabulary_size), limits, datastore)

        # For each partition, for each context, for each datastore.
        answers = self._partitions.ask(request, _ends(self._timeout))
        trees = []
        for context_answers in zip(*answers, strict=True):
            sums = [
                sum_trees(partition_trees, limits.max_nodes)
                for partition_trees in zip(*context_answers, strict=True)
            ]
            trees.append(max(sums, key=lambda tree: tree.match.length))
        return trees

    def add(
        self,
        documents: Sequence[IntSequence],
        ids: Sequence[str] | None = None,
        *,
        datastore: str | None = None,
        namespace: str | None = None,
        group: str = "",
        epoch: int = 0,
        timeout: float = WRITE_SECONDS,
    ) -> AddedDocuments:
        """Add documents to a live datastore.

        The documents are durable, and visible to all clients, when this returns.

        An attempt that fails is repeated. Nothing is added twice, since an id stands for one
        document. So a call with the same `ids` is safe after any error.

        Args:
            documents: token sequences, 1-D integers, at least one each. The service limits their
                number and their size together (`info().limits`, `max_contexts` and
                `max_message_bytes`).
            ids: one for each document. The same id stands for the same document, which is not added
                again. None: new ids.
            datastore: its name; None: the only live one that this client asks.
            namespace: as in `LiveDatastore.add`; None: that of this client.
            group: as there.
            epoch: as there.
            timeout: seconds for all attempts together.

        Returns:
            The ids, in the order of `documents`, and whether each document was new, as
            `LiveDatastore.add`. After a repeated attempt, documents that the first attempt added do
            not count as new.

        Raises:
            DocumentError, QueryError, StorageError: as `LiveDatastore.add`.
            ArgumentError, MessageSizeError: more than the service takes in one message.
            DatastoreFormatError: the datastore is frozen.
            UnknownDatastoreError: there is no datastore of that name; or `datastore` is None, and
                the number of live ones is not 1.
            PermissionDeniedError: the token of this client may only read.
            ServiceError: no answer; the subclass says why.
        """
        return self._write(
            lambda requests: requests.add(documents, ids, datastore, namespace, group, epoch),
            timeout,
        )

    def delete(
        self,
        ids: Sequence[str],
        *,
        datastore: str | None = None,
        namespace: str | None = None,
        timeout: float = WRITE_SECONDS,
    ) -> int:
        """Delete documents of a live datastore.

        No answer and no file of the datastore holds the documents when this returns.

        Args:
            ids: of the documents. An id without a document is passed over.
            datastore: as in `add`.
            namespace: as in `add`.
            timeout: seconds for all attempts together. The service sorts the segments that held the
                documents anew.

        Returns:
            The number of documents that were deleted; too few where an attempt was repeated.

        Raises:
            DocumentError: an id is invalid.
            ServiceError: as `add`, which raises the same other errors.
        """
        return self._write(lambda requests: requests.delete(ids, datastore, namespace), timeout)

    def _write(self, make: Callable[[Requests], Request[tuple[T, int]]], timeout: float) -> T:
        # A datastore in partitions is frozen, so that `make` raises: there is one answer.
        answers = self._partitions.ask(make, _ends(timeout))
        written, _ = answers[0]
        return written

    def members(
        self, settings: MemberSettings, text: Callable[[], npt.NDArray[np.int32]]
    ) -> list[ServiceMember]:
        """Return the members of a new session, one for each partition, as `MemberSource`."""
        return [
            ServiceMember(
                self._partitions,
                partition,
                settings,
                text,
                timeout=self._timeout,
                max_sent=self._opening_tokens,
            )
            for partition in self._partitions.members
        ]

    def close(self) -> None:
        """Close all connections; later calls raise ServiceUnavailableError. May be called again."""
        for call in tuple(self._before_close):
            call(self)
        self._partitions.close()

    def before_close(self, call: Callable[[DatastoreClient], object]) -> None:
        """Have `close` first call `call` with this client, to add documents that are queued.

        A function that is passed twice is called once.
        """
        self._before_close[call] = None

    def __enter__(self) -> DatastoreClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __str__(self) -> str:
        """Its name in statistics: "code at 127.0.0.1:50051", or the target alone."""
        if not self._names:
            return self._target
        return f"{', '.join(self._names)} at {self._target}"

    def __repr__(self) -> str:
        return f"DatastoreClient({self._target!r})"


def _ends(timeout: float) -> float:
    """Return the deadline of a call that begins now."""
    return time.monotonic() + check_seconds(timeout)


def _names(datastore: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of the datastores to ask.

    Raise ArgumentError unless they are distinct names.
    """
    if datastore is None:
        return ()
    try:
        names = (datastore,) if isinstance(datastore, str) else tuple(datastore)
    except TypeError:
        names = ()
    if not names or not all(map(is_name, names)) or len(set(names)) < len(names):
        expected = "one or more names, each once, or None"
        raise ArgumentError(describe("client", "datastore", repr(datastore), expected))
    return names
