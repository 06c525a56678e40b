"""One namespace of a live datastore: documents that no query of another namespace reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from rest_store.datastore.header import token_width
from rest_store.datastore.shard import decode_symbols
from rest_store.datastore.store import Snapshot, Store
from rest_store.datastore.validation import IntSequence, check_int, document_ids, label, new_ids
from rest_store.live.added_documents import AddedDocuments
from rest_store.live.backend import Backend
from rest_store.live.retention import Retention


class StoredDocument(NamedTuple):
    """A document of a live datastore.

    Attributes:
        tokens: int[n].
        group: a label that documents share, such as the prompt that they answer; "": none.
        epoch: the epoch of the model that wrote it.
        added: the time of its addition, in seconds since 1970.
    """

    tokens: npt.NDArray[np.unsignedinteger]
    group: str
    epoch: int
    added: float


class Namespace(Store):
    """The documents of one namespace.

    It is a store for queries and sessions, and a target of `remember`. Ids of documents, and the
    retention, are those of the namespace. Thread-safe.

    Args:
        backend: the opened datastore.
        name: the name of the namespace; "": the default.
        reader: the group whose queries it answers; "": a reader without a group.

    Attributes:
        name: as above.
        reader: as above.
        backend: as above; all namespaces of one opening share it.
    """

    is_live: ClassVar[bool] = True

    def __init__(self, backend: Backend, name: str, reader: str = "") -> None:
        self.name = label("live datastore", "a namespace", name)
        self.reader = label("live datastore", "a group", reader)
        self.backend = backend
        self.path = backend.path
        self.tokenizer = backend.tokenizer

    @property
    def snapshot(self) -> Snapshot:
        """The segments that queries read from now on."""
        return self.backend.snapshot(self.name, self.reader)

    @property
    def newest_change(self) -> int:
        """The number of the datastore's newest change that queries see.

        After `add` or `delete` has returned, it is the number of that change or of a later one.
        """
        return self.backend.segments.newest

    @property
    def shared_after(self) -> int:
        """How many groups have to write a text before queries tell others of it.

        Raises:
            DatastoreClosedError: after `close`.
        """
        return self.backend.segments.shared_after

    @property
    def label(self) -> str:
        """Its name for people: the path, and the name of the namespace."""
        return f"{self.path}/{self.name}" if self.name else str(self.path)

    def close(self) -> None:
        """Do nothing: the datastore stays open for its other namespaces."""

    def read_as(self, group: str) -> Namespace:
        """Return this namespace as `group` may read it.

        Where the datastore was opened with `shared_after`, queries and sessions tell the group of
        token sequences that its own documents hold, or those of at least `shared_after` groups.

        Raises:
            DocumentError: `group` is not a valid group.
        """
        return Namespace(self.backend, self.name, group)

    def add(
        self,
        documents: Sequence[IntSequence | str],
        ids: Sequence[str] | None = None,
        *,
        group: str | Sequence[str] = "",
        epoch: int | Sequence[int] = 0,
    ) -> AddedDocuments:
        """Add documents; return when they are durable, and visible to the queries of this process.

        An addition waits 20 ms where additions come faster than their segments can be merged.

        Args:
            documents: token sequences (1-D integers, at least one), or texts, which are tokenized
                without special tokens.
            ids: one for each document, 1..256 characters. A document whose id exists already, or
                comes earlier in `ids`, is not added again. None: new ids.
            group: a label that the documents share, such as the prompt that they answer, or a list
                with one for each document; "": none.
            epoch: the epoch of the model that wrote them, or a list with one for each document.

        Returns:
            The ids, in the order of `documents`. Its `added` and `duplicates` say which documents
            existed already.

        Raises:
            DocumentError: a document is empty, larger than 2^24 tokens or than `max_tokens`, or
                neither tokens nor text; or an id or the group is invalid. Nothing was added. The
                same holds for the next three.
            QueryError: a token is outside the vocabulary.
            ArgumentError: the epoch is invalid.
            TokenizerLoadError: there is a text, but the datastore was created without a tokenizer
                that can encode it.
            TokenizerMismatchError: there is a text, but the file of the tokenizer has been replaced
                by another tokenizer.
            StorageError: the documents cannot be written. Of more than four million tokens, the
                first ones may have been.
            WriterError: the datastore was opened for reading, or by another process.
            DatastoreClosedError: after `close`.
        """
        writer = self.backend.writer()
        all_ids = new_ids(documents, ids)
        tokens = self.backend.text_encoder.encode(documents)
        return writer.add(tokens, all_ids, namespace=self.name, group=group, epoch=epoch)

    def delete(self, ids: Sequence[str]) -> int:
        """Delete documents: when this returns, no answer of this process and no file holds them.

        Files may still hold documents that were evicted before. They are overwritten, too.

        Deletion writes the segments of the documents again. It also rewrites the file of documents,
        since SQLite may have left copies in unused bytes. For 100 million tokens that takes some
        seconds, in which additions wait and queries go on. So delete many documents at once.

        Args:
            ids: ids of documents, as in `add`. Ids that do not exist are ignored.

        Returns:
            How many of the documents existed.

        Raises:
            DocumentError: an id is invalid; nothing was deleted.
            StorageError: the deletion cannot be written, and nothing was deleted. Or the documents
                are deleted, and the message says where their bytes still are: in unused bytes, for
                lack of room to rewrite the file, or in the log, because another process has been
                reading an older state for seconds. The next call tries again.
            WriterError, DatastoreClosedError: as in `add`.
        """
        return self.backend.writer().delete(document_ids("delete", ids), self.name)

    def discard(self, ids: Sequence[str]) -> int:
        """Delete documents from the answers: quickly, and without a wait for merges.

        The bytes of deleted documents stay in the file of documents until the next `delete`, or
        until the datastore is opened for writing again.

        Args:
            ids: ids of documents, as in `delete`.

        Returns:
            How many of the documents existed.

        Raises:
            DocumentError: an id is invalid; nothing was deleted.
            StorageError: the deletion cannot be written, and nothing was deleted.
            WriterError: as in `add`, or it is a replica.
            DatastoreClosedError: after `close`.
        """
        return self.backend.writer().discard(document_ids("discard", ids), self.name)

    def set_retention(
        self,
        *,
        max_tokens: int | None = None,
        max_age: float | None = None,
        max_epochs: int | None = None,
    ) -> None:
        """Set how much this namespace keeps from now on, whatever other namespaces keep.

        The arguments are those of `LiveDatastore.open`. None: as before.

        Raises:
            ArgumentError: an argument is not positive.
            WriterError, StorageError, DatastoreClosedError: as in `add`.
        """
        retention = Retention.parse(max_tokens, max_age, max_epochs)
        self.backend.writer().set_retention(self.name, retention)

    def documents(
        self, *, group: str | None = None, latest: int | None = None
    ) -> Iterator[StoredDocument]:
        """Yield the documents that are stored now, in the order of their addition.

        Args:
            group: only documents of this group; None: of any group, or none.
            latest: only so many of the newest documents; None: all.

        Raises:
            DocumentError: `group` is not a valid group.
            ArgumentError: `latest` is not positive.
            StorageError: they cannot be read.
            DatastoreClosedError: after `close`.
        """
        group = label("documents", "a group", group or "")
        if latest is not None:
            latest = check_int("latest", latest, 2**62, where="documents")
        width = token_width(self.vocabulary_size)
        with closing(self.backend.stored()) as stored:
            for number in stored.latest_numbers(latest, namespace=self.name, group=group):
                # A query that is still open would keep the log from being emptied, so it is read
                # to its end before the caller gets the document.
                for document in list(stored.read(number, number, namespace=self.name)):
                    tokens = decode_symbols(np.frombuffer(document.symbols, np.uint8), width)
                    yield StoredDocument(tokens, document.group, document.epoch, document.added)
