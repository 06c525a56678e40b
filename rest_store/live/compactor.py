"""Compaction: segments in files become fewer and larger, beside additions."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from rest_store.live.committer import Committer
from rest_store.live.records import group_by_namespace
from rest_store.live.retention import Retention
from rest_store.live.segment import Segment
from rest_store.live.segment_builder import SegmentBuilder

# With a ratio of 2, tokens would be sorted as often, and there would be twice as many segments.
_MAX_SIZE_RATIO = 4
# Sorting takes a tenth of a second for so many positions, and some seconds for the largest
# segments. Larger segments therefore wait until newer ones are so many times as large together.
_LARGE_POSITIONS = 1 << 20
_LARGE_WAIT_RATIO = 3
# From a run of this many segments on, compaction is behind. Each addition then waits, which leaves
# cores to compaction.
_MAX_BACKLOG = 4
_STALL_SECONDS = 0.02


class Compactor:
    """Merges segments of a live datastore. Thread-safe.

    It sorts the documents of a merge beside additions, and puts the new segment in the place of the
    old ones at the end.

    Args:
        committer: publishes the segments.
        builder: makes the segments.
    """

    def __init__(self, committer: Committer, builder: SegmentBuilder) -> None:
        self._committer = committer
        self._builder = builder

    def compact(self) -> None:
        """Flush all memtables, and merge until there are as few segments as possible."""
        committer = self._committer
        with committer.change():
            flushed = self._builder.flush(committer.segments.all)
            committer.commit_with_evictions(group_by_namespace(flushed))
        while self.merge(committer.segments.by_namespace, whole=True):
            pass

    def merge(self, namespaces: Iterable[str], *, whole: bool = False) -> bool:
        """Merge one run of segments in files; return whether there was one.

        Args:
            namespaces: the namespaces to look at.
            whole: merge as many segments as possible.
        """
        with self._committer.sorting:
            self._committer.require_open()
            run = self._next_run(namespaces, whole=whole)
            if not run:
                return False
            namespace = run[0].namespace
            stored = self._builder.stored.read(run[0].first, run[-1].last, namespace=namespace)
            documents = list(stored)
            if not documents:  # they were removed meanwhile
                return True
            [merged] = self._builder.flush([self._builder.sort(documents)])
            numbers = [document.number for document in documents]
            del documents
            try:
                self._replace_run(run, merged, numbers)
            finally:
                is_present = merged in self._committer.present(namespace)
                if not is_present and merged.record is not None:
                    self._builder.remove_files([merged.record.name])
            return True

    def _replace_run(self, run: Sequence[Segment], merged: Segment, numbers: Sequence[int]) -> None:
        """Put a merged segment in the place of `run`, without the documents removed meanwhile.

        Args:
            run: the segments as they were before the merge.
            merged: with the documents that there were then.
            numbers: of these documents, ascending.
        """
        namespace = merged.namespace
        first, last = run[0].first, run[-1].last
        with self._committer.change():
            documents = self._committer.documents
            removed = set(numbers).difference(documents.numbers(first, last, namespace=namespace))
            replacement = [merged]
            if len(removed) == len(numbers):
                replacement = []
            elif removed:
                shorter = self._builder.without(merged, numbers, removed, documents)
                if shorter is None:
                    return  # its file has been damaged already; the next merge makes another one
                replacement = self._builder.flush([shorter])
            present = self._committer.present(namespace)
            older = [segment for segment in present if segment.last < first]
            newer = [segment for segment in present if segment.first > last]
            self._committer.commit_with_evictions({namespace: [*older, *replacement, *newer]})

    def stall(self, namespaces: Iterable[str]) -> None:
        """Hold an addition back for a moment if compaction does not keep up with additions."""
        run = self._next_run(namespaces)
        small = [segment for segment in run if segment.position_count < _LARGE_POSITIONS]
        if len(small) >= _MAX_BACKLOG:
            time.sleep(_STALL_SECONDS)

    def _next_run(self, namespaces: Iterable[str], *, whole: bool = False) -> list[Segment]:
        """Return the segments to merge next; [] if there are none."""
        for namespace in namespaces:
            present = self._committer.present(namespace)
            in_files = [segment for segment in present if segment.record is not None]
            retention = self._committer.retention.by_namespace(namespace)
            run = segments_to_merge(in_files, retention, whole=whole)
            if run:
                return run
        return []


def segments_to_merge(
    segments: Sequence[Segment], retention: Retention, *, whole: bool = False
) -> list[Segment]:
    """Return consecutive segments that are to become one; [] if there are none.

    The oldest one of a run is no larger than four times all newer ones together. If it is a large
    one, it is at most a third of them, or as large as they are if no more would fit. So sizes grow
    geometrically with age: there are few segments, and each token is sorted a logarithmic number of
    times, in large segments twice or three times.

    Args:
        segments: the segments of a namespace in files, oldest first.
        retention: how large segments may be.
        whole: older segments join however large they are.
    """
    for end in range(len(segments), 1, -1):
        first = end - 1
        positions = segments[first].position_count
        for start in range(end - 2, -1, -1):
            older = segments[start]
            if positions + older.position_count > retention.max_segment_positions:
                break
            if not retention.allows_times(older.oldest, segments[end - 1].newest):
                break
            if whole or _may_join(older, positions, retention.max_segment_positions):
                first = start
            elif older.position_count < _LARGE_POSITIONS:
                break  # a large one waits for more; those before it may be due by then
            positions += older.position_count
        if first < end - 1:
            return list(segments[first:end])
    return []


def _may_join(older: Segment, positions: int, max_positions: int) -> bool:
    """Return whether a segment may become one with newer ones that have so many positions.

    Args:
        older: the segment, no larger than `max_positions` together with the newer ones.
        positions: of the newer ones together.
        max_positions: the most positions of a segment.
    """
    size = older.position_count
    if size < _LARGE_POSITIONS:
        return size <= _MAX_SIZE_RATIO * positions
    if 2 * size + positions > max_positions:  # as large as segments of this size can become
        return size <= positions
    return _LARGE_WAIT_RATIO * size <= positions
