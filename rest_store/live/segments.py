"""The present segments of a live datastore, and how they are loaded from the stored documents."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np

from rest_store.datastore.header import TAIL_SIZE, token_width
from rest_store.datastore.kernel import native_kernel
from rest_store.datastore.shard import ShardView
from rest_store.datastore.store import Snapshot
from rest_store.errors import DatastoreError
from rest_store.live.documents import Documents
from rest_store.live.records import DocumentRecord, SegmentRecord, group_by_namespace
from rest_store.live.retention import Retention, RetentionTable
from rest_store.live.segment import Segment, open_segment, sorted_segment
from rest_store.live.sharing import group_keys, reader_key

_MAX_IDLE_READERS = 64  # groups without a session whose snapshots are kept


class Segments:
    """The present segments, and the snapshots over them.

    One thread changes them at a time, while any thread reads them.

    Args:
        vocabulary_size: ids are `0 .. vocabulary_size - 1`.

    Attributes:
        shared_after: how many groups have to write a text before queries tell others of it. The
            next `load` and `publish` follow a change.
        by_namespace: the segments of each namespace that has any, oldest first. Only the last one
            may be in memory: the memtable of the namespace. Each change sets another mapping.
        newest: number of the newest change that the segments hold.
    """

    def __init__(self, vocabulary_size: int) -> None:
        self.vocabulary_size = vocabulary_size
        self.by_namespace: Mapping[str, tuple[Segment, ...]] = {}
        self.newest = 0
        self.shared_after = 1
        self._is_closed = False
        self._changed = threading.Condition()
        self._empty_snapshot = Snapshot.from_views([_empty_view(vocabulary_size)], vocabulary_size)
        self._snapshots: dict[str, Snapshot] = {}
        self._published_shared_after = 1
        self._reader_snapshots: dict[str, _ReaderSnapshots] = {}

    @property
    def all(self) -> list[Segment]:
        """The segments of all namespaces."""
        return list(chain.from_iterable(self.by_namespace.values()))

    def snapshot(self, namespace: str = "", reader: str = "") -> Snapshot:
        """Return the shards that queries of a namespace read, and the texts that they may tell.

        Args:
            namespace: the namespace.
            reader: the group that reads; "": none.
        """
        if self._published_shared_after == 1:
            return self._snapshots.get(namespace, self._empty_snapshot)
        with self._changed:
            segments = self.by_namespace.get(namespace)
            if segments is None:
                return self._empty_snapshot
            reader_snapshots = self._reader_snapshots.setdefault(namespace, _ReaderSnapshots())
            snapshot = reader_snapshots.present.get(reader)
            if snapshot is None:
                snapshot = self._snapshot_of_reader(segments, reader)
                reader_snapshots.present[reader] = snapshot
                reader_snapshots.latest.append(snapshot)
            return snapshot

    def _snapshot_of_reader(self, segments: Sequence[Segment], reader: str) -> Snapshot:
        sharing = native_kernel().Sharing(
            [segment.groups for segment in segments],
            self._published_shared_after,
            reader_key(reader),
        )
        views = [segment.view for segment in segments]
        return Snapshot.from_views(views, self.vocabulary_size, sharing)

    def publish(self, changed: Mapping[str, Sequence[Segment]], newest: int) -> None:
        """Let queries read the segments after change number `newest` from now on.

        Args:
            changed: for each namespace with other segments than before, all of its segments.
            newest: number of the change.
        """
        present = dict(self.by_namespace)
        snapshots = dict(self._snapshots)
        shared_after = self.shared_after
        is_shared_as_before = shared_after == self._published_shared_after
        reader_snapshots = dict(self._reader_snapshots) if is_shared_as_before else {}
        for namespace, segments in changed.items():
            if tuple(segments) == present.get(namespace) and is_shared_as_before:
                continue
            reader_snapshots.pop(namespace, None)
            if segments:
                present[namespace] = tuple(segments)
                views = [segment.view for segment in segments]
                if shared_after > 1:
                    for segment in segments:
                        _ = segment.groups  # made here, so that no query waits for it
                snapshots[namespace] = Snapshot.from_views(views, self.vocabulary_size)
            else:
                present.pop(namespace, None)
                snapshots.pop(namespace, None)
        with self._changed:
            self.by_namespace = present
            self._snapshots = snapshots
            self._reader_snapshots = reader_snapshots
            self._published_shared_after = shared_after
            self.newest = newest
            self._changed.notify_all()

    def close(self) -> None:
        """Unmap all files, and end all calls of `wait`."""
        self._is_closed = True
        self.publish(dict.fromkeys(self.by_namespace, ()), self.newest)

    def wait(self, after: int, timeout: float) -> bool:
        """Wait for changes after number `after`, until `close` or for `timeout` seconds.

        Returns:
            Whether there are such changes.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.newest > after or self._is_closed, timeout)
            return self.newest > after

    def load(
        self,
        directory: Path,
        documents: Documents,
        retention: RetentionTable,
        *,
        keep_memtables: bool = False,
    ) -> dict[str, list[Segment]]:
        """Return the segments of all stored documents, by namespace.

        Namespaces of the present segments that have no documents any more have []. Documents in no
        file are sorted in memory. So are the documents of files that are missing, damaged, or
        larger than their namespace allows. The checksums of files that are not mapped yet are
        compared.

        Args:
            directory: the directory of the live datastore.
            documents: its documents, which do not change meanwhile.
            retention: how large segments may be.
            keep_memtables: whether present memtables stay if they hold the same documents. False if
                `documents` may be those of another datastore.

        Raises:
            StorageError: documents cannot be read.
        """
        records = group_by_namespace(documents.segment_records())
        loaded: dict[str, list[Segment]] = {namespace: [] for namespace in self.by_namespace}
        for namespace in documents.namespaces():
            own = retention.by_namespace(namespace)
            present = {segment.record: segment for segment in self.by_namespace.get(namespace, ())}
            segments: list[Segment] = []
            last = 0
            for record in records.get(namespace, ()):
                segment = present.get(record) or self._opened(directory, record)
                if segment is not None and not _is_allowed(segment, own):
                    segment = None
                if segment is not None and self.shared_after > 1 and segment.group_keys is None:
                    groups = documents.groups(record.first, record.last, namespace=namespace)
                    segment = replace(segment, group_keys=group_keys(groups))
                if segment is None:
                    stored = documents.read(record.first, record.last, namespace=namespace)
                    segments += self._sorted(stored, own)
                else:
                    segments.append(segment)
                last = record.last
            memtable = present.get(None) if keep_memtables else None
            if memtable is None or not _has_all_documents(memtable, documents, last):
                segments += self._sorted(documents.read(last + 1, namespace=namespace), own)
            else:
                segments.append(memtable)
            loaded[namespace] = segments
        return loaded

    def _opened(self, directory: Path, record: SegmentRecord) -> Segment | None:
        """Return the segment in files of a record; None: they are missing or damaged."""
        try:
            return open_segment(directory, record, self.vocabulary_size, verify=True)
        except DatastoreError:
            return None

    def _sorted(self, documents: Iterable[DocumentRecord], retention: Retention) -> list[Segment]:
        batches = retention.batches(documents, token_width(self.vocabulary_size))
        return [sorted_segment(batch, self.vocabulary_size) for batch in batches]


