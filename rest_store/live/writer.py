"""What writes a live datastore: additions and deletions as they are called for, merging and eviction beside them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

from rest_store.datastore.header import token_width
from rest_store.errors import DatastoreClosedError, StorageError, describe
from rest_store.live.additions import NewDocument, SharedCommits
from rest_store.live.deletion import Deletion
from rest_store.live.documents import Document, Documents
from rest_store.live.housekeeping import Housekeeping, is_mostly_empty
from rest_store.live.live_info import WriterCounts
from rest_store.live.locks import ThreadLocks
from rest_store.live.segment import Segment, is_intact, joined_segment, segment_of
from rest_store.live.segment_files import SegmentFiles, records_of
from rest_store.live.segments import Bounds, Segments, delay, to_merge, to_seal
from rest_store.live.stored import stored_segments

_MOST_IN_MEMORY = 1 << 23  # positions; whoever adds more seals some first


class Writer:
    """Writes one live datastore. Thread-safe.

    `ThreadLocks` says what each of its locks is for, and in which order they are taken.

    What is in memory follows what is stored. When a change ended with an error or an interrupt, nobody knows whether it
    was stored: the next change reads it again first.

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
        housekeeping: what cleans up behind it.
    """

    def __init__(self, directory: Path, bounds: Bounds, clock: Callable[[], float] = time.time) -> None:
        self._directory = directory
        self._bounds = bounds
        self._clock = clock
        self._locks = ThreadLocks()
        self._closed = False
        self._may_differ_from_disk = False  # whether what is stored may differ from what is known here
        self._last, self._newest, self._first, self._deletions = 0, 0.0, 0, 0
        with ExitStack() as stack:
            self._documents = stack.enter_context(closing(Documents(directory)))  # for the holder of `commit`
            self.tokenizer = self._documents.tokenizer()
            self._vocabulary_size = self.tokenizer.vocabulary_size
            self._width = token_width(self._vocabulary_size)
            self._segment_files = SegmentFiles(directory, self._vocabulary_size)
            self.housekeeping = stack.enter_context(
                closing(Housekeeping(directory, self._documents, self._segment_files, self._locks, self._change))
            )
            most = bounds.commit * self._width
            self._additions = SharedCommits(self._locks.commit, self._commit_additions, most, separator=self._width)
            self.segments = Segments(self._vocabulary_size)
            self.counts = WriterCounts()
            self._reload(verify=True)
            self._segment_files.remove_all_but(records_of(self.segments.all))
            self.evict()
            stack.pop_all()

    def close(self) -> None:
        """Close the files, after additions in progress; later calls raise DatastoreClosedError."""
        with self._locks.files, self._locks.memory, self._locks.commit:
            self._closed = True
            self.segments = Segments(self._vocabulary_size)  # which keeps no files mapped
            self.housekeeping.close()
            self._documents.close()

    def _reload(self, *, verify: bool = False) -> None:
        """Publish what is stored; sort anew what is damaged or missing of the segments in files."""
        state = self._documents.state()
        self._last, newest = self._documents.last()
        self._newest = max(self._newest, newest)
        known_segments = self.segments.all if state.deletions == self._deletions else self.segments.in_files
        new: list[Segment] = []
        with self._removed_unless_published(new):
            segments: list[Segment] = []
            for record, segment in stored_segments(
                self._directory,
                self._documents,
                state,
                known_segments,
                self._bounds,
                self._vocabulary_size,
                verify=verify,
            ):
                if record is not None and segment.record is None:
                    segment = self._segment_files.write(segment)
                    new.append(segment)
                segments.append(segment)
            records = records_of(segments)
            obsolete = [record for record in state.records if record not in records]
            if obsolete:
                self._documents.replace(obsolete, records_of(new))
            self._deletions = state.deletions
            self._publish(segments, state.first)
        self._segment_files.remove(obsolete)

    @contextmanager
    def _removed_unless_published(self, new: list[Segment]) -> Iterator[None]:
        """Remove, at the end of the block, the files of those new segments that are not published."""
        try:
            yield
        finally:
            published = records_of(self.segments.all)
            self._segment_files.remove(record for record in records_of(new) if record not in published)

    @contextmanager
    def _change(self) -> Iterator[None]:
        """Change what is stored within the block, and publish it there; for the holder of `commit`."""
        if self._closed:
            raise DatastoreClosedError(describe(self._directory, "the datastore", "closed", "open"))
        if self._may_differ_from_disk:
            self._reload()
        self._may_differ_from_disk = True
        yield
        self._may_differ_from_disk = False

    def add(self, documents: Sequence[NewDocument]) -> bool:
        """Add documents, without those whose id is there already; return when they are durable and visible.

        Returns:
            Whether there may be something to merge, seal, or purge now.

        Raises:
            StorageError: they cannot be written; then none of those committed together was added.
            DatastoreClosedError: after `close`.
        """
        made_work = False
        for batch in self._bounds.batches(documents, self._width):
            if sum(segment.position_count for segment in self.segments.in_memory) > _MOST_IN_MEMORY:
                self.seal()
            if seconds := delay(self.segments, self._bounds):
                time.sleep(seconds)
            made_work |= self._additions.add(batch)
        return made_work

    def _commit_additions(self, additions: Sequence[NewDocument]) -> bool:
        with self._change():
            return self._store(additions)

    def _store(self, added: Sequence[NewDocument]) -> bool:
        """Sort new documents, commit them, publish them; return whether segments were settled or evicted."""
        by_id: dict[str, NewDocument] = {}
        for document in added:
            by_id.setdefault(document.id, document)
        stored = self._documents.numbers([document.id for document in by_id.values() if not document.is_new])
        evicted = [number for number in stored.values() if number < self._first]
        new = [document for document in by_id.values() if stored.get(document.id, -1) < self._first]
        if not new:
            return False
        now = max(self._newest, self._clock())  # a clock that was set back evicts nothing early
        numbers = range(self._last + 1, self._last + 1 + len(new))
        documents = [Document(number, now, document.symbols) for number, document in zip(numbers, new, strict=True)]
        segments = list(self.segments.all)
        young = segments.pop() if segments and self._may_grow(segments[-1], new, now) else None
        segments.append(segment_of(documents, self._vocabulary_size, young))
        present = self._kept(segments, now)
        first = None if len(present) == len(segments) else _first_number(present, numbers[-1] + 1)
        purged = self.housekeeping.purged_with(len(new))
        ids = [document.id for document in new]
        removed = self._documents.add(documents, ids, replaced=evicted, first=first, purged=purged)
        self.housekeeping.note_added(documents, purged=purged, removed=removed)
        self._last, self._newest = numbers[-1], now
        self.counts.added += len(documents)
        self.counts.added_tokens += sum(len(document.symbols) for document in documents) // self._width
        self._publish(present, first)
        return young is None or first is not None

    def delete(self, ids: Sequence[str]) -> int:
        """Delete documents and return how many there were; then no answer holds them, and no file.

        Raises:
            StorageError: that cannot be written; nothing was deleted. Or they were, and this says where they still are.
            DatastoreClosedError: after `close`.
        """
        deletion = Deletion(ids, self._segment_files, self._vocabulary_size)
        with (
            self._removed_unless_published(deletion.new_segments),
            self._locks.files,
            closing(Documents(self._directory)) as beside,
        ):
            deletion.left(self.segments.in_files, beside)  # what additions do not change is sorted anew beside them
            with self._locks.memory:
                deletion.left(self._settled(), beside)
                there = sum(segment.span.document_count for segment in self.segments.all)
                without_empty_rows = is_mostly_empty(beside, there)
                with self._locks.commit, self._change():
                    count = self._delete(deletion)
                    if without_empty_rows:
                        self._documents.remove_deleted()
                self.housekeeping.clear()
        return count

    def _delete(self, deletion: Deletion) -> int:
        """Delete documents; return how many of them were not evicted."""
        numbers = deletion.numbers(self._documents)
        if numbers:
            present = deletion.left(self.segments.all, self._documents)
            before, after = records_of(self.segments.all), records_of(present)
            obsolete = [record for record in before if record not in after]
            self.housekeeping.note_deleted()
            self._documents.delete(numbers, obsolete, [record for record in after if record not in before])
            self._deletions += 1
            self._publish(present, without_some=True)
        count = sum(number >= self._first for number in numbers)
        self.counts.deleted += count
        return count

    def evict(self) -> bool:
        """Evict what is too much or too old by now; return whether anything was."""
        if not self._evicts():  # without a lock that additions wait for
            return False
        with self._locks.commit, self._change():
            segments = self.segments.all
            present = self._kept(segments, max(self._newest, self._clock()))
            if len(present) == len(segments):
                return False
            first = _first_number(present, self._last + 1)
            self._documents.evict(first)
            self._publish(present, first)
            return True

    def seal(self) -> bool:
        """Write the oldest segments in memory to files as one; return whether there were enough."""
        with self._locks.memory:
            run = to_seal(self._settled(), self._bounds)
            if run:
                self._swap_in(run, self._segment_files.write(self._joined(run)))
            return bool(run)

    def compact(self) -> None:
        """Write all documents that are there to files, and merge these into as few segments as there may be.

        Then give back the room of what was deleted.
        """
        last = self._last
        while self._seal_to(last):
            pass
        while self.merge_files(whole=True):
            pass
        with self._locks.memory, self._locks.commit, self._change():
            self._documents.remove_deleted()
            self.housekeeping.rewrite()

    def _seal_to(self, last: int) -> bool:
        """Write segments in memory to files as one, up to that of document `last`; return whether there were any."""
        with self._locks.memory, self._locks.commit, self._change():
            memory = [segment for segment in self.segments.in_memory if segment.span.first <= last]
            run = to_seal(memory, self._bounds, whole=True)
            if run:
                new = self._segment_files.write(self._joined(run))
                with self._removed_unless_published([new]):
                    self._replace(run, new)
            return bool(run)

    def merge_in_memory(self) -> bool:
        """Merge some of the segments in memory; return whether there were any to merge."""
        with self._locks.memory:
            run = to_merge(self._settled(), self._bounds)
            if run:
                self._swap_in(run, self._joined(run))
            return bool(run)

    def merge_files(self, *, whole: bool = False) -> bool:
        """Merge some of the segments in files; return whether there were any to merge.

        Args:
            whole: merge as many as there may be.
        """
        with self._locks.files:
            run = to_merge(self.segments.in_files, self._bounds, whole=whole)
            if run:
                self._swap_in(run, self._segment_files.write(self._joined(run)))
            return bool(run)

    def _joined(self, run: Sequence[Segment]) -> Segment:
        """Return segments that follow one another as one in memory."""
        if len(run) == 1:
            return run[0]
        for segment in run:
            if not is_intact(segment):  # what was read would be written as if it were right
                raise StorageError(f"{self._directory}: segment {segment.record} was damaged; open the datastore again")
        return joined_segment(run, self._vocabulary_size)

    def _swap_in(self, run: Sequence[Segment], new: Segment) -> None:
        with self._removed_unless_published([new]), self._locks.commit, self._change():
            self._replace(run, new)

    def _replace(self, run: Sequence[Segment], new: Segment) -> None:
        """Put `new` in the place of `run`, unless some of that was evicted meanwhile."""
        present = self.segments.replaced(run, new)
        if present is not None:
            if new.record is not None:
                self._documents.replace(records_of(run), [new.record])
            self._publish(present)

    def _settled(self) -> list[Segment]:
        """Return the segments in memory that additions do not change any more."""
        segments = self.segments.all  # others may evict meanwhile
        memory = [segment for segment in segments if segment.record is None]
        return memory[:-1] if memory and self._is_young(memory[-1]) else memory

    def _is_young(self, newest: Segment) -> bool:
        """Return whether additions may still join the newest segment: in memory, and small."""
        return newest.record is None and newest.position_count < self._bounds.young

    def _may_grow(self, newest: Segment, new: Sequence[NewDocument], now: float) -> bool:
        """Return whether documents that are added now join the newest segment."""
        positions = newest.position_count + sum(len(document.symbols) // self._width + 1 for document in new)
        fits = positions <= self._bounds.young and self._bounds.may_span(newest.span.oldest, now)
        return fits and self._is_young(newest)

    def _evicts(self) -> bool:
        """Return whether there is too much, or something too old, by now."""
        segments = self.segments.all
        return len(self._kept(segments, max(self._newest, self._clock()))) < len(segments)

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

    def _publish(self, segments: Sequence[Segment], first: int | None = None, *, without_some: bool = False) -> None:
        """Have queries read `segments`, which are stored; remove the files of those that are gone.

        Args:
            segments: all that there are.
            first: if documents were evicted, the number of the first that is left.
            without_some: whether documents were deleted.
        """
        obsolete = set(records_of(self.segments.all)) - set(records_of(segments))
        if first is not None:
            spans = [segment.span for segment in self.segments.all if segment.span.last < first]
            self.counts.evicted += sum(span.document_count for span in spans)
        self.segments.set(segments, without_some=without_some or first is not None)
        if first is not None:
            self._first = first
            self.housekeeping.note_evicted()
        self._segment_files.remove(obsolete)  # whoever still reads them has them mapped


def _first_number(segments: Sequence[Segment], otherwise: int) -> int:
    """Return the number of the first document of `segments`; `otherwise` if there are none."""
    return segments[0].span.first if segments else otherwise
