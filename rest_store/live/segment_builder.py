"""The segments of a namespace after a change: `SegmentBuilder`."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence, Set
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from rest_store.datastore.header import token_width
from rest_store.live.documents import Documents
from rest_store.live.records import DocumentRecord
from rest_store.live.retention import Retention
from rest_store.live.segment import (
    Segment,
    remove_files,
    shortened_segment,
    sorted_segment,
    write_segment,
)


class SegmentBuilder:
    """Sorts documents into segments, and writes segments to files.

    Segments never change, and so each method returns new ones. It publishes none: `Committer` does.

    Args:
        directory: the directory of the datastore.
        vocabulary_size: ids are `0 .. vocabulary_size - 1`.
        stored: the stored documents, which the holder of `Committer.sorting` reads.

    Attributes:
        stored: as above.
        width: bytes of a token.
    """

    def __init__(self, directory: Path, vocabulary_size: int, stored: Documents) -> None:
        self._directory = directory
        self._vocabulary_size = vocabulary_size
        self.stored = stored
        self.width = token_width(vocabulary_size)

    def add(
        self,
        segments: Sequence[Segment],
        documents: Iterable[DocumentRecord],
        retention: Retention,
    ) -> list[Segment]:
        """Return the segments of a namespace after the addition of any number of documents."""
        after = list(segments)
        for batch in retention.batches(documents, self.width):
            after = self.add_batch(after, batch, retention)
        return after

    def add_batch(
        self,
        segments: Sequence[Segment],
        batch: Sequence[DocumentRecord],
        retention: Retention,
    ) -> list[Segment]:
        """Return the segments of a namespace with new documents in its memtable.

        Args:
            segments: its segments.
            batch: at least one document, in a list that `Retention.batches` yields.
            retention: its retention.
        """
        before = list(segments)
        memtable: Segment | None = None
        if before and self._fits_into(before[-1], batch, retention):
            memtable = before.pop()
        new = sorted_segment(batch, self._vocabulary_size, memtable)
        return self.flush_all_but_memtable([*before, new], retention)

    def _fits_into(
        self, segment: Segment, batch: Sequence[DocumentRecord], retention: Retention
    ) -> bool:
        """Return whether a segment is a memtable that may take in new documents."""
        if segment.record is not None:
            return False
        positions = segment.position_count
        for document in batch:
            positions += len(document.symbols) // self.width + 1
        if positions > retention.max_segment_positions:
            return False
        return retention.allows_times(segment.oldest, batch[-1].added)

    def remove(
        self,
        segments: Iterable[Segment],
        numbers: Sequence[int],
        retention: Retention,
        documents: Documents,
    ) -> list[Segment]:
        """Return the segments of a namespace after the removal of documents.

        Args:
            segments: some of its present segments.
            numbers: the numbers of the documents, ascending.
            retention: its retention.
            documents: the stored documents, from which these are not removed yet. They are read
                where nothing else helps.
        """
        removed = set(numbers)
        after: list[Segment] = []
        for segment in segments:
            if bisect_left(numbers, segment.first) == bisect_right(numbers, segment.last):
                after.append(segment)
            else:
                after += self._remaining(segment, removed, retention, documents)
        return after

    def _remaining(
        self,
        segment: Segment,
        removed: set[int],
        retention: Retention,
        documents: Documents,
    ) -> list[Segment]:
        """Return segments of a segment's documents that are not removed."""
        first, last, namespace = segment.first, segment.last, segment.namespace
        numbers = documents.numbers(first, last, namespace=namespace)
        if all(number in removed for number in numbers):
            return []
        shorter: Segment | None = None
        if segment.position_count <= retention.max_segment_positions:
            shorter = self.without(segment, numbers, removed, documents)
        if shorter is not None:
            segments = [shorter]
        else:  # it is damaged, or larger than it may be by now
            stored = documents.read(first, last, namespace=namespace)
            remaining = (document for document in stored if document.number not in removed)
            segments = [self.sort(batch) for batch in retention.batches(remaining, self.width)]
        return segments if segment.record is None else self.flush(segments)

    def without(
        self,
        segment: Segment,
        numbers: Sequence[int],
        removed: Set[int],
        documents: Documents,
    ) -> Segment | None:
        """Return a segment in memory without some of its documents; None: it is damaged.

        Args:
            segment: with all documents.
            numbers: of its documents, ascending.
            removed: the numbers of removed documents; one document stays at least.
            documents: the stored documents, among them those that stay.
        """
        is_removed = np.array([number in removed for number in numbers])
        shorter = shortened_segment(segment, is_removed, self._vocabulary_size)
        if shorter is None:
            return None
        remaining = [number for number in numbers if number not in removed]
        return replace(
            shorter,
            first=remaining[0],
            last=remaining[-1],
            oldest=documents.time(remaining[0]),
            newest=documents.time(remaining[-1]),
        )

    def sort(self, documents: Sequence[DocumentRecord]) -> Segment:
        """Return a segment in memory of consecutive documents."""
        return sorted_segment(documents, self._vocabulary_size)

    def flush(self, segments: Iterable[Segment]) -> list[Segment]:
        """Return segments in files, after writing those in memory: all of them or none."""
        flushed: list[Segment] = []
        names: list[str] = []
        try:
            for segment in segments:
                if segment.record is None:
                    in_files = write_segment(segment, self._directory, self._vocabulary_size)
                    assert in_files.record is not None
                    names.append(in_files.record.name)
                    flushed.append(in_files)
                else:
                    flushed.append(segment)
        except BaseException:
            self.remove_files(names)
            raise
        return flushed

    def flush_all_but_memtable(
        self, segments: Sequence[Segment], retention: Retention
    ) -> list[Segment]:
        """Return the segments of a namespace in files, except for a last one that is small."""
        if segments and segments[-1].position_count < retention.max_memtable_positions:
            return [*self.flush(segments[:-1]), segments[-1]]
        return self.flush(segments)

    def remove_files(self, names: Iterable[str]) -> None:
        """Remove the files of segments.

        Files that cannot be removed stay until the next deletion or opening.
        """
        for name in names:
            with suppress(OSError):
                remove_files(self._directory, name)

    def remove_other_files(self, names: Iterable[str]) -> None:
        """Remove the files of all segments but those with one of these names."""
        existing = {path.stem for path in self._directory.glob("segment-*.*")}
        self.remove_files(existing.difference(names))
