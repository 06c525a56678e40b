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
            if not documents:  # they were evicted meanwhile
                return True
            [merged] = self._builder.flush([self._builder.sort(documents)])
            del documents
            try:
                self._replace_run(run, merged)
            finally:
                is_present = merged in self._committer.present(namespace)
                if not is_present and merged.record is not None:
                    self._builder.remove_files([merged.record.name])
            return True

    def _replace_run(self, run: Sequence[Segment], merged: Segment) -> None:
        """Put a merged segment in the place of `run`, if all of it is still present."""
        with self._committer.change():
            present = self._committer.present(merged.namespace)
            if not set(run) <= set(present):
                return
            segments: list[Segment] = []
            for segment in present:
                if segment is run[0]:
                    segments.append(merged)
                elif segment not in run:
                    segments.append(segment)
            self._committer.commit_with_evictions({merged.namespace: segments})

    def stall(self, namespaces: Iterable[str]) -> None:
        """Hold an addition back for a moment if compaction does not keep up with additions."""
        if len(self._next_run(namespaces)) >= _MAX_BACKLOG:
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

    An older segment joins the run if it is no larger than four times all newer ones of the run
    together. So sizes grow geometrically with age: there are few segments, and each token is sorted
    a logarithmic number of times.

    Args:
        segments: the segments of a namespace in files, oldest first.
        retention: how large segments may be.
        whole: older segments join however large they are.
    """
    for end in range(len(segments), 1, -1):
        start = end - 1
        positions = segments[start].position_count
        while start > 0:
            older = segments[start - 1]
            if positions + older.position_count > retention.max_segment_positions:
                break
            if older.position_count > _MAX_SIZE_RATIO * positions and not whole:
                break
            if not retention.allows_times(older.oldest, segments[end - 1].newest):
                break
            start -= 1
            positions += older.position_count
        if end - start > 1:
            return list(segments[start:end])
    return []
