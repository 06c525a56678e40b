"""The process that writes a live datastore: `Writer`.

It adds documents to a memtable, flushes the memtable to files, merges the files, and removes
documents.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from itertools import chain
from pathlib import Path
from threading import Lock

from rest_store.datastore.header import token_width
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.datastore.validation import IntSequence
from rest_store.errors import DatastoreClosedError, DatastoreNotFoundError, StorageError, describe
from rest_store.live.added_documents import AddedDocuments
from rest_store.live.clock import Clock
from rest_store.live.compaction import MAX_BACKLOG, STALL_SECONDS, segments_to_merge
from rest_store.live.directory import take_writer_lock
from rest_store.live.documents import Documents
from rest_store.live.encoder import encode_documents, store_tokenizer
from rest_store.live.records import (
    Changes,
    DocumentRecord,
    Removal,
    SegmentRecord,
    group_by_namespace,
    id_digest,
)
from rest_store.live.retention import Retention, RetentionTable
from rest_store.live.segment import Segment, remove_files, sorted_segment, write_segment
from rest_store.live.segments import Segments


class Writer:
    """Writes one live datastore. Methods raise the errors of `LiveDatastore`. Thread-safe.

    An addition is sorted into the memtable. A memtable that is large enough is flushed to files.
    Compaction merges segments in files: it sorts beside additions, and puts the new segment in the
    place of the old ones at the end.

    Each change is committed to SQLite first, and published to queries then. If a change ends with
    an error or an interrupt, nobody knows whether it was committed. The next change therefore
    begins by loading what is stored.

    Args:
        directory: the directory of the datastore; it exists.
        tokenizer: identity of the tokenizer that the datastore must have, and that a new one gets;
            None: any.
        retention: how much a namespace without its own retention keeps from now on. Fields that are
            None stay as they are.
        shared_after: how many groups have to write what queries tell others from now on; None: as
            many as before.
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
        tokenizer: identity of the tokenizer of all tokens.
        retention: how much each namespace keeps.
        segments: the present segments.
    """

    retention: RetentionTable

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
        self._directory = directory
        self._location = location
        # Held while segments in files are sorted again. It is taken before `_lock`.
        self._sorting = Lock()
        # Held for a change, which is short.
        self._lock = Lock()
        self._is_closed = False
        self._may_differ_from_disk = False
        # The segments for which `work` found nothing more to do.
        self._settled: Mapping[str, Sequence[Segment]] = {}
        with ExitStack() as resources:
            resources.callback(take_writer_lock(directory))
            # The holder of `_lock` uses this connection.
            self._documents = resources.enter_context(
                closing(Documents(directory, is_replica=bool(location)))
            )
            if self._documents.is_new:
                self._create(tokenizer, tokenizer_json)
            self._documents.require_location(location)
            self.tokenizer = self._documents.tokenizer()
            if tokenizer is not None:
                self.tokenizer.require_same(tokenizer, directory)
            self._documents.set_retention("", retention)
            self._load_retention()
            # The holder of `_sorting` uses this connection.
            self._sorting_documents = resources.enter_context(
                closing(Documents(directory, read_only=True))
            )
            self._vocabulary_size = self.tokenizer.vocabulary_size
            self._width = token_width(self._vocabulary_size)
            self.segments = segments or Segments(self._vocabulary_size)
            if shared_after is not None:
                self._documents.set_shared_after(shared_after)
            self._load_segments()
            with suppress(StorageError):  # the next deletion tries again
                self._clean()
            self._resources = resources.pop_all()

    def _create(self, tokenizer: TokenizerIdentity | None, tokenizer_json: str | None) -> None:
        """Store the tokenizer of a new datastore, and then create its tables."""
        if tokenizer is None:
            raise DatastoreNotFoundError(f"{self._directory}: the live datastore is still empty")
        store_tokenizer(tokenizer_json, self._directory)
        self._documents.create(tokenizer, self._location)

    def tasks(self) -> list[Callable[[], bool]]:
        """Return the work for background threads."""
        return [self.work]

    def close(self) -> None:
        """Wait for the change in progress, close the files, and let other processes write.

        Later calls raise DatastoreClosedError.
        """
        with self._sorting, self._lock:
            self._is_closed = True
            self._settled = {}
            self.segments.close()
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
            vocabulary_size=self._vocabulary_size,
            max_tokens=retention.max_tokens,
        )
        new_digests: set[bytes] = set()
        for batch in retention.batches(records, self._width):
            self._stall([namespace])
            with self._change():
                new_digests.update(self._add_batch(namespace, batch))
        new_ids = {
            id for id, record in zip(ids, records, strict=True) if record.digest in new_digests
        }
        return AddedDocuments(ids, new_ids)

    def delete(self, ids: Sequence[str], namespace: str = "") -> int:
        """Delete documents; return their number once they are gone from all answers and files."""
        digests = [id_digest(id, namespace) for id in ids]
        with self._sorting:
            self._require_open()
            numbers = self._sorting_documents.numbers_by_digest(digests).values()
            return self._remove(namespace, numbers, deleted=True)

    def discard(self, ids: Sequence[str], namespace: str, max_positions: int | None) -> list[str]:
        """Remove documents from answers, except from segments larger than `max_positions`.

        Their bytes stay in the file of documents until the next deletion or opening. While segments
        are sorted for another reason, nothing is removed unless `max_positions` is None: it would
        have to wait.

        Returns:
            The ids of documents that still exist.
        """
        if max_positions is not None and self._sorting.locked():
            return list(ids)
        ids_by_digest = {id_digest(id, namespace): id for id in ids}
        remaining: list[str] = []
        numbers: list[int] = []
        with self._sorting:
            self._require_open()
            large = self._segments_above(namespace, max_positions)
            existing = self._sorting_documents.numbers_by_digest(ids_by_digest)
            for digest, number in existing.items():
                if any(segment.first <= number <= segment.last for segment in large):
                    remaining.append(ids_by_digest[digest])
                else:
                    numbers.append(number)
            self._remove(namespace, numbers, deleted=True, clean=False)
        return remaining

    def _segments_above(self, namespace: str, max_positions: int | None) -> list[Segment]:
        """Return the segments of a namespace with more positions; None: no segment has more."""
        if max_positions is None:
            return []
        present = self._present(namespace)
        return [segment for segment in present if segment.position_count > max_positions]

    def set_retention(self, namespace: str, retention: Retention) -> None:
        """Set how much a namespace keeps from now on. Fields that are None stay as they are."""
        with self._sorting, self._change():
            self._documents.set_retention(namespace, retention)
            self._load_retention()
            self._settled = {}
            self._load_segments()

    # --- Changes of an upstream -------------------------------------------------------------------

    def position(self) -> tuple[int, str]:
        """Return the number of a replica's newest change, and the id of its datastore.

        If an earlier deletion left remains, they are removed first.
        """
        with self._sorting, self._change():
            self._clean()
            return self._documents.newest(), self._documents.datastore_id()

    def apply(self, changes: Changes) -> None:
        """Store and publish changes of the upstream.

        Args:
            changes: they follow the stored changes, or begin with 1 and replace everything.
        """
        added = group_by_namespace(changes.added)
        self._stall(added)
        replaces_everything = changes.first == 1
        has_additions_only = not replaces_everything and not changes.removed
        # Additions do not change segments in files, so they need not wait for sorting.
        with nullcontext() if has_additions_only else self._sorting, self._change():
            if changes.shared_after != self.segments.shared_after:
                self._documents.set_shared_after(changes.shared_after)
                self._load_segments()
            deleted = self._existing_numbers(
                removal for removal in changes.removed if removal.deleted
            )
            evicted = self._existing_numbers(
                removal for removal in changes.removed if not removal.deleted
            )
            if evicted:
                self._follow_eviction()
            segments: dict[str, list[Segment]] = {}
            if replaces_everything:
                segments.update((namespace, []) for namespace in self.segments.by_namespace)
            for namespace in {*deleted, *evicted, *added}:
                before = [] if replaces_everything else list(self._present(namespace))
                numbers = [*deleted.get(namespace, ()), *evicted.get(namespace, ())]
                if numbers:
                    before = self._remove_from_segments(before, numbers)
                documents = added.get(namespace, [])
                segments[namespace] = self._add_batches(before, namespace, documents)
            self._commit(lambda: changes, segments)
            if replaces_everything or any(removal.deleted for removal in changes.removed):
                self._clean()

    def _existing_numbers(self, removals: Iterable[Removal]) -> dict[str, list[int]]:
        """Return the numbers of existing documents to remove, by namespace."""
        numbers: dict[str, list[int]] = {}
        for removal in removals:
            for namespace, number in self._documents.numbers_between(removal.first, removal.last):
                numbers.setdefault(namespace, []).append(number)
        return numbers

    def _follow_eviction(self) -> None:
        """Limit the size of segments, since the upstream evicts: set `retention`.

        Then each of its evictions sorts few documents of this replica again. A replica of an
        upstream that never evicts has the largest segments.
        """
        total = sum(segment.token_count for segment in self.segments.all)
        max_tokens = max(total, self.retention.by_namespace("").max_tokens or 0)
        self.retention = RetentionTable({"": Retention(max_tokens)})

    def _remove_from_segments(
        self, segments: Iterable[Segment], numbers: Iterable[int]
    ) -> list[Segment]:
        """Return the segments of a namespace after the removal of documents."""
        ascending = sorted(numbers)
        remaining: list[Segment] = []
        for segment in segments:
            remaining += self._remove_from_segment(segment, ascending)
        return remaining

    def _add_batches(
        self, segments: list[Segment], namespace: str, documents: Iterable[DocumentRecord]
    ) -> list[Segment]:
        """Return the segments of a namespace after the addition of any number of documents."""
        for batch in self.retention.by_namespace(namespace).batches(documents, self._width):
            segments = self._add_to_memtable(segments, batch)
        return segments

    # --- Work beside changes ----------------------------------------------------------------------

    def work(self) -> bool:
        """Evict or merge once; return whether there may be more to do."""
        if self._evict():
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
        if self._evict_epochs(changed) or self.merge(changed):
            return True
        self._settled = present
        return False

    def _evict(self) -> bool:
        """Evict the documents that have become too old; return whether there were any."""
        if math.isinf(self.retention.shortest_age):
            return False
        present = self.segments.by_namespace
        if all(len(self._retained(segments)) == len(segments) for segments in present.values()):
            return False
        with self._change():
            self._commit_with_evictions(self.segments.by_namespace)
        return True

    def _evict_epochs(self, namespaces: Iterable[str]) -> bool:
        """Evict documents of too old epochs from one namespace; return whether there were any."""
        for namespace in namespaces:
            max_epochs = self.retention.by_namespace(namespace).max_epochs
            if max_epochs is None:
                continue
            with self._sorting:
                self._require_open()
                numbers = self._sorting_documents.outdated(max_epochs, namespace)
                if self._remove(namespace, numbers, deleted=False):
                    return True
        return False

    def compact(self) -> None:
        """Flush all memtables, and merge until there are as few segments as possible."""
        with self._change():
            self._commit_with_evictions(group_by_namespace(self._flush(self.segments.all)))
        while self.merge(self.segments.by_namespace, whole=True):
            pass

    def merge(self, namespaces: Iterable[str], *, whole: bool = False) -> bool:
        """Merge one run of segments in files; return whether there was one.

        Args:
            namespaces: the namespaces to look at.
            whole: merge as many segments as possible.
        """
        with self._sorting:
            self._require_open()
            run = self._next_run(namespaces, whole=whole)
            if not run:
                return False
            namespace = run[0].namespace
            documents = list(
                self._sorting_documents.read(run[0].first, run[-1].last, namespace=namespace)
            )
            if not documents:  # they were evicted meanwhile
                return True
            [merged] = self._flush([sorted_segment(documents, self._vocabulary_size)])
            del documents
            try:
                self._replace_run(run, merged)
            finally:
                if merged not in self._present(namespace) and merged.record is not None:
                    self._remove_files([merged.record.name])
            return True

    def _replace_run(self, run: Sequence[Segment], merged: Segment) -> None:
        """Put a merged segment in the place of `run`, if all of it is still present."""
        with self._change():
            present = self._present(merged.namespace)
            if not set(run) <= set(present):
                return
            segments = []
            for segment in present:
                if segment is run[0]:
                    segments.append(merged)
                elif segment not in run:
                    segments.append(segment)
            self._commit_with_evictions({merged.namespace: segments})

    def _stall(self, namespaces: Iterable[str]) -> None:
        """Hold an addition back for a moment if compaction does not keep up with additions."""
        if len(self._next_run(namespaces)) >= MAX_BACKLOG:
            time.sleep(STALL_SECONDS)

    def _next_run(self, namespaces: Iterable[str], *, whole: bool = False) -> list[Segment]:
        """Return the segments to merge next; [] if there are none."""
        for namespace in namespaces:
            present = self._present(namespace)
            in_files = [segment for segment in present if segment.record is not None]
            retention = self.retention.by_namespace(namespace)
            run = segments_to_merge(in_files, retention, whole=whole)
            if run:
                return run
        return []

    # --- Methods that the holder of `_sorting` calls ----------------------------------------------

    def _remove(
        self, namespace: str, numbers: Iterable[int], *, deleted: bool, clean: bool = True
    ) -> int:
        """Remove documents of a namespace; return their count.

        At first, without `_lock`, segments in files are sorted again. Then, with `_lock`, the
        memtable is, and segments that were flushed meanwhile.

        Args:
            namespace: their namespace.
            numbers: their numbers.
            deleted: whether they are deleted. False: they are evicted.
            clean: whether to overwrite the remains of deleted documents.
        """
        ascending = sorted(numbers)
        cleans = deleted and clean
        if not ascending and not cleans:
            return 0
        replacements: dict[Segment, list[Segment]] = {}
        for segment in self._present(namespace):
            if segment.record is not None:
                replacements[segment] = self._remove_from_segment(segment, ascending)
        with self._change():
            if ascending:
                segments: list[Segment] = []
                for segment in self._present(namespace):
                    if segment not in replacements:
                        replacements[segment] = self._remove_from_segment(segment, ascending)
                    segments += replacements[segment]
                self._commit_with_evictions(
                    {namespace: segments}, removed=ascending, deleted=deleted
                )
            if cleans:
                self._clean()
        return len(ascending)

    def _remove_from_segment(self, segment: Segment, numbers: Sequence[int]) -> list[Segment]:
        """Return the segments of a segment's documents after the removal of some.

        Args:
            segment: one of the present segments.
            numbers: the numbers of removed documents of its namespace, ascending.
        """
        if bisect_left(numbers, segment.first) == bisect_right(numbers, segment.last):
            return [segment]
        removed = set(numbers)
        stored = self._sorting_documents.read(
            segment.first, segment.last, namespace=segment.namespace
        )
        documents = [document for document in stored if document.number not in removed]
        retention = self.retention.by_namespace(segment.namespace)
        if segment.position_count > retention.max_segment_positions:
            batches = list(retention.batches(documents, self._width))
        else:
            batches = [documents] if documents else []
        segments = [sorted_segment(batch, self._vocabulary_size) for batch in batches]
        return segments if segment.record is None else self._flush(segments)

    # --- Methods that the holder of `_lock` calls -------------------------------------------------

    @contextmanager
    def _change(self) -> Iterator[None]:
        """Within the block, hold `_lock`, and change what is stored and published."""
        with self._lock:
            self._require_open()
            if self._may_differ_from_disk:
                self._load_segments()
            self._may_differ_from_disk = True
            yield
            self._may_differ_from_disk = False

    def _load_retention(self) -> None:
        """Read the stored retention, and begin a clock at the newest document's time.

        So a wrong system clock does not evict everything.
        """
        self.retention = self._documents.retention()
        self._clock = Clock(self._documents.newest_time(), self.retention.shortest_age)

    def _load_segments(self) -> None:
        """Publish what is stored. Damaged and missing segments are sorted again and flushed."""
        self.segments.shared_after = self._documents.shared_after()
        loaded = self.segments.load(self._directory, self._documents, self.retention)
        for namespace, segments in loaded.items():
            loaded[namespace] = self._flush_all_but_memtable(namespace, segments)
        self._commit_with_evictions(loaded, stored_records=set(self._documents.segment_records()))

    def _add_batch(self, namespace: str, documents: Sequence[DocumentRecord]) -> Iterable[bytes]:
        """Number, sort, store and publish the new documents of a batch; return their digests."""
        existing = self._documents.numbers_by_digest(document.digest for document in documents)
        newest = self._documents.newest()
        now = self._clock.now()
        new: dict[bytes, DocumentRecord] = {}
        for document in documents:
            if document.digest not in existing and document.digest not in new:
                number = newest + len(new) + 1
                new[document.digest] = document._replace(number=number, added=now)
        if new:
            added = list(new.values())
            segments = self._add_to_memtable(self._present(namespace), added)
            self._commit_with_evictions({namespace: segments}, added=added)
        return new

    def _add_to_memtable(
        self, segments: Sequence[Segment], documents: Sequence[DocumentRecord]
    ) -> list[Segment]:
        """Return the segments of a namespace with new documents in its memtable."""
        namespace = documents[0].namespace
        before = list(segments)
        memtable: Segment | None = None
        if before and self._fits_into(before[-1], documents):
            memtable = before.pop()
        new = sorted_segment(documents, self._vocabulary_size, memtable)
        return self._flush_all_but_memtable(namespace, [*before, new])

    def _fits_into(self, segment: Segment, documents: Sequence[DocumentRecord]) -> bool:
        """Return whether a segment is a memtable that may take in new documents."""
        if segment.record is not None:
            return False
        retention = self.retention.by_namespace(segment.namespace)
        positions = segment.position_count
        for document in documents:
            positions += len(document.symbols) // self._width + 1
        if positions > retention.max_segment_positions:
            return False
        return retention.allows_times(segment.oldest, documents[-1].added)

    def _flush_all_but_memtable(self, namespace: str, segments: Sequence[Segment]) -> list[Segment]:
        """Return the segments of a namespace in files, except for a last one that is small."""
        max_positions = self.retention.by_namespace(namespace).max_memtable_positions
        if segments and segments[-1].position_count < max_positions:
            return [*self._flush(segments[:-1]), segments[-1]]
        return self._flush(segments)

    def _commit_with_evictions(
        self,
        changed: Mapping[str, Sequence[Segment]],
        *,
        added: Sequence[DocumentRecord] = (),
        removed: Sequence[int] = (),
        deleted: bool = False,
        stored_records: Set[SegmentRecord] | None = None,
    ) -> None:
        """Commit a change of this datastore, evict what it no longer keeps, and publish both.

        Args:
            changed: for each namespace with other segments, all of its segments after the change.
            added: new documents of one namespace.
            removed: numbers of removed documents.
            deleted: whether the removed documents were deleted; False: they were evicted.
            stored_records: as in `_commit`.
        """
        retained: dict[str, list[Segment]] = {}
        evicted: list[Segment] = []
        for namespace, segments in changed.items():
            retained[namespace] = self._retained(segments)
            evicted += set(segments).difference(retained[namespace])
        if added and changed[added[0].namespace][-1] in evicted:
            added = ()  # the new documents alone exceed a retention that was lowered meanwhile

        def plan() -> Changes:
            newest = added[-1].number if added else self._documents.newest()
            spans = [(segment.namespace, segment.first, segment.last) for segment in evicted]
            removals = self._documents.plan_removals(removed, spans, newest, deleted=deleted)
            if removals:
                newest = removals[-1].number
            return Changes(
                datastore_id="", first=0, last=newest, head=newest, added=added, removed=removals
            )

        self._commit(plan, retained, stored_records)

    def _commit(
        self,
        plan: Callable[[], Changes],
        segments: Mapping[str, Sequence[Segment]],
        stored_records: Set[SegmentRecord] | None = None,
    ) -> None:
        """Commit changes and publish their segments.

        Args:
            plan: returns the changes.
            segments: for each namespace with other segments, all of its segments after the change.
            stored_records: the segment records of these namespaces before the change; None: those
                of the present segments.
        """
        if stored_records is None:
            present = chain.from_iterable(map(self._present, segments))
            stored_records = _records(present)
        records = _records(chain.from_iterable(segments.values()))
        new = records - stored_records
        obsolete = stored_records - records
        try:
            changes = plan()
            self._documents.commit(changes, obsolete, new)
        except BaseException:
            self._remove_files(record.name for record in new)
            raise
        self.segments.publish(segments, changes.last)
        # Readers that still use obsolete files have them mapped.
        self._remove_files(record.name for record in obsolete)

    # --- Methods that the holder of both locks calls ----------------------------------------------

    def _clean(self) -> None:
        """Overwrite the remains of deleted documents, and remove the files of failed changes.

        The caller holds both locks.
        """
        present = {record.name for record in _records(self.segments.all)}
        existing = {path.stem for path in self._directory.glob("segment-*.*")}
        self._remove_files(existing - present)
        self._documents.clean()

    # --- Methods that need no lock, or either -----------------------------------------------------

    def _require_open(self) -> None:
        if self._is_closed:
            raise DatastoreClosedError(describe(self._directory, "the datastore", "closed", "open"))

    def _present(self, namespace: str) -> Sequence[Segment]:
        """Return the present segments of a namespace."""
        return self.segments.by_namespace.get(namespace, ())

    def _flush(self, segments: Iterable[Segment]) -> list[Segment]:
        """Return segments in files, after writing those in memory: all of them or none."""
        flushed: list[Segment] = []
        written: list[Segment] = []
        try:
            for segment in segments:
                if segment.record is not None:
                    flushed.append(segment)
                    continue
                in_files = write_segment(segment, self._directory, self._vocabulary_size)
                written.append(in_files)
                flushed.append(in_files)
        except BaseException:
            self._remove_files(record.name for record in _records(written))
            raise
        return flushed

    def _retained(self, segments: Sequence[Segment]) -> list[Segment]:
        """Return the segments of a namespace that are not to be evicted.

        A replica keeps everything that its upstream keeps.
        """
        if self._location:
            return list(segments)
        return self.retention.retained(segments, self._clock)

    def _remove_files(self, names: Iterable[str]) -> None:
        """Remove the files of segments.

        Files that cannot be removed stay until the next deletion or opening.
        """
        for name in names:
            with suppress(OSError):
                remove_files(self._directory, name)


def _records(segments: Iterable[Segment]) -> set[SegmentRecord]:
    """Return the records of those segments that are in files."""
    return {segment.record for segment in segments if segment.record is not None}
