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
from rest_store.service.client.partition import PartitionClient, Partitions
from rest_store.service.client.requests import WRITE_SECONDS, Request, Requests
from rest_store.service.client.trees import sum_trees

_SENT_TOKENS = 64  # of an opening without `send_text`

T = TypeVar("T")


class DatastoreClient:
    """A datastore behind a service (`rest-store serve`), with the
    methods and answers of `Datastore`.

    Also a source for `DraftSession`: the service runs a whole session, and its trees are merged
    with those of the other sources. Connects when it is first used, and reconnects by itself. A
    call that fails because the service is away, late or overloaded is made again, at another
    endpoint where there is one, then after growing pauses, and never beyond its deadline: all calls
    only read, or do nothing more the second time.

    Thread-safe. gRPC does not survive a fork: in a process forked after the first call, calls raise
    ServiceUnavailableError. Make the client there.

    Args:
        targets: `HOST:PORT` or `unix:/path`, or a list of several that serve the same. A datastore
            that is served in partitions has a list of such lists, one for each partition: `[["a:1",
            "b:1"], ["a:2", "b:2"]]`. As one string, as on command lines: `a:1,b:1;a:2,b:2`; with
            the name of a datastore: `a:1/code`, `unix:/path#code`. All partitions are asked at
            once, and all have to answer; in a draft session, a partition that does not is left out
            of a step.
        datastore: name or names of the datastores to ask; None: all whose tokenizer matches, of
            those that are there when the client connects.
        namespace: whose documents are asked, of live datastores, and written; "": those without
            one.
        tokenizer: the tokenizer in use: an object, a path or a name, as for `Datastore.open`; a
            service with another is refused.
        token: bearer token.
        tls: certificates; None: no TLS, for this machine and trusted networks.
        timeout: seconds for each query, all attempts together, and for each step of a session.
        send_text: whether the service gets the whole text of a draft session, not only the last 64
            tokens and what the model writes from then on.

    Raises:
        ArgumentError: an address, certificate, list of datastores or name that is not valid; or a
            number out of range.
        DocumentError: `namespace` is not a name.
        TokenizerLoadError: `tokenizer` is not a tokenizer.
    """

    def __init__(
        self,
        targets: Targets,
        *,
        datastore: str | Sequence[str] | None = None,
        namespace: str = "",
        tokenizer: object = None,
        token: str | None = None,
        tls: Tls | None = None,
        timeout: float = 0.1,
        send_text: bool = True,
    ) -> None:
        if isinstance(targets, str):
            targets, name = split_location(targets)
            datastore = name if datastore is None else datastore
        groups, names = target_groups(targets), _names(datastore)
        self._target = ";".join(map(",".join, groups))
        self._names = names
        self._timeout = check_seconds(timeout)
        self._opening_tokens = None if send_text else _SENT_TOKENS
        identity = None if tokenizer is None else identity_of(tokenizer)
        dialer = Dialer(token, tls)
        space = label("client", "a namespace", namespace)
        self._partitions = Partitions(
            [PartitionClient(group, dialer, names, identity, space) for group in groups]
        )
        self._before_close: dict[Callable[[DatastoreClient], object], None] = {}

    @property
    def tokenizer(self) -> TokenizerIdentity:
        """The tokenizer of the datastores asked; asks the service if it is not known yet.

        Raises:
            ServiceError: no answer; the subclass says why.
        """
        known = self._partitions.members[0].requests
        return (self.info() if known is None else known.info).tokenizer

    def info(self, *, timeout: float = 10.0) -> ServiceInfo:
        """Ask what the service is, and which of its datastores this client asks.

        Connect before, if need be.

        Raises:
            TokenizerMismatchError: its tokenizer is not the one passed in; says what differs.
            DatastoreFormatError: the partitions are not those of one build.
            ServiceError: no answer; the subclass says why.
        """
        return self._partitions.describe(_ends(timeout))

    def longest_suffix_match(
        self, context: IntSequence, *, max_suffix: int = 16, datastore: str | None = None
    ) -> SuffixMatch:
        """Return what `Datastore.longest_suffix_match` does.

        Of several datastores the longest, of equals the first.

        Raises:
            QueryError: as there.
            ServiceError: as `draft`.
        """
        return self.draft(
            context, max_nodes=1, max_suffix=max_suffix, max_depth=1, datastore=datastore
        ).match

    def count(self, tokens: IntSequence, *, datastore: str | None = None) -> int:
        """Return what `Datastore.count` does; of several datastores, and of partitions, the sum.

        Raises as `draft`.
        """
        return sum(
            self._partitions.ask(
                lambda requests: requests.count(tokens, datastore), _ends(self._timeout)
            )
        )

    def draft(
        self,
        context: IntSequence,
        *,
        max_nodes: int = 64,
        max_suffix: int = 16,
        max_depth: int = 10,
        datastore: str | None = None,
    ) -> TokenTree:
        """Return what `Datastore.draft` does.

        Of several datastores the tree of the longest match, of equals the first.

        `datastore` names the only one to ask; likewise in the other queries. In partitions, the
        trees of those with the longest match are joined by path and their counts summed. A path
        that a partition has beyond its `max_nodes` heaviest is missing from the sum: counts may be
        too small, and light nodes others than those of the whole datastore.

        Raises:
            QueryError: as there.
            ServiceError: no answer; the subclass says why.
        """
        tree_limits = check_tree_limits(max_nodes, max_suffix, max_depth)
        [tree] = self._draft(
            lambda size: [tail(context, tree_limits[1], size)], tree_limits, datastore
        )
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
        """Return what `draft` returns, for each of `contexts`.

        The service limits how many (`info().limits`).

        Raises:
            QueryError: as `draft`; the message names the index of the context.
            ServiceError: as `draft`.
        """
        tree_limits = check_tree_limits(max_nodes, max_suffix, max_depth)
        if not batch(contexts):
            return []
        return self._draft(
            lambda size: tails(contexts, tree_limits[1], size), tree_limits, datastore
        )

    def _draft(
        self,
        tails_of: Callable[[int], list[list[int]]],
        tree_limits: TreeLimits,
        datastore: str | None,
    ) -> list[TokenTree]:
        """Return the tree of each context.

        `tails_of` returns their ends, given the size of the vocabulary.
        """
        answers = self._partitions.ask(
            lambda requests: requests.draft(
                tails_of(requests.vocabulary_size), tree_limits, datastore
            ),
            _ends(self._timeout),
        )
        trees = []
        for of_partitions in zip(*answers, strict=True):
            of_datastores = [
                sum_trees(partitions, tree_limits[0])
                for partitions in zip(*of_partitions, strict=True)
            ]
            trees.append(max(of_datastores, key=lambda tree: tree.match.length))
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

        Return when they are durable, and visible to all its clients.

        An attempt that fails is repeated: an id makes sure that nothing is added twice, so calling
        again with the same `ids` is safe after any error.

        Args:
            documents: token sequences, 1-D integers, at least one each; the service limits how
                many, and their size together (`info().limits`, `max_contexts` and
                `max_message_bytes`).
            ids: one for each; the same id stands for the same document, which is not added again.
                None: new ones.
            datastore: its name; None: the only live one that this client asks.
            namespace: as in `LiveDatastore.add`; None: that of this client.
            group: as there.
            epoch: as there.
            timeout: seconds for all of it.

        Returns:
            The ids, in the order of `documents`, and which were added and which were there already,
            as `LiveDatastore.add`. After a repeated attempt, what the first one added counts as
            there.

        Raises:
            DocumentError, QueryError, StorageError: as `LiveDatastore.add`.
            ArgumentError, MessageSizeError: more than the service takes in one message.
            DatastoreFormatError: the datastore is frozen.
            UnknownDatastoreError: there is none of that name, or none was named and there are
                others than one.
            PermissionDeniedError: the token of this client may only read.
            ServiceError: no answer; the subclass says why.
        """
        return self._write(
            lambda some: some.add(documents, ids, datastore, namespace, group, epoch), timeout
        )

    def delete(
        self,
        ids: Sequence[str],
        *,
        datastore: str | None = None,
        namespace: str | None = None,
        timeout: float = WRITE_SECONDS,
    ) -> int:
        """Delete documents of a live datastore: when this returns, no
        answer of it holds them, and none of its files.

        Args:
            ids: of the documents; those that are not there are passed over.
            datastore: as in `add`.
            namespace: as in `add`.
            timeout: seconds for all of it; the segments that held them are sorted anew.

        Returns:
            How many documents there were; too few where an attempt had to be repeated.

        Raises:
            DocumentError: an id is invalid.
            ArgumentError, DatastoreFormatError, UnknownDatastoreError, PermissionDeniedError,
                StorageError, ServiceError: as `add`.
        """
        return self._write(lambda some: some.delete(ids, datastore, namespace), timeout)

    def _write(self, make: Callable[[Requests], Request[tuple[T, int]]], timeout: float) -> T:
        # Partitions are frozen, so that none makes a request.
        return self._partitions.ask(make, _ends(timeout))[0][0]

    def members(
        self, settings: MemberSettings, text: Callable[[], npt.NDArray[np.int32]]
    ) -> list[ServiceMember]:
        """Return a new session's members for `DraftSession`, one for
        each partition, as `MemberSource.members`.
        """
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
        """Close its connections; later calls raise ServiceUnavailableError. May be called again."""
        for call in tuple(self._before_close):
            call(self)
        self._partitions.close()

    def before_close(self, call: Callable[[DatastoreClient], object]) -> None:
        """Have `close` call `call` with this client first, for what is queued to be added.

        Once for each `call`.
        """
        self._before_close[call] = None

    def __enter__(self) -> DatastoreClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __str__(self) -> str:
        """What it was made with, for statistics: "code at 127.0.0.1:50051", or the target alone."""
        return f"{', '.join(self._names)} at {self._target}" if self._names else self._target

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
    several = [datastore] if isinstance(datastore, str) else datastore
    try:
        names = tuple(several)
    except TypeError:
        names = ()
    if not names or not all(map(is_name, names)) or len(set(names)) < len(names):
        raise ArgumentError(
            describe(
                "client", "datastore", repr(datastore), "one or more names, each once, or None"
            )
        )
    return names
