"""The process that writes a live datastore: `Writer`.

It adds documents to a memtable, flushes the memtable to files, merges the files, and removes
documents.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import ClassVar

from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.datastore.validation import IntSequence
from rest_store.errors import DatastoreNotFoundError, StorageError
from rest_store.live.added_documents import AddedDocuments
from rest_store.live.committer import Committer
from rest_store.live.compactor import Compactor
from rest_store.live.directory import take_writer_lock
from rest_store.live.documents import Documents
from rest_store.live.encoder import encode_documents, store_tokenizer
from rest_store.live.records import DocumentRecord, id_digest
from rest_store.live.retention import Retention, RetentionTable
from rest_store.live.segment import Segment
from rest_store.live.segment_builder import SegmentBuilder
from rest_store.live.segments import Segments


class Writer:
    """Writes one live datastore. Methods raise the errors of `LiveDatastore`. Thread-safe.

    An addition is sorted into the memtable of its namespace (`SegmentBuilder.add_batch`). A
    memtable that is large enough is flushed to files. `Committer.commit_with_evictions` then makes
    the addition durable and visible, in this order. `Compactor` merges segments in files, beside
    additions.

    Each commit evicts segments that exceed `max_tokens` or `max_age`. Between commits, `work`
    evicts documents that have become too old, and documents of outdated epochs.

    Args:
        directory: the directory of the datastore; it exists.
        tokenizer: identity of the tokenizer that the datastore must have, and that a new one gets;
            None: any.
        retention: how much a namespace without its own retention keeps from now on. Fields that are
            None stay as they are.
        shared_after: how many groups have to write a text before queries tell others of it from now
            on; None: as many as before.
        tokenizer_json: serialization of the tokenizer; a new datastore stores it to encode texts.
        location: the location of the upstream, if this is a replica; "": it is none.
        segments: the segments that queries read already; None: new ones.

    Raises:
        DatastoreNotFoundError: it is new, and there is no `tokenizer`.
        TokenizerMismatchError: it has another tokenizer.
        DatastoreFormatError: it is a replica of another upstream, or of none.
        WriterError: another process writes it.
        StorageError: documents cannot be read, or segments cannot be written.

    Attributes:
        idle_seconds: the longest pause of `work`.
        tokenizer: identity of the tokenizer of all tokens.
        segments: the present segments.
    """

    idle_seconds: ClassVar[float] = 0.3  # merges and evictions may wait so long

    def __init__(
        self,
        directory: Path,
        tokenizer: TokenizerIdentity | None,
        retention: Retention,
        shared_after: int | None = None,
        tokenizer_json: str | None = None,
        location: str = "",
        segments: Segments | None = None,
    ) -> None:
        # The segments for which `work` found nothing more to do.
        self._settled: Mapping[str, Sequence[Segment]] = {}
        with ExitStack() as resources:
            resources.callback(take_writer_lock(directory))
            documents = Documents(directory, is_replica=bool(location))
            resources.enter_context(closing(documents))
            if documents.is_new:
                if tokenizer is None:
                    raise DatastoreNotFoundError(f"{directory}: the live datastore is still empty")
                store_tokenizer(tokenizer_json, directory)
                documents.create(tokenizer, location)
            documents.require_location(location)
            self.tokenizer = documents.tokenizer()
            if tokenizer is not None:
                self.tokenizer.require_same(tokenizer, directory)
            documents.set_retention("", retention)
            if shared_after is not None:
                documents.set_shared_after(shared_after)
            # A second connection reads while segments are sorted and `documents` is used.
            stored = Documents(directory, read_only=True)
            resources.enter_context(closing(stored))
            vocabulary_size = self.tokenizer.vocabulary_size
            self.segments = segments or Segments(vocabulary_size)
            self._builder = SegmentBuilder(directory, vocabulary_size, stored)
            self._committer = Committer(
                directory, documents, self.segments, self._builder, evicts=not location
            )
            self._compactor = Compactor(self._committer, self._builder)
            self._committer.load_segments()
            with suppress(StorageError):  # the next deletion tries again
                self._committer.clean()
            self._resources = resources.pop_all()

    @property
    def retention(self) -> RetentionTable:
        """How much each namespace keeps."""
        return self._committer.retention

    def tasks(self) -> list[Callable[[], bool]]:
        """Return the work for background threads."""
        return [self.work]

    def close(self) -> None:
        """Wait for the change in progress, close the files, and let other processes write.

        Later calls raise DatastoreClosedError.
        """
        with self._committer.sorting:
            self._committer.close()
            self._settled = {}
            self._resources.close()

    # --- Changes of callers -----------------------------------------------------------------------

    def add(
        self,
        documents: Sequence[IntSequence],
        ids: Sequence[str],
        *,
        namespace: str,
        group: str | Sequence[str],
        epoch: int | Sequence[int],
    ) -> AddedDocuments:
        """Add those documents whose ids do not exist yet; return when they are durable.

        Args:
            documents: token sequences.
            ids: a valid id for each document.
            namespace: a valid namespace.
            group: as in `LiveDatastore.add`.
            epoch: as in `LiveDatastore.add`.
        """
        retention = self.retention.by_namespace(namespace)
        records = encode_documents(
            documents,
            ids,
            namespace=namespace,
            group=group,
            epoch=epoch,
            vocabulary_size=self.tokenizer.vocabulary_size,
            max_tokens=retention.max_tokens,
        )
        new_digests: set[bytes] = set()
        for batch in retention.batches(records, self._builder.width):
            self._compactor.stall([namespace])
            with self._committer.change():
                new_digests.update(self._add_batch(namespace, batch))
        new_ids = {
            id for id, record in zip(ids, records, strict=True) if record.digest in new_digests
        }
        return AddedDocuments(ids, new_ids)

    def _add_batch(self, namespace: str, batch: Sequence[DocumentRecord]) -> Iterable[bytes]:
        """Number, sort, store and publish the new documents of a batch; return their digests.

        The caller holds `Committer.change`.
        """
        committer = self._committer
        existing = committer.documents.numbers_by_digest(document.digest for document in batch)
        newest = committer.documents.newest()
        now = committer.now()
        new: dict[bytes, DocumentRecord] = {}
        for document in batch:
            if document.digest not in existing and document.digest not in new:
                number = newest + len(new) + 1
                new[document.digest] = document._replace(number=number, added=now)
        if new:
            added = list(new.values())
            present = committer.present(namespace)
            segments = self._builder.add_batch(
                present, added, self.retention.by_namespace(namespace)
            )
            committer.commit_with_evictions({namespace: segments}, added=added)
        return new

    def delete(self, ids: Sequence[str], namespace: str = "") -> int:
        """Delete documents; return their number once they are gone from all answers and files."""
        committer = self._committer
        with committer.sorting, committer.change():
            count = self._remove(namespace, self._numbers(ids, namespace), deleted=True)
            committer.clean()
        return count

    def discard(self, ids: Sequence[str], namespace: str) -> int:
        """Delete documents from the answers; return their number.

        Their bytes stay in the file of documents until the next deletion or opening.
        """
        with self._committer.change():
            return self._remove(namespace, self._numbers(ids, namespace), deleted=True)

    def _numbers(self, ids: Sequence[str], namespace: str) -> list[int]:
        """Return the numbers of those documents that exist; the caller holds `change`."""
        digests = [id_digest(id, namespace) for id in ids]
        return list(self._committer.documents.numbers_by_digest(digests).values())

    def set_retention(self, namespace: str, retention: Retention) -> None:
        """Set how much a namespace keeps from now on. Fields that are None stay as they are."""
        committer = self._committer
        with committer.sorting, committer.change():
            committer.documents.set_retention(namespace, retention)
            committer.load_retention()
            self._settled = {}
            committer.load_segments()

    # --- Work beside changes ----------------------------------------------------------------------

    def work(self) -> bool:
        """Evict or merge once; return whether there may be more to do."""
        if self._evict_ages():
            return True
        present = self.segments.by_namespace
        settled = self._settled
        if present is settled:
            return False
        changed = [
            namespace
            for namespace, segments in present.items()
            if segments is not settled.get(namespace)
        ]
        if self._evict_epochs(changed) or self._compactor.merge(changed):
            return True
        self._settled = present
        return False

    def compact(self) -> None:
        """Flush all memtables, and merge until there are as few segments as possible."""
        self._compactor.compact()

    def _evict_ages(self) -> bool:
        """Evict the documents that have become too old; return whether there were any."""
        if math.isinf(self.retention.shortest_age):
            return False
        committer = self._committer
        present = self.segments.by_namespace
        if all(len(committer.retained(segments)) == len(segments) for segments in present.values()):
            return False
        with committer.change():
            committer.commit_with_evictions(self.segments.by_namespace)
        return True

    def _evict_epochs(self, namespaces: Iterable[str]) -> bool:
        """Evict documents of too old epochs from one namespace; return whether there were any."""
        for namespace in namespaces:
            max_epochs = self.retention.by_namespace(namespace).max_epochs
            if max_epochs is None:
                continue
            with self._committer.change():
                numbers = self._committer.documents.outdated(max_epochs, namespace)
                if self._remove(namespace, numbers, deleted=False):
                    return True
        return False

    def _remove(self, namespace: str, numbers: Iterable[int], *, deleted: bool) -> int:
        """Remove documents of a namespace; return their count. The caller holds `change`.

        Args:
            namespace: their namespace.
            numbers: their numbers.
            deleted: whether they are deleted. False: they are evicted.
        """
        committer = self._committer
        ascending = sorted(numbers)
        if ascending:
            retention = self.retention.by_namespace(namespace)
            present = committer.present(namespace)
            segments = self._builder.remove(present, ascending, retention, committer.documents)
            committer.commit_with_evictions(
                {namespace: segments}, removed=ascending, deleted=deleted
            )
        return len(ascending)
