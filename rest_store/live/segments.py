"""The segments of a live datastore at present, and how they are made of what is stored."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np

from rest_store.datastore.header import TAIL_SIZE, token_width
from rest_store.datastore.shard import ShardView
from rest_store.datastore.store import Snapshot
from rest_store.errors import DatastoreError
from rest_store.live.documents import Documents
from rest_store.live.retention import Limits, Retention
from rest_store.live.segment import Segment, open_segment, sorted_segment
from rest_store.live.upstream import DocumentRecord

Item = TypeVar("Item", Segment, DocumentRecord)


class Segments:
    """The present segments, and the snapshot over them. Others may read it while one thread changes it.

    Args:
        vocabulary_size: ids are `0 .. vocabulary_size - 1`.

    Attributes:
        all: the segments, oldest first; of each namespace, only the last one may be in memory: its memtable.
        newest: number of the newest change that they hold.
    """

    def __init__(self, vocabulary_size: int) -> None:
        self.vocabulary_size = vocabulary_size
        self.all: tuple[Segment, ...] = ()
        self.newest = 0
        self._is_closed = False
        self._changed = threading.Condition()
        self._nothing = Snapshot.of([_empty_view(vocabulary_size)], vocabulary_size)
        self._snapshots: dict[str, Snapshot] = {}

    def snapshot(self, namespace: str = "") -> Snapshot:
        """Return what queries of a namespace read."""
        return self._snapshots.get(namespace, self._nothing)

    def set(self, segments: Sequence[Segment], newest: int) -> None:
        """Have queries read `segments`, all that there are after change number `newest`, from now on."""
        # There may be thousands of namespaces that stay as they are.
        changed = {segment.namespace for segment in {*segments}.symmetric_difference(self.all)}
        snapshots = {name: snapshot for name, snapshot in self._snapshots.items() if name not in changed}
        for namespace, some in by_namespace(one for one in segments if one.namespace in changed).items():
            snapshots[namespace] = Snapshot.of([segment.view for segment in some], self.vocabulary_size)
        with self._changed:
            self.all, self._snapshots, self.newest = tuple(segments), snapshots, newest
            self._changed.notify_all()

    def close(self) -> None:
        """Keep no files mapped, and have nobody wait."""
        self._is_closed = True
        self.set((), self.newest)

    def wait(self, after: int, timeout: float) -> bool:
        """Wait until there are changes after number `after`, or `close`; return whether there are within `timeout`."""
        with self._changed:
            self._changed.wait_for(lambda: self.newest > after or self._is_closed, timeout)
            return self.newest > after

    def stored(
        self, directory: Path, documents: Documents, limits: Limits, *, may_keep: bool = False
    ) -> Iterator[Segment]:
        """Yield the segments of all documents that are stored, oldest first within each namespace.

        Documents that are in no file are sorted in memory, and so are those of files that are damaged or missing, or
        larger than `limits` allow. Files that are not present yet are read, to compare their checksums.

        Args:
            directory: of the live datastore.
            documents: its documents, which do not change meanwhile.
            limits: how large segments may be.
            may_keep: whether present memtables stay that have the same documents: `documents` is what it was, but for
                changes since.

        Raises:
            StorageError: documents cannot be read.
        """
        opened = {segment.record: segment for segment in self.in_files}
        last: dict[str, int] = {}
        for record in documents.records():
            last[record.namespace] = record.last
            retention = limits.of(record.namespace)
            fits = retention.may_span(record.oldest, record.newest)
            try:
                segment = opened.get(record) or open_segment(directory, record, self.vocabulary_size, verify=True)
                fits = (fits and segment.position_count <= retention.largest) or segment.document_count == 1
            except DatastoreError:
                fits = False
            if fits:
                yield segment
            else:
                rest = documents.read(record.first, record.last, namespace=record.namespace)
                yield from self._sorted(rest, retention)
        memtables = {segment.namespace: segment for segment in self.all if may_keep and segment.record is None}
        for namespace in documents.namespaces():
            after, memtable = last.get(namespace, 0), memtables.get(namespace)
            if memtable and documents.extent(namespace, after) == (memtable.document_count, memtable.last):
                yield memtable
            else:
                rest = documents.read(after + 1, namespace=namespace)
                yield from self._sorted(rest, limits.of(namespace))

    def _sorted(self, documents: Iterable[DocumentRecord], retention: Retention) -> Iterator[Segment]:
        for batch in retention.batches(documents, token_width(self.vocabulary_size)):
            yield sorted_segment(batch, self.vocabulary_size)

    @property
    def in_files(self) -> tuple[Segment, ...]:
        """The segments in files."""
        return tuple(segment for segment in self.all if segment.record is not None)


def by_namespace(items: Iterable[Item]) -> dict[str, list[Item]]:
    """Return the segments or documents of each namespace, in their order."""
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
