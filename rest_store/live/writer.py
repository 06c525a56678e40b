"""What writes a live datastore: a memtable, its flush to files, their compaction, and the removal of documents."""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from threading import Lock

from rest_store.datastore.header import token_width
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.errors import DatastoreClosedError, DatastoreNotFoundError, StorageError, describe
from rest_store.live.compaction import BACKLOG, STALL, segments_to_merge
from rest_store.live.directory import take_writer_lock
from rest_store.live.documents import Documents, SegmentRecord, digest_of
from rest_store.live.encoding import NewDocument, store_tokenizer
from rest_store.live.retention import Retention
from rest_store.live.segment import Segment, remove_files, sorted_segment, write_segment
from rest_store.live.segments import Segments
from rest_store.live.upstream import Document


def steady_clock() -> Callable[[], float]:
    """Return a clock of seconds since 1970 that goes on evenly when the system's is set."""
    clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # the first goes on while a laptop sleeps
    offset = time.time() - time.clock_gettime(clock)
    return lambda: offset + time.clock_gettime(clock)


class Writer:
    """Writes one live datastore; methods raise what those of `LiveDatastore` say. Thread-safe.

    An addition is sorted into the memtable, which is flushed to files once it is large enough. Compaction merges
    segments in files; it sorts them beside additions, and what it made is put in their place at the end. A change is
    committed to SQLite first, and published to queries then. After one that ended with an error or an interrupt, nobody
    knows whether it was stored: the next change begins by reading what is.

    Args:
        directory: of the datastore; it exists.
        tokenizer: identity of that which it must have, and which a new one is for; None: any.
        limits: how much to keep from now on; None in it: as before.
        tokenizer_json: serialization of the tokenizer, which a new one stores to encode texts.
        clock: seconds since 1970; None: the system's, as it was at the beginning.

    Raises:
        DatastoreNotFoundError: it is empty, and there is no `tokenizer`.
        TokenizerMismatchError: it has another tokenizer.
        WriterError: another process writes it.
        StorageError: documents cannot be read, or segments cannot be written.

    Attributes:
        tokenizer: identity of the tokenizer that the tokens are from.
        retention: how much to keep.
        segments: the present segments.
    """

    interval = 0.5  # seconds between looks for what is too old

    def __init__(
        self,
        directory: Path,
        tokenizer: TokenizerIdentity | None,
        limits: Retention,
        tokenizer_json: str | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._directory = directory
        self._clock = clock or steady_clock()
        self._sorting = Lock()  # held while segments in files are sorted anew; taken before `_lock`
        self._lock = Lock()  # held for a change, which is short
        self._closed = False
        self._may_differ_from_disk = False
        self._newest = 0  # number of the newest change
        self._records: list[SegmentRecord] = []  # that are stored
        with ExitStack() as resources:
            resources.callback(take_writer_lock(directory))
            self._documents = resources.enter_context(closing(Documents(directory)))  # for the holder of `_lock`
            if self._documents.is_new:
                self._begin(tokenizer, tokenizer_json)
            self.tokenizer = self._documents.tokenizer()
            if tokenizer is not None:
                self.tokenizer.require_same(tokenizer, directory)
            self._documents.set_limits(limits.max_tokens, limits.max_age)
            self.retention = Retention(*self._documents.limits())
            # For the holder of `_sorting`:
            self._beside = resources.enter_context(closing(Documents(directory, read_only=True)))
            self._vocabulary_size = self.tokenizer.vocabulary_size
            self._width = token_width(self._vocabulary_size)
            self.segments = Segments(self._vocabulary_size)
            self._load(verify=True)
            with suppress(StorageError):  # the next deletion tries again
                self._documents.clean()
            self._remove_files(path.stem for path in directory.glob("segment-*.*"))
            self._resources = resources.pop_all()

    def _begin(self, tokenizer: TokenizerIdentity | None, tokenizer_json: str | None) -> None:
        """Make the tables of a new datastore, after the file of its tokenizer."""
        if tokenizer is None:
            raise DatastoreNotFoundError(describe(self._directory, "live datastore", "empty", "one to open"))
        store_tokenizer(tokenizer_json, self._directory)
        self._documents.create(tokenizer)

    def close(self) -> None:
        """Close the files and let others write, after a change in progress; later calls raise DatastoreClosedError."""
        with self._sorting, self._lock:
            self._closed = True
            self.segments.close()
            self._resources.close()

    def add(self, documents: Sequence[NewDocument], namespace: str = "") -> set[str]:
        """Add documents, without those whose id is there already; return the others' ids when they are durable."""
        new: set[str] = set()
        for batch in self.retention.batches(documents, self._width):
            if len(self._run()) >= BACKLOG:
                time.sleep(STALL)
            with self._change():
                new.update(self._add(batch, namespace))
        return new

    def delete(self, ids: Sequence[str], namespace: str = "") -> int:
        """Delete documents and return how many there were; then no answer holds them, and no file."""
        return self._delete(namespace, lambda: self._documents.numbers(ids, namespace).values())

    def delete_before(self, epoch: int, namespace: str = "") -> int:
        """Delete the documents of earlier epochs, likewise."""
        return self._delete(namespace, lambda: self._documents.before(epoch, namespace))

    def _delete(self, namespace: str, find: Callable[[], Iterable[int]]) -> int:
        with self._sorting, self._change():
            numbers = sorted(find())
            if numbers:
                left = [
                    self._without(segment, numbers) if segment.namespace == namespace else segment
                    for segment in self.segments.all
                ]
                self._store([segment for segment in left if segment is not None], deleted=numbers)
            self._documents.clean()
        return len(numbers)

    def work(self) -> bool:
        """Do what is to be done beside additions; return whether there may be more."""
        return self.evict() or self.merge()

    def evict(self) -> bool:
        """Evict what is too old by now; return whether anything was."""
        if len(self._kept(self.segments.all)) == len(self.segments.all):
            return False
        with self._change():
            self._store(self.segments.all)
        return True

    def compact(self) -> None:
        """Write all documents to files, and merge these into as few segments as there may be."""
        with self._change():
            self._store([self._flushed(segment) for segment in self.segments.all])
        while self.merge(whole=True):
            pass

    def merge(self, *, whole: bool = False) -> bool:
        """Merge some of the segments in files; return whether there were any to merge.

        Args:
            whole: merge as many as there may be.
        """
        with self._sorting:
            self._require_open()
            run = self._run(whole=whole)
            if not run:
                return False
            documents = list(self._beside.read(run[0].first, run[-1].last, namespace=run[0].namespace))
            if not documents:  # evicted meanwhile
                return True
            new = self._flushed(sorted_segment(documents, self._vocabulary_size))
            del documents
            try:
                with self._change():
                    present = self.segments.replaced(run, new)
                    if present is not None:
                        self._store(present)
            finally:
                self._remove_files([new.record.name] if new.record else ())
            return True

    def _run(self, *, whole: bool = False) -> list[Segment]:
        """Return the segments that are merged next; [] if there are none."""
        runs = (segments_to_merge(some, self.retention, whole=whole) for some in self.segments.by_namespace())
        return next(filter(None, runs), [])

    # --- For the holder of `_lock` ------------------------------------------------------------------------------------

    @contextmanager
    def _change(self) -> Iterator[None]:
        """Hold the lock, and change what is stored and published within the block."""
        with self._lock:
            self._require_open()
            if self._may_differ_from_disk:
                self._load()
            self._may_differ_from_disk = True
            yield
            self._may_differ_from_disk = False

    def _load(self, *, verify: bool = False) -> None:
        """Publish what is stored; sort anew what is damaged or missing of the segments in files."""
        self._newest = self._documents.newest()
        self._records = self._documents.records()
        segments = list(self.segments.stored(self._directory, self._documents, self.retention, verify=verify))
        last = {segment.namespace: segment for segment in segments}
        in_files = {record.namespace: record.last for record in self._records}
        memtables = {segment for segment in last.values() if segment.last > in_files.get(segment.namespace, 0)}
        self._store([segment if segment in memtables else self._flushed(segment) for segment in segments])

    def _add(self, added: Sequence[NewDocument], namespace: str) -> list[str]:
        """Sort new documents into the memtable, flush it if it is large enough, store and publish them.

        Returns:
            The ids that are new.
        """
        stored = self._documents.numbers([document.id for document in added], namespace)
        new: dict[str, NewDocument] = {}
        for document in added:
            if document.id not in stored:
                new.setdefault(document.id, document)
        if not new:
            return []
        now = self._clock()
        documents = [
            Document(number, namespace, digest_of(some.id, namespace), now, some.group, some.epoch, some.symbols)
            for number, some in enumerate(new.values(), self._newest + 1)
        ]
        segments = list(self.segments.all)
        of_namespace = (
            place for place, some in enumerate(segments) if (some.namespace, some.record) == (namespace, None)
        )
        memtable = None
        if (place := next(of_namespace, None)) is not None:
            size = segments[place].position_count
            size += sum(len(document.symbols) // self._width + 1 for document in documents)
            if size <= self.retention.largest and self.retention.may_span(segments[place].oldest, now):
                memtable = segments.pop(place)
            else:
                segments[place] = self._flushed(segments[place])
        segment = sorted_segment(documents, self._vocabulary_size, memtable)
        is_full = segment.position_count >= self.retention.memtable
        segments.append(self._flushed(segment) if is_full else segment)
        self._store(segments, added=documents)
        return list(new)

    def _without(self, segment: Segment, deleted: Sequence[int]) -> Segment | None:
        """Return what is left of a segment without the documents of these numbers, ascending; None: nothing."""
        if bisect_left(deleted, segment.first) == bisect_right(deleted, segment.last):
            return segment
        gone = set(deleted)
        stored = self._documents.read(segment.first, segment.last, namespace=segment.namespace)
        rest = [document for document in stored if document.number not in gone]
        if not rest:
            return None
        new = sorted_segment(rest, self._vocabulary_size)
        return new if segment.record is None else self._flushed(new)

    def _store(
        self, segments: Sequence[Segment], *, added: Sequence[Document] = (), deleted: Sequence[int] = ()
    ) -> None:
        """Commit a change and publish its segments, without those that are too much or too old by now.

        Args:
            segments: all of them, after the change.
            added: new documents.
            deleted: numbers of documents.
        """
        present = self._kept(segments)
        evicted = [(some.namespace, some.first, some.last) for some in segments if some not in present]
        records = [segment.record for segment in present if segment.record is not None]
        new, obsolete = set(records) - set(self._records), set(self._records) - set(records)
        try:
            self._newest = self._documents.commit(added, deleted, evicted, obsolete, new)
        except BaseException:
            self._remove_files(record.name for record in new)
            raise
        self._records = records
        self.segments.set(present, self._newest)
        self._remove_files(record.name for record in obsolete)  # whoever still reads them has them mapped

    # --- For whoever holds either lock --------------------------------------------------------------------------------

    def _require_open(self) -> None:
        if self._closed:
            raise DatastoreClosedError(describe(self._directory, "the datastore", "closed", "open"))

    def _flushed(self, segment: Segment) -> Segment:
        """Return a segment in files."""
        return segment if segment.record else write_segment(segment, self._directory, self._vocabulary_size)

    def _kept(self, segments: Sequence[Segment]) -> list[Segment]:
        """Return `segments` without those that are too old by now, and without the first of those that are too much.

        A time in the future, of a clock that was ahead, counts as now: it keeps its own segment, and no other.
        """
        most, age = self.retention.max_tokens, self.retention.max_age
        kept = list(segments)
        if age is not None:
            limit = self._clock() - age
            kept = [segment for segment in kept if segment.oldest > limit]
        totals: Counter[str] = Counter()
        for segment in list(reversed(kept)):
            totals[segment.namespace] += segment.token_count
            if most is not None and totals[segment.namespace] > most:
                kept.remove(segment)
        return kept

    def _remove_files(self, names: Iterable[str]) -> None:
        """Remove files of segments that are not stored; those that cannot be removed stay until the next opening."""
        for name in set(names) - {record.name for record in self._records}:
            with suppress(OSError):
                remove_files(self._directory, name)