class _ReaderSnapshots:
    """The snapshots of a namespace by the group that reads it.

    Attributes:
        present: those that sessions hold, and the latest.
        latest: held for later queries.
    """

    def __init__(self) -> None:
        self.present: weakref.WeakValueDictionary[str, Snapshot] = weakref.WeakValueDictionary()
        self.latest: deque[Snapshot] = deque(maxlen=_MAX_IDLE_READERS)


def _is_allowed(segment: Segment, retention: Retention) -> bool:
    """Return whether a segment is no larger than its namespace allows."""
    if segment.document_count == 1:
        return True
    if segment.position_count > retention.max_segment_positions:
        return False
    return retention.allows_times(segment.oldest, segment.newest)


def _has_all_documents(memtable: Segment, documents: Documents, after: int) -> bool:
    """Return whether a memtable holds the documents of its namespace after number `after`."""
    extent = documents.extent(memtable.namespace, after)
    return extent == (memtable.document_count, memtable.last)


def _empty_view(vocabulary_size: int) -> ShardView:
    """Return a shard without tokens, since kernels need at least one shard."""
    width = token_width(vocabulary_size)
    separator = np.full(width, 0xFF, np.uint8)
    return ShardView(
        symbols=np.concatenate([separator, np.zeros(TAIL_SIZE, np.uint8)]),
        keys=np.zeros(0, np.uint8),
        entries=np.zeros(TAIL_SIZE, np.uint8),
        position_count=1,
        entry_count=0,
        key_count=0,
        width=width,
        bits=1,
    )
