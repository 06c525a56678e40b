"""The requests of a client: method, message and reader of the answer. Nothing is sent here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from google.protobuf.message import DecodeError, Message

from rest_store.datastore.kernel import MAX_SEQUENCE
from rest_store.datastore.tree import TokenTree
from rest_store.datastore.validation import (
    IntSequence,
    TreeLimits,
    document_ids,
    document_tokens,
    epoch_number,
    label,
    new_ids,
    tail,
    too_many_tokens,
)
from rest_store.errors import DatastoreFormatError, ProtocolError, UnknownDatastoreError, describe
from rest_store.live.added_documents import AddedDocuments
from rest_store.service.address import is_name
from rest_store.service.client.descriptions import ServiceInfo
from rest_store.service.client.trees import read_tree
from rest_store.v1 import datastore_pb2 as pb

WRITE_SECONDS = 10.0  # timeout of calls that write, unless the caller sets another

T = TypeVar("T")
M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class Request(Generic[T]):
    """A request.

    Attributes:
        method: of the service.
        message: the bytes to send.
        decode: returns the answer, given its bytes and the address of the service; raises
            ServiceError if it is not valid.
    """

    method: str
    message: bytes
    decode: Callable[[bytes, str], T]


def parse(kind: type[M], data: bytes, target: str) -> M:
    """Return the message in `data`; raise ProtocolError if it is not of type `kind`."""
    try:
        return kind.FromString(data)
    except (DecodeError, TypeError) as error:
        # `data` is None, which is a TypeError, if a peer says OK without a message.
        actual = "no message" if data is None else f"{len(data)} malformed bytes ({error})"
        raise ProtocolError(
            describe(target, kind.__name__, actual, "a message of a datastore service")
        ) from None


class Requests:
    """Makes the requests to a service that has been described. Immutable.

    Args:
        info: the description.
        namespace: of live datastores, for reading, and for writing unless a request names another.
        group: that reads live datastores, and for writing unless a request names another.

    Attributes:
        info: the description.
        vocabulary_size: of the tokenizer.
        selection: the selection of a request without a datastore of its own. It names datastores
            and tokenizer, so that an endpoint with others refuses the request.
    """

    def __init__(self, info: ServiceInfo, namespace: str, group: str) -> None:
        self.info = info
        self.vocabulary_size = info.tokenizer.vocabulary_size
        self.selection = pb.Selection(
            datastores=[datastore.name for datastore in info.datastores],
            tokenizer_fingerprint=info.tokenizer.fingerprint,
            namespace=namespace,
            group=group,
        )

    def _selected(self, datastore: str | None) -> pb.Selection:
        """Return the selection of a request: one datastore, or all that the client asks."""
        if datastore is None:
            return self.selection
        if not is_name(datastore):
            raise UnknownDatastoreError(describe("client", "datastore", ascii(datastore), "a name"))
        selected = pb.Selection()
        selected.CopyFrom(self.selection)
        selected.datastores[:] = [datastore]
        return selected

    def count(self, tokens: IntSequence, datastore: str | None) -> Request[int]:
        """Return a request for the occurrences of `tokens` in one datastore, or in all together."""
        sequence = tail(tokens, MAX_SEQUENCE, self.vocabulary_size, "tokens")
        if len(tokens) > MAX_SEQUENCE:
            raise too_many_tokens(len(tokens))
        selection = self._selected(datastore)
        message = pb.CountRequest(selection=selection, tokens=sequence)

        def decode(answer: bytes, target: str) -> int:
            response = parse(pb.CountResponse, answer, target)
            counts = len(response.counts)
            expected = len(selection.datastores)
            if counts != expected:
                raise ProtocolError(describe(target, "number of counts", counts, expected))
            return sum(response.counts)

        return Request("Count", message.SerializeToString(), decode)

    def draft(
        self, tails: Sequence[Sequence[int]], limits: TreeLimits, datastore: str | None
    ) -> Request[list[list[TokenTree]]]:
        """Return a request for the draft trees of contexts in one datastore, or in each.

        Args:
            tails: the last tokens of each context.
            limits: of each tree.
            datastore: name; None: all.
        """
        selection = self._selected(datastore)
        message = pb.DraftRequest(
            selection=selection,
            limits=pb.TreeLimits(**limits._asdict()),
            contexts=[pb.Context(tokens=tokens) for tokens in tails],
        )

        def decode(answer: bytes, target: str) -> list[list[TokenTree]]:
            response = parse(pb.DraftResponse, answer, target)
            step = len(selection.datastores)
            expected = len(tails) * step
            if len(response.trees) != expected:
                raise ProtocolError(
                    describe(target, "number of trees", len(response.trees), expected)
                )
            trees = [
                read_tree(tree, self.vocabulary_size, limits, target) for tree in response.trees
            ]
            return [trees[start : start + step] for start in range(0, len(trees), step)]

        return Request("Draft", message.SerializeToString(), decode)

    def add(
        self,
        documents: Sequence[IntSequence],
        ids: Sequence[str] | None,
        datastore: str | None,
        namespace: str | None,
        group: str,
        epoch: int,
    ) -> Request[tuple[AddedDocuments, int]]:
        """Return a request to add documents to a live datastore.

        The answer also has the number of a change with which the documents are visible.

        Raises:
            DocumentError: a document is not 1-D integers, an id is invalid, or there is not one id
                for each document.
            QueryError: a token is outside the vocabulary.
            UnknownDatastoreError: `datastore` is None, and the number of live datastores is not 1.
        """
        name = self.live_name(datastore)
        # The client makes the ids, so that a request that is sent again adds nothing twice.
        ids = new_ids(documents, ids)
        sent = frozenset(ids)
        message = pb.AddRequest(
            datastore=name,
            tokenizer_fingerprint=self.selection.tokenizer_fingerprint,
            namespace=self._namespace("add", namespace),
            group=label("add", "a group", group) or self.selection.group,
            epoch=epoch_number(epoch),
        )
        for index, (tokens, id) in enumerate(zip(documents, ids, strict=True)):
            checked = document_tokens(tokens, index, self.vocabulary_size)
            message.documents.add(id=id, tokens=checked.astype("<i4").tobytes())

        def decode(answer: bytes, target: str) -> tuple[AddedDocuments, int]:
            response = parse(pb.AddResponse, answer, target)
            added = set(response.added)
            if not added <= sent:
                raise ProtocolError(f"{target}: the answer names documents that were not sent")
            return AddedDocuments(ids, added), response.sequence

        return Request("Add", message.SerializeToString(), decode)

    def delete(
        self, ids: Sequence[str], datastore: str | None, namespace: str | None
    ) -> Request[tuple[int, int]]:
        """Return a request to delete documents of a live datastore; raises as `add`.

        The answer also has the number of a change with which the documents are gone.
        """
        ids = document_ids("delete", ids)
        message = pb.DeleteRequest(
            datastore=self.live_name(datastore),
            ids=ids,
            namespace=self._namespace("delete", namespace),
        )

        def decode(answer: bytes, target: str) -> tuple[int, int]:
            response = parse(pb.DeleteResponse, answer, target)
            if response.deleted > len(ids):
                raise ProtocolError(
                    describe(target, "number of documents", response.deleted, f"at most {len(ids)}")
                )
            return response.deleted, response.sequence

        return Request("Delete", message.SerializeToString(), decode)

    def follow(self, after: int, datastore_id: str) -> bytes:
        """Return a FollowRequest for the only live datastore that is asked."""
        return pb.FollowRequest(
            datastore=self.live_name(None),
            tokenizer_fingerprint=self.selection.tokenizer_fingerprint,
            after=after,
            datastore_id=datastore_id,
        ).SerializeToString()

    def _namespace(self, what: str, name: str | None) -> str:
        """Return the namespace to write to; raise DocumentError if `name` is not valid."""
        if name is None:
            return self.selection.namespace
        return label(what, "a namespace", name)

    def live_name(self, name: str | None) -> str:
        """Return the name of the live datastore to write to.

        Args:
            name: the name; None: that of the only live datastore.

        Raises:
            DatastoreFormatError: `name` is None, and the only datastore is frozen.
            UnknownDatastoreError: `name` is None, and the number of live datastores is not 1.
        """
        if is_name(name):
            return name
        datastores = self.info.datastores
        live = [datastore.name for datastore in datastores if datastore.is_live]
        if name is not None:
            actual = ascii(name)
        elif len(live) == 1:
            return live[0]
        elif len(datastores) == 1:
            what = f"datastore '{datastores[0].name}'"
            raise DatastoreFormatError(
                "live", describe(self.info.target, what, "frozen", "a live one")
            )
        else:
            actual = f"not named, and {len(live)} are live"
        raise UnknownDatastoreError(
            describe("client", "datastore to write to", actual, "the name of a live one")
        )
