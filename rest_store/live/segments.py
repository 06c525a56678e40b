"""The segments of a live datastore at present, and how they are made of what is stored."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TypeVar

import numpy as np

from rest_store.datastore.header import TAIL_SIZE, token_width
from rest_store.datastore.shard import ShardView
from rest_store.datastore.store import Snapshot
from rest_store.errors import DatastoreError
from rest_store.live.documents import Documents, SegmentRecord
from rest_store.live.retention import Limits, Retention
from rest_store.live.segment import Segment, open_segment, sorted_segment
from rest_store.live.upstream import DocumentRecord

Item = TypeVar("Item", Segment, SegmentRecord, DocumentRecord)


class Segments:
    """The present segments, and the snapshots over them. Others may
    read it while one thread changes it.

    Args:
        vocabulary_size: ids are `0 .. vocabulary_size - 1`.

    Attributes:
        of: the segments of each namespace that has any, oldest first; only the last one may be in
            memory: its memtable. Another mapping after each change.
        newest: number of the newest change that they hold.
    """

    def __init__(self, vocabulary_size: int) -> None:
        self.vocabulary_size = vocabulary_size
        self.of: Mapping[str, tuple[Segment, ...]] = {}
        self.newest = 0
        self._is_closed = False
        self._changed = threading.Condition()
        self._nothing = Snapshot.from_views([_empty_view(vocabulary_size)], vocabulary_size)
        self._snapshots: dict[str, Snapshot] = {}

    @property
    def all(self) -> list[Segment]:
        """The segments of all namespaces."""
        return [*chain(*self.of.values())]

    def snapshot(self, namespace: str = "") -> Snapshot:
        """Return what queries of a namespace read."""
        return self._snapshots.get(namespace, self._nothing)

    def set(self, changed: Mapping[str, Sequence[Segment]], newest: int) -> None:
        """Have queries read the segments after change number `newest` from now on.

        Args:
            changed: all of each namespace that has others than before.
            newest: number of the change.
        """
        of, snapshots = {**self.of}, {**self._snapshots}
        for namespace, some in changed.items():
            if tuple(some) == of.get(namespace):
                continue
            if some:
                of[namespace] = tuple(some)
                snapshots[namespace] = Snapshot.from_views(
                    [segment.view for segment in some], self.vocabulary_size
                )
            else:
                of.pop(namespace, None)
                snapshots.pop(namespace, None)
        with self._changed:
            self.of, self._snapshots, self.newest = of, snapshots, newest
            self._changed.notify_all()

    def close(self) -> None:
        """Keep no files mapped, and have nobody wait."""
        self._is_closed = True
        self.set(dict.fromkeys(self.of, ()), self.newest)

    def wait(self, after: int, timeout: float) -> bool:
        """Wait until there are changes after number `after`, or `close`.

        Return whether there are within `timeout`.
        """
        with self._changed:
            self._changed.wait_for(lambda: self.newest > after or self._is_closed, timeout)
            return self.newest > after

    def stored(
        self, directory: Path, documents: Documents, limits: Limits, *, may_keep: bool = False
    ) -> dict[str, list[Segment]]:
        """Return the segments of all documents that are stored, as in `of`.

        [] for namespaces that have none any more.

        Documents that are in no file are sorted in memory, and so are those of files that are
        damaged or missing, or larger than `limits` allow. Files that are not present yet are read,
        to compare their checksums.

        Args:
            directory: of the live datastore.
            documents: its documents, which do not change meanwhile.
            limits: how large segments may be.
            may_keep: whether present memtables stay that have the same documents: `documents` is
                what it was, but for changes since.

        Raises:
            StorageError: documents cannot be read.
        """
        records = by_namespace(documents.records())
        stored: dict[str, list[Segment]] = {namespace: [] for namespace in self.of}
        for namespace in documents.namespaces():
            retention, segments = limits.of(namespace), []
            present = {segment.record: segment for segment in self.of.get(namespace, ())}
            last = 0
            for record in records.get(namespace, ()):
                last = record.last
                fits = retention.may_span(record.oldest, record.newest)
                try:
                    segment = present.get(record) or open_segment(
                        directory, record, self.vocabulary_size, verify=True
                    )
                    fits = (
                        fits and segment.position_count <= retention.largest
                    ) or segment.document_count == 1
                except DatastoreError:
                    fits = False
                if fits:
                    segments.append(segment)
                else:
                    segments += self._sorted(
                        documents.read(record.first, last, namespace=namespace), retention
                    )
            memtable = present.get(None) if may_keep else None
            if memtable and documents.extent(namespace, last) == (
                memtable.document_count,
                memtable.last,
            ):
                segments.append(memtable)
            else:
                segments += self._sorted(documents.read(last + 1, namespace=namespace), retention)
            stored[namespace] = segments
        return stored

    def _sorted(self, documents: Iterable[DocumentRecord], retention: Retention) -> list[Segment]:
        batches = retention.batches(documents, token_width(self.vocabulary_size))
        return [sorted_segment(batch, self.vocabulary_size) for batch in batches]


def by_namespace(items: Iterable[Item]) -> dict[str, list[Item]]:
    """Return what belongs to each namespace, in its order."""
    found: dict[str, list[Item]] = {}
    for item in items:
        found.setdefault(item.namespace, []).append(item)
    return found


def _empty_view(vocabulary_size: int) -> ShardView:
    """Return a shard without tokens: kernels need at least one shard."""
    width = token_width(vocabulary_size)
    symbols = np.concatenate([np.full(width, 0xFF, np.uint8), np.zeros(TAIL_SIZE, np.uint8)])
    nothing = np.zeros(0, np.uint8)
    return ShardView(symbols, nothing, np.zeros(TAIL_SIZE, np.uint8), 1, 0, 0, width, 1)
