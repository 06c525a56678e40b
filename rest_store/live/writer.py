"""What writes a live datastore: a memtable, its flush to files,
their compaction, and the removal of documents.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack, closing, contextmanager, nullcontext, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from threading import Lock

from rest_store.datastore.header import token_width
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.errors import DatastoreClosedError, DatastoreNotFoundError, StorageError, describe
from rest_store.live.compaction import BACKLOG, STALL, segments_to_merge
from rest_store.live.directory import take_writer_lock
from rest_store.live.documents import Documents, SegmentRecord
from rest_store.live.encoder import store_tokenizer
from rest_store.live.retention import Clock, Limits, Retention
from rest_store.live.segment import Segment, remove_files, sorted_segment, write_segment
from rest_store.live.segments import Segments, by_namespace
from rest_store.live.upstream import Changes, DocumentRecord, digest_of


class Writer:
    """Writes one live datastore; methods raise what those of `LiveDatastore` say. Thread-safe.

    An addition is sorted into the memtable, which is flushed to files once it is large enough.
    Compaction merges segments in files; it sorts them beside additions, and what it made is put in
    their place at the end. A change is committed to SQLite first, and published to queries then.
    After one that ended with an error or an interrupt, nobody knows whether it was stored: the next
    change begins by reading what is.

    Args:
        directory: of the datastore; it exists.
        tokenizer: identity of that which it must have, and which a new one is for; None: any.
        retention: how much a namespace keeps from now on that has no limits of its own; None in it:
            as before.
        tokenizer_json: serialization of the tokenizer, which a new one stores to encode texts.
        location: of the upstream that it is a replica of; "": none.
        segments: those that queries read; None: new ones.

    Raises:
        DatastoreNotFoundError: it is empty, and there is no `tokenizer`.
        TokenizerMismatchError: it has another tokenizer.
        DatastoreFormatError: it is a replica of another upstream, or of none.
        WriterError: another process writes it.
        StorageError: documents cannot be read, or segments cannot be written.

    Attributes:
        tokenizer: identity of the tokenizer that the tokens are from.
        limits: how much each namespace keeps.
        segments: the present segments.
    """

    def __init__(
        self,
        directory: Path,
        tokenizer: TokenizerIdentity | None,
        retention: Retention,
        tokenizer_json: str | None = None,
        location: str = "",
        segments: Segments | None = None,
    ) -> None:
        self._directory = directory
        self._location = location
        self._sorting = Lock()  # held while segments in files are sorted anew; taken before `_lock`
        self._lock = Lock()  # held for a change, which is short
        self._closed = False
        self._may_differ_from_disk = False
        # Segments beside which nothing is to be done.
        self._settled: Mapping[str, Sequence[Segment]] = {}
        with ExitStack() as resources:
            resources.callback(take_writer_lock(directory))
            # For the holder of `_lock`:
            self._documents = resources.enter_context(
                closing(Documents(directory, is_replica=bool(location)))
            )
            if self._documents.is_new:
                self._begin(tokenizer, tokenizer_json)
            self._documents.require_location(location)
            self.tokenizer = self._documents.tokenizer()
            if tokenizer is not None:
                self.tokenizer.require_same(tokenizer, directory)
            self._documents.set_limits("", retention)
            self.limits, self._clock = self._stored_limits()
            # For the holder of `_sorting`:
            self._beside = resources.enter_context(closing(Documents(directory, read_only=True)))
            self._vocabulary_size = self.tokenizer.vocabulary_size
            self._width = token_width(self._vocabulary_size)
            self.segments = segments or Segments(self._vocabulary_size)
            self._load()
            with suppress(StorageError):  # the next deletion tries again
                self._clean()
            self._resources = resources.pop_all()

    def _begin(self, tokenizer: TokenizerIdentity | None, tokenizer_json: str | None) -> None:
        """Make the tables of a new datastore, after the file of its tokenizer."""
        if tokenizer is None:
            raise DatastoreNotFoundError(
                describe(self._directory, "live datastore", "empty", "one to open")
            )
        store_tokenizer(tokenizer_json, self._directory)
        self._documents.create(tokenizer, self._location)

    def close(self) -> None:
        """Close the files and let others write, after a change in progress.

        Later calls raise DatastoreClosedError.
        """
        with self._sorting, self._lock:
            self._closed, self._settled = True, {}
            self.segments.close()
            self._resources.close()

    def add(self, documents: Sequence[DocumentRecord], ids: Sequence[str]) -> set[bytes]:
        """Add documents of one namespace, without those whose digest is there already.

        Args:
            documents: numbers and times are still to come.
            ids: of them, which the digests stand for.

        Returns:
            The digests of those that were added, when they are durable.
        """
        new: set[bytes] = set()
        for namespace, some in by_namespace(documents).items():
            for batch in self.limits.of(namespace).batches(some, self._width):
                self._stall(namespace)
                with self._change():
                    new.update(self._add(namespace, batch))
        return new

    def delete(self, ids: Sequence[str], namespace: str = "") -> int:
        """Delete documents and return how many there were.

        Then no answer holds them, and no file.
        """
        digests = [digest_of(id, namespace) for id in ids]
        return self._remove(namespace, lambda: self._beside.numbers(digests).values())

    def discard(self, ids: Sequence[str], namespace: str, max_positions: int | None) -> list[str]:
        """Remove documents from answers, but for those in larger segments than `max_positions`.

        Their bytes stay in the file of documents until the next deletion or opening. While segments
        are merged, nothing is removed unless `max_positions` is None: that would have to wait.

        Returns:
            The ids of those that are still there.
        """
        if max_positions is not None and self._sorting.locked():
            return list(ids)
        digests = {digest_of(id, namespace): id for id in ids}
        left: list[str] = []

        def find() -> Iterator[int]:
            segments = self.segments.of.get(namespace, ())
            large = [
                segment
                for segment in segments
                if max_positions is not None and segment.position_count > max_positions
            ]
            for digest, number in self._beside.numbers(digests).items():
                if any(segment.first <= number <= segment.last for segment in large):
                    left.append(digests[digest])
                else:
                    yield number

        self._remove(namespace, find, wiped=False)
        return left

    def _remove(
        self,
        namespace: str,
        find: Callable[[], Iterable[int]],
        *,
        deleted: bool = True,
        wiped: bool = True,
    ) -> int:
        """Remove what `find` returns the numbers of; it is called by the holder of `_sorting`.

        Args:
            namespace: of the documents.
            find: see above.
            deleted: whether they are to be deleted, and not evicted.
            wiped: whether no file holds them then.
        """
        with self._sorting:
            self._require_open()
            numbers = sorted(find())
            if not numbers and not (deleted and wiped):
                return 0
            present = self.segments.of.get(namespace, ())
            left = {
                segment: self._without(segment, numbers)
                for segment in present
                if segment.record is not None
            }
            with self._change():
                if numbers:
                    present = self.segments.of.get(namespace, ())
                    left |= {
                        segment: self._without(segment, numbers)
                        for segment in present
                        if segment not in left
                    }
                    rest = [*chain(*(left[segment] for segment in present))]
                    self._store({namespace: rest}, removed=numbers, deleted=deleted)
                if deleted and wiped:
                    self._clean()
        return len(numbers)

    def limit(self, namespace: str, retention: Retention) -> None:
        """Keep so much of a namespace from now on; None in `retention`: as before."""
        with self._sorting, self._change():
            self._documents.set_limits(namespace, retention)
            self.limits, self._clock = self._stored_limits()
            self._settled = {}
            self._load()

    def position(self) -> tuple[int, str]:
        """Return the number of the newest change that a replica has,
        and the id of the datastore that it is from.

        Before that, what an earlier deletion could not remove is removed.
        """
        with self._sorting, self._change():
            self._clean()
            return self._documents.newest(), self._documents.datastore_id()

    def apply(self, changes: Changes) -> None:
        """Store and publish changes of the upstream: those that
        follow what is stored, or the first of all.

        Only the upstream evicts. Where it does, segments are as small here as they are there, so
        that a part of them is sorted anew each time; they are all as large as they may be where
        nothing is evicted.
        """
        added = by_namespace(changes.added)
        self._stall(*added)
        # Such a change does not wait for segments in files.
        is_short = changes.first > 1 and not changes.removed
        with nullcontext() if is_short else self._sorting, self._change():
            removed: dict[str, list[int]] = {}
            for removal in changes.removed:
                there = self._documents.between(removal.first, removal.last)
                for namespace, number in there:
                    removed.setdefault(namespace, []).append(number)
                if there and not removal.deleted:
                    total = sum(segment.token_count for segment in self.segments.all)
                    self.limits = Limits(
                        {"": Retention(max(total, self.limits.of("").max_tokens or 0))}
                    )
            present = self.segments.of if changes.first > 1 else {}
            segments: dict[str, list[Segment]] = {
                namespace: [] for namespace in self.segments.of.keys() - present
            }
            for namespace in {*removed, *added}:
                numbers = sorted(removed.get(namespace, ()))
                segments[namespace] = [
                    *chain(*(self._without(some, numbers) for some in present.get(namespace, ())))
                ]
                for batch in self.limits.of(namespace).batches(
                    added.get(namespace, ()), self._width
                ):
                    segments[namespace] = self._with(segments[namespace], batch)
            self._store(segments, upstream=changes)
            if changes.first == 1 or any(removal.deleted for removal in changes.removed):
                self._clean()

    def work(self) -> bool:
        """Do what is to be done beside additions; return whether there may be more."""
        if self._evict():
            return True
        present, settled = self.segments.of, self._settled
        if present is settled:
            return False
        namespaces = [
            namespace for namespace, some in present.items() if some is not settled.get(namespace)
        ]
        if self._evict_epochs(namespaces) or self.merge(namespaces):
            return True
        self._settled = present
        return False

    def _evict(self) -> bool:
        """Evict what is too old by now; return whether anything was."""
        if math.isinf(self.limits.least_age):
            return False
        if all(len(self._kept(some)) == len(some) for some in self.segments.of.values()):
            return False
        with self._change():
            self._store(self.segments.of)
        return True

    def _evict_epochs(self, namespaces: Iterable[str]) -> bool:
        """Evict one namespace's documents of epochs before those that are kept.

        Return whether there may be more.
        """
        for namespace in namespaces:
            most = self.limits.of(namespace).max_epochs
            if most is None:
                continue
            if self._remove(
                namespace, partial(self._beside.outdated, most, namespace), deleted=False
            ):
                return True
        return False

    def compact(self) -> None:
        """Write all documents to files, and merge these into as few segments as there may be."""
        with self._change():
            self._store(by_namespace(self._flushed(self.segments.all)))
        while self.merge(self.segments.of, whole=True):
            pass

    def merge(self, namespaces: Iterable[str], *, whole: bool = False) -> bool:
        """Merge some of the segments in files; return whether there were any to merge.

        Args:
            namespaces: to look at.
            whole: merge as many as there may be.
        """
        with self._sorting:
            self._require_open()
            run = self._run(namespaces, whole=whole)
            if not run:
                return False
            namespace = run[0].namespace
            documents = list(self._beside.read(run[0].first, run[-1].last, namespace=namespace))
            if not documents:  # evicted meanwhile
                return True
            [new] = self._flushed([sorted_segment(documents, self._vocabulary_size)])
            del documents
            try:
                with self._change():
                    present = self.segments.of.get(namespace, ())
                    if set(run) <= set(present):
                        rest = (segment for segment in present if segment not in run[1:])
                        self._store(
                            {namespace: [new if segment is run[0] else segment for segment in rest]}
                        )
            finally:
                if new not in self.segments.of.get(namespace, ()):
                    self._remove_files([new.record.name] if new.record else ())
            return True

    def _stall(self, *namespaces: str) -> None:
        """Let compaction keep up with additions to `namespaces`."""
        if len(self._run(namespaces)) >= BACKLOG:
            time.sleep(STALL)

    def _run(self, namespaces: Iterable[str], *, whole: bool = False) -> list[Segment]:
        """Return the segments that are merged next; [] if there are none."""
        for namespace in namespaces:
            in_files = [
                segment
                for segment in self.segments.of.get(namespace, ())
                if segment.record is not None
            ]
            if run := segments_to_merge(in_files, self.limits.of(namespace), whole=whole):
                return run
        return []

    # --- For the holder of `_lock` ----------------------------------------------------------------

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

    def _stored_limits(self) -> tuple[Limits, Clock]:
        """Return the limits that are stored, and a clock by
        which they do not evict all there is.
        """
        limits = self._documents.limits()
        return limits, Clock(self._documents.last_time(), limits.least_age)

    def _load(self) -> None:
        """Publish what is stored; sort anew what is damaged or missing of the segments in files."""
        stored = self.segments.stored(self._directory, self._documents, self.limits)
        for namespace, segments in stored.items():
            stored[namespace] = self._flushed_but_memtable(namespace, segments)
        self._store(stored, before={*self._documents.records()})

    def _add(self, namespace: str, documents: Sequence[DocumentRecord]) -> Iterable[bytes]:
        """Number, sort, store and publish those of `documents` that are new.

        Return their digests.
        """
        stored = self._documents.numbers(document.digest for document in documents)
        new: dict[bytes, DocumentRecord] = {}
        newest, now = self._documents.newest(), self._clock.now()
        for document in documents:
            if document.digest not in stored and document.digest not in new:
                new[document.digest] = document._replace(number=newest + len(new) + 1, added=now)
        if new:
            added = list(new.values())
            self._store(
                {namespace: self._with(self.segments.of.get(namespace, ()), added)}, added=added
            )
        return new

    def _with(
        self, segments: Sequence[Segment], documents: Sequence[DocumentRecord]
    ) -> list[Segment]:
        """Return the segments of a namespace with new documents,
        which are sorted into its memtable.
        """
        namespace, newest = documents[0].namespace, documents[-1].added
        retention, memtable = self.limits.of(namespace), None
        if segments and segments[-1].record is None:
            size = segments[-1].position_count + sum(
                len(some.symbols) // self._width + 1 for some in documents
            )
            if size <= retention.largest and retention.may_span(segments[-1].oldest, newest):
                *segments, memtable = segments
        new = sorted_segment(documents, self._vocabulary_size, memtable)
        return self._flushed_but_memtable(namespace, [*segments, new])

    def _flushed_but_memtable(self, namespace: str, segments: Sequence[Segment]) -> list[Segment]:
        """Return the segments of a namespace in files, but for
        the last one if it is small enough.
        """
        small = [
            some
            for some in segments[-1:]
            if some.position_count < self.limits.of(namespace).memtable
        ]
        return self._flushed(segments[: len(segments) - len(small)]) + small

    def _without(self, segment: Segment, numbers: Sequence[int]) -> list[Segment]:
        """Return what is left of a segment without documents; for the holder of `_sorting`.

        Args:
            segment: one of the present segments.
            numbers: of documents of its namespace, ascending.
        """
        if bisect_left(numbers, segment.first) == bisect_right(numbers, segment.last):
            return [segment]
        gone, retention = set(numbers), self.limits.of(segment.namespace)
        stored = self._beside.read(segment.first, segment.last, namespace=segment.namespace)
        rest = [document for document in stored if document.number not in gone]
        is_large = segment.position_count > retention.largest
        parts = retention.batches(rest, self._width) if is_large else filter(None, [rest])
        new = [sorted_segment(part, self._vocabulary_size) for part in parts]
        return new if segment.record is None else self._flushed(new)

    def _store(
        self,
        changed: Mapping[str, Sequence[Segment]],
        *,
        added: Sequence[DocumentRecord] = (),
        removed: Sequence[int] = (),
        deleted: bool = False,
        upstream: Changes | None = None,
        before: Set[SegmentRecord] | None = None,
    ) -> None:
        """Commit a change and publish its segments, without those
        that are too much or too old by now.

        Args:
            changed: all segments, after the change, of each namespace that has others.
            added: new documents.
            removed: numbers of documents.
            deleted: whether these were to be deleted.
            upstream: changes of the upstream, instead of others.
            before: records of segments that are stored; None: those of the present segments.
        """
        present = {namespace: self._kept(segments) for namespace, segments in changed.items()}
        if before is None:
            before = _records(
                chain(*(self.segments.of.get(namespace, ()) for namespace in changed))
            )
        after = _records(chain(*present.values()))
        try:
            changes = upstream
            if changes is None:
                gone = {*chain(*changed.values())}.difference(*present.values())
                if added and changed[added[0].namespace][-1] in gone:
                    added = ()  # a limit that was set meanwhile is less than what is added
                newest = added[-1].number if added else self._documents.newest()
                evicted = [(some.namespace, some.first, some.last) for some in gone]
                removals = self._documents.removals(removed, evicted, newest, deleted=deleted)
                newest = removals[-1].number if removals else newest
                changes = Changes("", 0, newest, newest, added, removals)
            self._documents.commit(changes, before - after, after - before)
        except BaseException:
            self._remove_files(record.name for record in after - before)
            raise
        self.segments.set(present, changes.last)
        # Whoever still reads them has them mapped.
        self._remove_files(record.name for record in before - after)

    def _clean(self) -> None:
        """Remove what is left of deleted documents, files of changes that failed too.

        For the holder of both locks.
        """
        stored = {record.name for record in _records(self.segments.all)}
        self._remove_files({path.stem for path in self._directory.glob("segment-*.*")} - stored)
        self._documents.clean()

    # --- For whoever holds either lock ------------------------------------------------------------

    def _require_open(self) -> None:
        if self._closed:
            raise DatastoreClosedError(describe(self._directory, "the datastore", "closed", "open"))

    def _flushed(self, segments: Iterable[Segment]) -> list[Segment]:
        """Return segments in files, all of them or none."""
        flushed, written = [], []
        try:
            for segment in segments:
                if segment.record is None:
                    written.append(
                        segment := write_segment(segment, self._directory, self._vocabulary_size)
                    )
                flushed.append(segment)
        except BaseException:
            self._remove_files(record.name for record in _records(written))
            raise
        return flushed

    def _kept(self, segments: Sequence[Segment]) -> list[Segment]:
        """Return what is neither too old nor too much, as `Limits.kept`.

        A replica keeps what the upstream keeps.
        """
        return list(segments) if self._location else self.limits.kept(segments, self._clock)

    def _remove_files(self, names: Iterable[str]) -> None:
        """Remove files of segments.

        Those that cannot be removed stay until the next deletion or opening.
        """
        for name in names:
            with suppress(OSError):
                remove_files(self._directory, name)


def _records(segments: Iterable[Segment]) -> set[SegmentRecord]:
    """Return the records of those segments that are in files."""
    return {segment.record for segment in segments if segment.record is not None}
