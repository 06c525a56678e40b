"""The requests of a client: the method of each, its message, and how its answer is read.

Sends nothing.
"""

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

WRITE_SECONDS = 10.0  # for calls that write, unless the caller says otherwise

T = TypeVar("T")
M = TypeVar("M", bound=Message)


@dataclass(frozen=True)
class Request(Generic[T]):
    """One request.

    Attributes:
        method: of the service.
        message: what is sent.
        decode: reads an answer, given its bytes and who sent it; raises ServiceError for one that
            is not valid.
    """

    method: str
    message: bytes
    decode: Callable[[bytes, str], T]


def parse(kind: type[M], data: bytes, target: str) -> M:
    """Return the message in `data`; raise ProtocolError if it is not of type `kind`."""
    try:
        return kind.FromString(data)
    except (
        DecodeError,
        TypeError,
    ) as error:  # the latter for None: a peer that says OK and nothing else
        found = "no message" if data is None else f"{len(data)} malformed bytes ({error})"
        raise ProtocolError(
            describe(target, kind.__name__, found, "a message of a datastore service")
        ) from None


class Requests:
    """Makes the requests to a service that has been described. Immutable.

    Args:
        info: what the client asks of the service.
        namespace: of live datastores, that is read, and written unless a request says another.

    Attributes:
        info: as given.
        vocabulary_size: of its tokenizer.
        selection: what every request selects. It names the datastores and the tokenizer, so that no
            other endpoint can answer for others, or in ids that mean something else.
    """

    def __init__(self, info: ServiceInfo, namespace: str) -> None:
        self.info = info
        self.vocabulary_size = info.tokenizer.vocabulary_size
        self.selection = pb.Selection(
            datastores=[datastore.name for datastore in info.datastores],
            tokenizer_fingerprint=info.tokenizer.fingerprint,
            namespace=namespace,
        )

    def _selected(self, datastore: str | None) -> pb.Selection:
        """Return what one request selects: the datastore of that name, or all that are asked."""
        if datastore is None:
            return self.selection
        if not is_name(datastore):
            raise UnknownDatastoreError(describe("client", "datastore", ascii(datastore), "a name"))
        selected = pb.Selection()
        selected.CopyFrom(self.selection)
        selected.datastores[:] = [datastore]
        return selected

    def count(self, tokens: IntSequence, datastore: str | None) -> Request[int]:
        """Ask for the occurrences of `tokens` in one datastore, or all together."""
        sequence = tail(tokens, MAX_SEQUENCE, self.vocabulary_size, "tokens")
        if len(tokens) > MAX_SEQUENCE:
            raise too_many_tokens(len(tokens))
        asked = self._selected(datastore)
        message = pb.CountRequest(selection=asked, tokens=sequence)

        def decode(answer: bytes, target: str) -> int:
            response = parse(pb.CountResponse, answer, target)
            if len(response.counts) != len(asked.datastores):
                raise ProtocolError(
                    describe(
                        target, "number of counts", len(response.counts), len(asked.datastores)
                    )
                )
            return sum(response.counts)

        return Request("Count", message.SerializeToString(), decode)

    def draft(
        self, tails: Sequence[Sequence[int]], limits: TreeLimits, datastore: str | None
    ) -> Request[list[list[TokenTree]]]:
        """Ask for the draft tree of each context, whose ends are
        `tails`, in one datastore, or in each.
        """
        asked = self._selected(datastore)
        message = pb.DraftRequest(
            selection=asked,
            limits=pb.TreeLimits(**limits._asdict()),
            contexts=[pb.Context(tokens=tokens) for tokens in tails],
        )

        def decode(answer: bytes, target: str) -> list[list[TokenTree]]:
            response = parse(pb.DraftResponse, answer, target)
            step = len(asked.datastores)
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
        """Add documents to a live datastore.

        The answer has the number of a change with which they are visible, too.

        Raises:
            DocumentError: a document is not 1-D integers, or ids are invalid or not one for each.
            QueryError: a token is outside the vocabulary.
            UnknownDatastoreError: none is named, and there is not exactly one.
        """
        name = self.live_name(datastore)
        # Made here, so that none comes twice when the request is sent again.
        known = new_ids(documents, ids)
        message = pb.AddRequest(
            datastore=name,
            tokenizer_fingerprint=self.selection.tokenizer_fingerprint,
            namespace=self._namespace("add", namespace),
            group=label("add", "a group", group),
            epoch=epoch_number(epoch),
        )
        for index, (tokens, id) in enumerate(zip(documents, known, strict=True)):
            checked = document_tokens(tokens, index, self.vocabulary_size)
            message.documents.add(id=id, tokens=checked.astype("<i4").tobytes())

        def decode(answer: bytes, target: str) -> tuple[AddedDocuments, int]:
            response = parse(pb.AddResponse, answer, target)
            added = set(response.added)
            if not added <= set(known):
                raise ProtocolError(
                    describe(target, "ids of documents", "others", "those that were sent")
                )
            return AddedDocuments(known, added), response.sequence

        return Request("Add", message.SerializeToString(), decode)

    def delete(
        self, ids: Sequence[str], datastore: str | None, namespace: str | None
    ) -> Request[tuple[int, int]]:
        """Delete documents of a live datastore, likewise."""
        known = document_ids("delete", ids)
        message = pb.DeleteRequest(
            datastore=self.live_name(datastore),
            ids=known,
            namespace=self._namespace("delete", namespace),
        )

        def decode(answer: bytes, target: str) -> tuple[int, int]:
            response = parse(pb.DeleteResponse, answer, target)
            if response.deleted > len(known):
                raise ProtocolError(
                    describe(
                        target, "number of documents", response.deleted, f"at most {len(known)}"
                    )
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
        """Return the namespace to write to; raise DocumentError for what is no name."""
        return self.selection.namespace if name is None else label(what, "a namespace", name)

    def live_name(self, name: str | None) -> str:
        """Return the name of the live datastore to write to: `name`, or the only one that is asked.

        Raises:
            DatastoreFormatError: none is named, and the only datastore that is asked is frozen.
            UnknownDatastoreError: none is named, and there are others than one.
        """
        asked = self.info.datastores
        live = [datastore.name for datastore in asked if datastore.is_live]
        if name is None and len(live) == 1:
            return live[0]
        if name is None and len(asked) == 1:
            raise DatastoreFormatError(
                "live",
                describe(self.info.target, f"datastore '{asked[0].name}'", "frozen", "a live one"),
            )
        if not is_name(name):
            found = f"{len(live)} live ones asked" if name is None else ascii(name)
            raise UnknownDatastoreError(
                describe("client", "datastore to write to", found, "the name of a live one")
            )
        return name
