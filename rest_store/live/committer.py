"""How a change of a live datastore becomes durable and visible: `Committer`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from threading import Lock

from rest_store.errors import DatastoreClosedError, describe
from rest_store.live.clock import Clock
from rest_store.live.documents import Documents
from rest_store.live.records import Changes, DocumentRecord, SegmentRecord
from rest_store.live.retention import RetentionTable
from rest_store.live.segment import Segment
from rest_store.live.segment_builder import SegmentBuilder
from rest_store.live.segments import Segments


class Committer:
    """Commits each change to SQLite first, and publishes it to queries then. Thread-safe.

    A change happens within `change`, which is short. It computes the segments of the datastore
    after the change (`SegmentBuilder`), and calls `commit_with_evictions`. Segments whose documents
    exceed the retention are evicted there, in the same transaction.

    If a change ends with an error or an interrupt, nobody knows whether it was committed. The next
    change therefore begins by loading the stored segments.

    Args:
        directory: the directory of the datastore.
        documents: the stored documents. The holder of `change` uses them.
        segments: the segments that queries read.
        builder: makes segments.
        evicts: whether retention evicts. False: it is a replica, which keeps everything that its
            upstream keeps.

    Attributes:
        sorting: held while segments in files are sorted again. It is taken before `change`.
        documents: as above.
        segments: as above.
        retention: how much each namespace keeps.
    """

    retention: RetentionTable

    def __init__(
        self,
        directory: Path,
        documents: Documents,
        segments: Segments,
        builder: SegmentBuilder,
        *,
        evicts: bool,
    ) -> None:
        self._directory = directory
        self.documents = documents
        self.segments = segments
        self._builder = builder
        self._evicts = evicts
        self.sorting = Lock()
        self._changing = Lock()
        self._is_closed = False
        self._may_differ_from_disk = False
        self.load_retention()

    def close(self) -> None:
        """Wait for the change in progress, and unmap all segments."""
        with self._changing:
            self._is_closed = True
            self.segments.close()

    def require_open(self) -> None:
        """Raise DatastoreClosedError after `close`."""
        if self._is_closed:
            raise DatastoreClosedError(describe(self._directory, "the datastore", "closed", "open"))

    def present(self, namespace: str) -> Sequence[Segment]:
        """Return the present segments of a namespace."""
        return self.segments.by_namespace.get(namespace, ())

    def retained(self, segments: Sequence[Segment]) -> list[Segment]:
        """Return the segments of a namespace that are not to be evicted."""
        if not self._evicts:
            return list(segments)
        return self.retention.retained(segments, self._clock)

    # --- Methods that the holder of `change` calls ------------------------------------------------

    @contextmanager
    def change(self) -> Iterator[None]:
        """Within the block, let no other thread change the stored and the published state."""
        with self._changing:
            self.require_open()
            if self._may_differ_from_disk:
                self.load_segments()
            self._may_differ_from_disk = True
            yield
            self._may_differ_from_disk = False

    def now(self) -> float:
        """Return the time of a document that is added now."""
        return self._clock.now()

    def load_retention(self) -> None:
        """Read the stored retention, and begin a clock at the newest document's time.

        So a wrong system clock does not evict everything.
        """
        self.retention = self.documents.retention()
        self._clock = Clock(self.documents.newest_time(), self.retention.shortest_age)

    def load_segments(self) -> None:
        """Publish the stored segments. Damaged and missing ones are sorted again and flushed."""
        self.segments.shared_after = self.documents.shared_after()
        loaded = self.segments.load(self._directory, self.documents, self.retention)
        for namespace, segments in loaded.items():
            retention = self.retention.by_namespace(namespace)
            loaded[namespace] = self._builder.flush_all_but_memtable(segments, retention)
        self.commit_with_evictions(loaded, stored_records=set(self.documents.segment_records()))

    def commit_with_evictions(
        self,
        changed: Mapping[str, Sequence[Segment]],
        *,
        added: Sequence[DocumentRecord] = (),
        removed: Sequence[int] = (),
        deleted: bool = False,
        stored_records: Set[SegmentRecord] | None = None,
    ) -> None:
        """Commit a change of this datastore and its evictions, and publish both.

        Args:
            changed: for each namespace with other segments, all of its segments after the change.
            added: new documents of one namespace.
            removed: numbers of removed documents.
            deleted: whether the removed documents were deleted; False: they were evicted.
            stored_records: as in `commit`.
        """
        retained: dict[str, list[Segment]] = {}
        evicted: list[Segment] = []
        for namespace, segments in changed.items():
            retained[namespace] = self.retained(segments)
            evicted += set(segments).difference(retained[namespace])
        if added and changed[added[0].namespace][-1] in evicted:
            added = ()  # the new documents alone exceed a retention that was lowered meanwhile

        def plan() -> Changes:
            newest = added[-1].number if added else self.documents.newest()
            spans = [(segment.namespace, segment.first, segment.last) for segment in evicted]
            removals = self.documents.plan_removals(removed, spans, newest, deleted=deleted)
            if removals:
                newest = removals[-1].number
            return Changes(
                datastore_id="", first=0, last=newest, head=newest, added=added, removed=removals
            )

        self.commit(plan, retained, stored_records)

    def commit(
        self,
        plan: Callable[[], Changes],
        segments: Mapping[str, Sequence[Segment]],
        stored_records: Set[SegmentRecord] | None = None,
    ) -> None:
        """Commit changes and publish their segments.

        Args:
            plan: returns the changes. If it fails, the files of new segments are removed.
            segments: for each namespace with other segments, all of its segments after the change.
            stored_records: the segment records of these namespaces before the change; None: those
                of the present segments.
        """
        if stored_records is None:
            stored_records = _records(chain.from_iterable(map(self.present, segments)))
        records = _records(chain.from_iterable(segments.values()))
        new = records - stored_records
        obsolete = stored_records - records
        try:
            changes = plan()
            self.documents.commit(changes, obsolete, new)
        except BaseException:
            self._builder.remove_files(record.name for record in new)
            raise
        self.segments.publish(segments, changes.last)
        # Readers that still use obsolete files have them mapped.
        self._builder.remove_files(record.name for record in obsolete)

    def clean(self) -> None:
        """Overwrite the remains of deleted documents, and remove the files of failed changes.

        The caller holds `sorting`, too.
        """
        self._builder.remove_other_files(record.name for record in _records(self.segments.all))
        self.documents.clean()


def _records(segments: Iterable[Segment]) -> set[SegmentRecord]:
    """Return the records of those segments that are in files."""
    return {segment.record for segment in segments if segment.record is not None}
