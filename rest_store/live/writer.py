"""What writes a live datastore: additions and deletions as they are called for, merging and eviction beside them."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar
from uuid import uuid4

from rest_store.datastore.header import token_width
from rest_store.errors import DatastoreError
from rest_store.live.documents import Document, Documents, SegmentRecord
from rest_store.live.segment import (
    Segment,
    joined_segment,
    open_segment,
    remove_files,
    segment_of,
    write_segment,
)
from rest_store.live.segments import Bounds, Segments, to_merge, to_seal

_COMMIT_POSITIONS = 1 << 20  # of one commit, about
_PURGED_AT_ONCE = 500  # documents, in one commit
_LOG_BYTES = 1 << 22  # of the write-ahead log, about, from which on it is written into the file
_LOG_PAGE = 1 << 12  # bytes of the log for each document, at least


class NewDocument(NamedTuple):
    """A document to be added: its id, and its tokens as a tokens file has them."""

    id: str
    symbols: bytes


@dataclass
class WriterCounts:
    """What a writer has done since it was opened.

    Attributes:
        added: documents that were added.
        added_tokens: their tokens.
        deleted: documents that were deleted.
        evicted: documents that were too much or too old.
    """

    added: int = 0
    added_tokens: int = 0
    deleted: int = 0
    evicted: int = 0


class _Addition:
    """What one caller adds, and how that ended."""

    def __init__(self, documents: Sequence[NewDocument]) -> None:
        self.documents = documents
        self.done = False
        self.error: BaseException | None = None


class Writer:
    """Writes one live datastore. Thread-safe.

    Locks, in the order in which they are taken: `_files` and `_memory` for whoever replaces segments in files or in
    memory, held while others are sorted; `_commit` for whoever changes documents, held for a commit and a small sort.

    Args:
        directory: of the datastore, which no other process writes.
        bounds: how much to keep.
        clock: seconds since 1970.

    Raises:
        StorageError: documents cannot be read, or segments cannot be written.

    Attributes:
        tokenizer: identity of the tokenizer that the tokens are from.
        segments: the present segments.
        counts: of what it has done.
    """

    def __init__(self, directory: Path, bounds: Bounds, clock: Callable[[], float] = time.time) -> None:
        self._directory = directory
        self._bounds = bounds
        self._clock = clock
        self._documents = Documents(directory)
        self._beside = Documents(directory)  # for what goes on beside additions; belongs to the holder of `_memory`
        self.tokenizer = self._documents.tokenizer()
        self._vocabulary_size = self.tokenizer.vocabulary_size
        self._width = token_width(self._vocabulary_size)
        self._files, self._memory, self._commit = threading.Lock(), threading.Lock(), threading.Lock()
        self._queue: list[_Addition] = []
        self._queue_lock = threading.Lock()
        self._last, self._newest = self._documents.last()
        self._first = 0
        self._logged = 0  # bytes written to the log, about
        self._unpurged = True  # whether evicted documents may still be stored
        self.segments = Segments(self._vocabulary_size)
        self.counts = WriterCounts()
        self._restore()

    def close(self) -> None:
        """Close the files, after additions in progress."""
        with self._files, self._memory, self._commit:
            self._documents.checkpoint(wait=True)
            self._beside.close()
            self._documents.close()

    def _restore(self) -> None:
        """Take segments from their files, sort anew what is damaged or missing, and remove the files of none."""
        state = self._documents.state()
        self._first = state.first
        segments: list[Segment] = []
        for record in state.records:
            try:
                segments.append(open_segment(self._directory, record, self._vocabulary_size, verify=True))
            except DatastoreError:
                remove_files(self._directory, record.name)
                documents = list(self._documents.read(record.first, record.last))
                written = self._written(segment_of(documents, self._vocabulary_size))
                self._documents.replace([record.name], _records([written]))
                segments.append(written)
        known = {record.name for record in _records(segments)}
        for path in self._directory.glob("segment-*.*"):
            if path.stem not in known:
                path.unlink(missing_ok=True)
        start = max([state.first, *(record.last + 1 for record in state.records)])
        for batch in _batches(self._documents.read(start), self._width):
            segments.append(segment_of(batch, self._vocabulary_size))
        self.segments.set(segments)
        self.evict()

    def add(self, documents: Sequence[NewDocument]) -> None:
        """Add documents, without those whose id is there already; return when they are durable and visible.

        Raises:
            StorageError: they cannot be written; then none of those committed together was added.
        """
        for batch in _batches(documents, self._width):
            addition = _Addition(batch)
            with self._queue_lock:
                self._queue.append(addition)
            with self._commit:
                while not addition.done:
                    self._commit_additions()
            if addition.error is not None:
                raise addition.error

    def _commit_additions(self) -> None:
        """Commit what callers have queued, together, in the order in which they came."""
        with self._queue_lock:
            sizes = [sum(len(document.symbols) for document in addition.documents) for addition in self._queue]
            count = 1
            while count < len(sizes) and sum(sizes[: count + 1]) <= _COMMIT_POSITIONS * self._width:
                count += 1
            additions, self._queue = self._queue[:count], self._queue[count:]
        try:
            self._store([document for addition in additions for document in addition.documents])
        except BaseException as error:
            for addition in additions:
                addition.error = error
        finally:
            for addition in additions:
                addition.done = True

    def _store(self, added: Sequence[NewDocument]) -> None:
        """Sort new documents, commit them, show them."""
        by_id: dict[str, NewDocument] = {}
        for document in added:
            by_id.setdefault(document.id, document)
        stored = self._documents.numbers(list(by_id))
        evicted = [number for number in stored.values() if number < self._first]
        new = [document for document in by_id.values() if stored.get(document.id, -1) < self._first]
        if not new:
            return
        now = max(self._newest, self._clock())  # a clock that was set back evicts nothing early
        numbers = range(self._last + 1, self._last + 1 + len(new))
        documents = [Document(number, id, now, symbols) for number, (id, symbols) in zip(numbers, new, strict=True)]
        segments, made = list(self.segments.all), segment_of(documents, self._vocabulary_size)
        if segments and self._is_young(segments[-1]) and self._joins(segments[-1], made):
            made = joined_segment([segments.pop(), made], self._vocabulary_size)
        segments.append(made)
        kept = self._kept(segments, now)
        first = None if len(kept) == len(segments) else kept[0].span.first
        self._documents.add(documents, replaced=evicted, first=first)
        self._last, self._newest = documents[-1].number, now
        self.counts.added += len(documents)
        self.counts.added_tokens += sum(len(document.symbols) for document in documents) // self._width
        self._logged += sum(_LOG_PAGE + len(document.symbols) for document in documents)
        self._show(kept, first)

    def delete(self, ids: Sequence[str]) -> int:
        """Delete documents and return how many there were; then no answer holds them, and no file.

        Raises:
            StorageError: that cannot be written; nothing was deleted.
        """
        with self._files, self._memory:
            numbers = self._numbers(ids, self._beside)
            # Segments that additions do not change are sorted anew beside them.
            prepared = {
                segment: self._without(segment, numbers, self._beside)
                for segment in self.segments.all
                if _holds(segment, numbers) and not self._is_young(segment)
            }
            try:
                with self._commit:
                    numbers = self._numbers(ids, self._documents)
                    kept: list[Segment] = []
                    for segment in self.segments.all:
                        if not _holds(segment, numbers):
                            kept.append(segment)
                        elif segment in prepared:
                            kept += prepared.pop(segment)
                        else:
                            kept += self._without(segment, numbers, self._documents)
                    before = _records(self.segments.all)
                    gone = [record.name for record in before if record not in _records(kept)]
                    self._documents.delete(numbers, gone, [record for record in _records(kept) if record not in before])
                    self.counts.deleted += len(numbers)
                    self._show(kept)
                    self._documents.checkpoint(wait=True)  # the log still has them
            finally:
                for record in _records([segment for made in prepared.values() for segment in made]):
                    remove_files(self._directory, record.name)  # evicted meanwhile, or the deletion failed
        return len(numbers)

    def _numbers(self, ids: Sequence[str], documents: Documents) -> list[int]:
        """Return the numbers of the documents with `ids` that are there, ascending."""
        return sorted(
            number for number in documents.numbers(list(dict.fromkeys(ids))).values() if number >= self._first
        )

    def _without(self, segment: Segment, numbers: Sequence[int], documents: Documents) -> list[Segment]:
        """Return `segment` without some of its documents: one segment, in files as it is; none if nothing is left."""
        gone = set(numbers)
        left = [one for one in documents.read(segment.span.first, segment.span.last) if one.number not in gone]
        if not left:
            return []
        made = segment_of(left, self._vocabulary_size)
        return [made if segment.record is None else self._written(made)]

    def evict(self) -> bool:
        """Evict what is too much or too old by now; return whether anything was."""
        with self._commit:
            segments = self.segments.all
            kept = self._kept(segments, max(self._newest, self._clock()))
            if len(kept) == len(segments):
                return False
            first = kept[0].span.first if kept else self._last + 1
            self._documents.evict(first)
            self._show(kept, first)
            return True

    def purge(self) -> bool:
        """Remove some evicted documents from the file, and write a long log into it; return whether there is more."""
        with self._memory:
            if self._unpurged:
                with self._commit:
                    purged = self._documents.purge(_PURGED_AT_ONCE)
                    self._unpurged = purged == _PURGED_AT_ONCE
                    self._logged += purged * _LOG_PAGE
            if self._logged > _LOG_BYTES:
                self._logged = 0
                self._beside.checkpoint()
            return self._unpurged

    def seal(self, *, whole: bool = False) -> bool:
        """Write the oldest segments in memory to files as one; return whether there were enough.

        Args:
            whole: seal all of them, however few; additions wait.
        """
        with self._memory:
            if whole:
                with self._commit:
                    return self._seal(list(self.segments.in_memory), whole=True)
            return self._seal(self._settled(), whole=False)

    def _seal(self, memory: Sequence[Segment], *, whole: bool) -> bool:
        run = to_seal(memory, self._bounds, whole=whole)
        if not run:
            return False
        made = self._written(run[0] if len(run) == 1 else joined_segment(run, self._vocabulary_size))
        self._put(run, made, locked=whole)
        return True

    def merge_in_memory(self) -> bool:
        """Merge some of the segments in memory; return whether there were any to merge."""
        with self._memory:
            run = to_merge(self._settled(), self._bounds)
            if not run:
                return False
            self._put(run, joined_segment(run, self._vocabulary_size))
            return True

    def merge_files(self, *, whole: bool = False) -> bool:
        """Merge some of the segments in files; return whether there were any to merge.

        Args:
            whole: merge as many as there may be.
        """
        with self._files:
            run = to_merge(self.segments.in_files, self._bounds, whole=whole)
            if not run:
                return False
            self._put(run, self._written(joined_segment(run, self._vocabulary_size)))
            return True

    def _put(self, run: Sequence[Segment], made: Segment, *, locked: bool = False) -> None:
        """Put `made` in the place of `run`, unless some of that was evicted meanwhile."""
        with nullcontext() if locked else self._commit:
            kept = self.segments.replaced(run, made)
            if kept is None:
                for record in _records([made]):
                    remove_files(self._directory, record.name)
                return
            if made.record is not None:
                self._documents.replace([record.name for record in _records(run)], [made.record])
            self._show(kept)

    def _settled(self) -> list[Segment]:
        """Return the segments in memory that additions do not change any more."""
        return [segment for segment in self.segments.in_memory if not self._is_young(segment)]

    def _is_young(self, segment: Segment) -> bool:
        """Return whether additions may still join `segment`: the newest, in memory, and small."""
        newest = self.segments.all[-1]
        return segment is newest and segment.record is None and segment.position_count < self._bounds.young

    def _joins(self, young: Segment, made: Segment) -> bool:
        positions = young.position_count + made.position_count
        return positions <= self._bounds.young and self._bounds.may_join(young, made)

    def _kept(self, segments: Sequence[Segment], now: float) -> Sequence[Segment]:
        """Return the newest of `segments`, without those that are too much or, at the time `now`, too old."""
        most, age = self._bounds.max_tokens, self._bounds.max_age
        total = sum(segment.token_count for segment in segments)
        start = 0
        while start < len(segments):
            too_old = age is not None and segments[start].span.oldest <= now - age
            if not too_old and (most is None or total <= most):
                break
            total -= segments[start].token_count
            start += 1
        return segments[start:]

    def _show(self, segments: Sequence[Segment], first: int | None = None) -> None:
        """Have queries read `segments`, which are committed; remove the files of those that are gone.

        Args:
            segments: all that there are.
            first: if documents were evicted, the number of the first that is left.
        """
        gone = set(_records(self.segments.all)) - set(_records(segments))
        if first is not None:
            evicted = [segment.span for segment in self.segments.all if segment.span.last < first]
            self.counts.evicted += sum(span.document_count for span in evicted)
        self.segments.set(segments)
        if first is not None:
            self._first, self._unpurged = first, True
        for record in gone:  # whoever still reads them has them mapped
            remove_files(self._directory, record.name)

    def _written(self, segment: Segment) -> Segment:
        """Return a segment in files, under a new name."""
        return write_segment(segment, self._directory, f"segment-{uuid4().hex}", self._vocabulary_size)


def _records(segments: Iterable[Segment]) -> list[SegmentRecord]:
    """Return the records of those of `segments` that are in files."""
    return [segment.record for segment in segments if segment.record is not None]


def _holds(segment: Segment, numbers: Sequence[int]) -> bool:
    """Return whether any of `numbers`, ascending, are of documents of `segment`."""
    return bisect_left(numbers, segment.span.first) < bisect_right(numbers, segment.span.last)


class _HasSymbols(Protocol):
    @property
    def symbols(self) -> bytes: ...


_Item = TypeVar("_Item", bound=_HasSymbols)


def _batches(documents: Iterable[_Item], width: int) -> Iterator[list[_Item]]:
    """Yield documents in lists that one commit takes."""
    batch: list[_Item] = []
    size = 0
    for document in documents:
        if batch and size + len(document.symbols) > _COMMIT_POSITIONS * width:
            yield batch
            batch, size = [], 0
        batch.append(document)
        size += len(document.symbols)
    if batch:
        yield batch
