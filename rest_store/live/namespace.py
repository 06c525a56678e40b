"""One namespace of a live datastore: documents of one tenant or
task, which no query of another reads.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from rest_store.datastore.header import token_width
from rest_store.datastore.shard import decode_symbols
from rest_store.datastore.store import Snapshot, Store
from rest_store.datastore.validation import IntSequence, check_int, document_ids, label
from rest_store.live.added_documents import AddedDocuments
from rest_store.live.retention import Retention

if TYPE_CHECKING:
    from rest_store.live.live_datastore import LiveDatastore


class StoredDocument(NamedTuple):
    """A document of a live datastore.

    Attributes:
        tokens: int[n].
        group: what it belongs to, such as the prompt that it answers; "": nothing.
        epoch: of the model that wrote it.
        added: seconds since 1970.
    """

    tokens: npt.NDArray[np.unsignedinteger]
    group: str
    epoch: int
    added: float


class Namespace(Store):
    """The documents of one namespace: a store for queries and
    sessions, and a target of `remember`. Thread-safe.

    Attributes:
        name: of the namespace; ids and limits are those of a namespace.
    """

    is_live: ClassVar[bool] = True
    name: str

    def __init__(self, live: LiveDatastore, name: str) -> None:
        self.name = label("live datastore", "a namespace", name)
        self.path, self.tokenizer = live.path, live.tokenizer
        self._live = live

    @property
    def live(self) -> LiveDatastore:
        """The datastore that it is a part of."""
        return self._live

    @property
    def snapshot(self) -> Snapshot:
        """The segments that queries read from now on."""
        segments = self.live.segments
        return Snapshot.closed(self.path) if segments is None else segments.snapshot(self.name)

    def close(self) -> None:
        """Do nothing: the datastore stays open for its other namespaces."""

    def add(
        self,
        documents: Sequence[IntSequence | str],
        ids: Sequence[str] | None = None,
        *,
        group: str | Sequence[str] = "",
        epoch: int | Sequence[int] = 0,
    ) -> AddedDocuments:
        """Add documents; return when they are durable, and visible to the queries of this process.

        Where additions come faster than their segments can be merged, each is held back by 20 ms.

        Args:
            documents: token sequences (1-D integers, at least one), or texts, which are tokenized
                without special tokens.
            ids: one for each, 1..256 characters; one that is there already, or was given before in
                `ids`, stands for the same document, which is not added again. None: new ones.
            group: what they belong to, such as the prompt that they answer, or that of each; "":
                nothing.
            epoch: of the model that wrote them, or that of each.

        Returns:
            The ids, in the order of `documents`; its `added` and `duplicates` say which were there
            already.

        Raises:
            DocumentError: a document is empty, larger than 2^24 tokens or than `max_tokens`, or
                neither tokens nor text; or an id or a group is invalid. Nothing was added; likewise
                with the next two.
            QueryError: a token is outside the vocabulary.
            TokenizerLoadError: a text, but the datastore was begun without a tokenizer that can
                encode it.
            TokenizerMismatchError: a text, but the file of the tokenizer holds another one by now.
            StorageError: they cannot be written; of more than a million tokens, those before may
                have been.
            WriterError: the datastore was opened for reading, or in another process.
            DatastoreClosedError: after `close`.
        """
        writer = self.live.writer()
        most = writer.limits.of(self.name).max_tokens
        labels: Any = {"namespace": self.name, "group": group, "epoch": epoch}
        names, encoded = self.live.encoder.encode(documents, ids, **labels, max_tokens=most)
        new = writer.add(encoded, names)
        known = zip(names, encoded, strict=True)
        return AddedDocuments(names, {name for name, document in known if document.digest in new})

    def delete(self, ids: Sequence[str]) -> int:
        """Delete documents: when this returns, no answer of this
        process holds them, and no file. Evicted ones, too.

        Sorts the segments that held them anew, and rewrites the file of documents, in whose unused
        bytes SQLite may have left copies: some seconds for 100 million tokens, in which additions
        wait and queries go on. So delete many at once.

        Args:
            ids: of the documents, as in `add`; those that are not there are passed over.

        Returns:
            How many documents there were.

        Raises:
            DocumentError: an id is invalid; nothing was deleted, likewise with the next one.
            StorageError: that cannot be written. Or the documents are deleted, and this says where
                they still are: in unused bytes, because there is no room to rewrite the others; or
                in the log, because another process has been reading an older state for seconds. The
                next call tries again.
            WriterError, DatastoreClosedError: as in `add`.
        """
        return self.live.writer().delete(document_ids("delete", ids), self.name)

    def discard(self, ids: Sequence[str], *, max_tokens: int | None = None) -> list[str]:
        """Delete documents where that is quick: from the answers, and from segments that are small.

        What is deleted stays in unused bytes of the file of documents until the next `delete`, or
        until the datastore is opened for writing again.

        Args:
            ids: of the documents, as in `delete`.
            max_tokens: of a segment that is sorted anew; None: all are.

        Returns:
            The ids of those that are still there, since their segments are larger, or since
            segments are being merged.

        Raises:
            DocumentError: an id is invalid; nothing was deleted.
            StorageError: that cannot be written; nothing was deleted.
            WriterError: as in `add`, or it is a replica.
            DatastoreClosedError: after `close`.
        """
        return self.live.writer().discard(document_ids("discard", ids), self.name, max_tokens)

    def limit(
        self,
        *,
        max_tokens: int | None = None,
        max_age: float | None = None,
        max_epochs: int | None = None,
    ) -> None:
        """Keep so much from now on, whatever other namespaces keep.

        Limits as in `LiveDatastore.open`, None: as before.

        Raises:
            ArgumentError: a limit is not positive.
            WriterError, StorageError, DatastoreClosedError: as in `add`.
        """
        self.live.writer().limit(self.name, Retention.checked(max_tokens, max_age, max_epochs))

    def documents(
        self, *, group: str | None = None, latest: int | None = None
    ) -> Iterator[StoredDocument]:
        """Yield the documents that are stored by now, or those of a
        group, in the order of their addition.

        Args:
            group: of the documents; None: of any, or none.
            latest: how many, the newest ones; None: all.

        Raises:
            DocumentError: that is no group.
            ArgumentError: `latest` is not positive.
            StorageError: they cannot be read.
            DatastoreClosedError: after `close`.
        """
        part = label("documents", "a group", group or "")
        count = None if latest is None else check_int("latest", latest, 2**62, where="documents")
        width = token_width(self.vocabulary_size)
        with closing(self.live.stored()) as stored:
            for number in stored.latest(count, namespace=self.name, group=part):
                # Else the log would be kept.
                for document in [*stored.read(number, number, namespace=self.name)]:
                    tokens = decode_symbols(np.frombuffer(document.symbols, np.uint8), width)
                    yield StoredDocument(tokens, document.group, document.epoch, document.added)
