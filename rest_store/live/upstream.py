"""What a live datastore hands on to its replicas, change by change, and what they get it from."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from rest_store.datastore.tokenizer import TokenizerIdentity
    from rest_store.datastore.validation import IntSequence
    from rest_store.live.added_documents import AddedDocuments


class DocumentRecord(NamedTuple):
    """A document as it is stored.

    Attributes:
        number: of its addition. One counter numbers additions and removals of a live datastore, in
            their order.
        namespace: whose queries read it.
        digest: stands for its id and namespace; 16 bytes.
        added: seconds since 1970.
        group: what it belongs to, such as the prompt that it answers; "": nothing.
        epoch: of the model that wrote it.
        symbols: its tokens as a tokens file has them, without a separator.
    """

    number: int
    namespace: str
    digest: bytes
    added: float
    group: str
    epoch: int
    symbols: bytes


def is_time(value: object) -> bool:
    """Return whether `value` may be seconds since 1970, of a year that dates can have."""
    return isinstance(value, float) and 0 <= value < 2.5e11


def digest_of(id: str, namespace: str) -> bytes:
    """Return what stands for an id of a namespace; the id itself is not stored."""
    return hashlib.blake2b(f"{namespace}\0{id}".encode(), digest_size=16).digest()


class Removal(NamedTuple):
    """No document `first .. last` is there any more, of whichever namespace.

    Attributes:
        number: of the removal, greater than `last`.
        first: number of a document.
        last: likewise.
        deleted: no file may hold them any more; False: they were evicted.
    """

    number: int
    first: int
    last: int
    deleted: bool


class Changes(NamedTuple):
    """All changes with numbers `first .. last`, but for documents that have been removed since.

    Attributes:
        datastore_id: of the datastore since the first change of the latest opening; "": that of the
            one that changes.
        first: 1 although others came before: what a replica holds is replaced.
        last: `first - 1` if there are none.
        head: number of the newest change; `head - last` says how far behind this is.
        added: documents, in the order of their numbers.
        removed: likewise.
    """

    datastore_id: str
    first: int
    last: int
    head: int
    added: Sequence[DocumentRecord]
    removed: Sequence[Removal]


class Upstream(Protocol):
    """The live datastore that a replica follows. Connects when it
    is first asked, and again after an error.

    Every method, and `tokenizer`, raises RestStoreError when the service cannot be reached or
    refuses. Thread-safe.

    Attributes:
        location: as it was given, for messages.
    """

    location: str

    @property
    def tokenizer(self) -> TokenizerIdentity:
        """Identity of the tokenizer that the tokens are from."""

    def changes(self, after: int, datastore_id: str) -> Iterator[Changes]:
        """Yield the changes after number `after` without an end, as they come.

        None now and then, as a sign of life.

        Args:
            after: the newest change that the replica has.
            datastore_id: of the datastore that it is from; "": none. If it is another one, all
                changes are yielded.
        """

    def add(
        self,
        documents: Sequence[IntSequence],
        ids: Sequence[str] | None,
        *,
        namespace: str,
        group: str,
        epoch: int,
    ) -> tuple[AddedDocuments, int]:
        """Add documents.

        Return their ids, and the number of a change with which all of them are visible.
        """

    def delete(self, ids: Sequence[str], *, namespace: str) -> tuple[int, int]:
        """Delete documents.

        Return how many there were, and the number of a change with which they are gone.
        """

    def close(self) -> None:
        """Disconnect; `changes` ends with an error. May be called again, by any thread."""
