"""The process that writes a replica: `ReplicaWriter`."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path

from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.live.records import Changes, DocumentRecord, Removal, group_by_namespace
from rest_store.live.retention import Retention, RetentionTable
from rest_store.live.segment import Segment
from rest_store.live.segments import Segments
from rest_store.live.writer import Writer


class ReplicaWriter(Writer):
    """Writes the changes of an upstream into a replica. Thread-safe.

    It evicts nothing of its own accord.

    Args:
        directory: the directory of the replica; it exists.
        tokenizer: as in `Writer`.
        location: the location of the upstream.
        tokenizer_json: as in `Writer`.
        segments: the segments that queries read already; None: new ones.

    Raises:
        Those of `Writer`.
    """

    def __init__(
        self,
        directory: Path,
        tokenizer: TokenizerIdentity | None,
        location: str,
        tokenizer_json: str | None = None,
        segments: Segments | None = None,
    ) -> None:
        super().__init__(
            directory,
            tokenizer,
            Retention(),
            tokenizer_json=tokenizer_json,
            location=location,
            segments=segments,
        )

    def position(self) -> tuple[int, str]:
        """Return the number of the newest change, and the id of its datastore.

        If an earlier deletion left remains, they are removed first.
        """
        committer = self._committer
        with committer.sorting, committer.change():
            committer.clean()
            return committer.documents.newest(), committer.documents.datastore_id()

    def apply(self, changes: Changes) -> None:
        """Store and publish changes of the upstream.

        Args:
            changes: they follow the stored changes, or begin with 1 and replace everything.
        """
        committer = self._committer
        added = group_by_namespace(changes.added)
        self._compactor.stall(added)
        replaces_everything = changes.first == 1
        has_additions_only = not replaces_everything and not changes.removed
        # Additions do not change segments in files, so they need not wait for sorting.
        with nullcontext() if has_additions_only else committer.sorting, committer.change():
            self._set_shared_after(changes.shared_after)
            if replaces_everything:
                segments = self._segments_of(added)
            else:
                segments = self._segments_after(added, changes.removed)
            committer.commit(lambda: changes, segments)
            if replaces_everything or any(removal.deleted for removal in changes.removed):
                committer.clean()

    # --- Methods that the holder of `change` calls ------------------------------------------------

    def _set_shared_after(self, shared_after: int) -> None:
        """Share as the upstream does from now on."""
        if shared_after != self.segments.shared_after:
            self._committer.documents.set_shared_after(shared_after)
            self._committer.load_segments()

    def _segments_of(self, added: dict[str, list[DocumentRecord]]) -> dict[str, list[Segment]]:
        """Return the segments of a datastore with these documents alone, by namespace.

        Present namespaces without such documents have [].
        """
        segments: dict[str, list[Segment]] = {
            namespace: [] for namespace in self.segments.by_namespace
        }
        for namespace, documents in added.items():
            segments[namespace] = self._builder.add([], documents, self._retention_of(namespace))
        return segments

    def _segments_after(
        self, added: dict[str, list[DocumentRecord]], removals: Iterable[Removal]
    ) -> dict[str, list[Segment]]:
        """Return the segments after removals and additions, by namespace that changes."""
        deleted = self._existing_numbers(removal for removal in removals if removal.deleted)
        evicted = self._existing_numbers(removal for removal in removals if not removal.deleted)
        if evicted:
            self._follow_eviction()
        segments: dict[str, list[Segment]] = {}
        for namespace in {*deleted, *evicted, *added}:
            retention = self._retention_of(namespace)
            remaining = list(self._committer.present(namespace))
            numbers = sorted([*deleted.get(namespace, ()), *evicted.get(namespace, ())])
            if numbers:
                remaining = self._builder.remove(
                    remaining, numbers, retention, self._committer.documents
                )
            documents = added.get(namespace, [])
            segments[namespace] = self._builder.add(remaining, documents, retention)
        return segments

    def _existing_numbers(self, removals: Iterable[Removal]) -> dict[str, list[int]]:
        """Return the numbers of existing documents to remove, by namespace."""
        documents = self._committer.documents
        numbers: dict[str, list[int]] = {}
        for removal in removals:
            for namespace, number in documents.numbers_between(removal.first, removal.last):
                numbers.setdefault(namespace, []).append(number)
        return numbers

    def _follow_eviction(self) -> None:
        """Limit the size of segments, since the upstream evicts: set the retention.

        Then each of its evictions sorts few documents of this replica again. A replica of an
        upstream that never evicts has the largest segments.
        """
        total = sum(segment.token_count for segment in self.segments.all)
        max_tokens = max(total, self._retention_of("").max_tokens or 0)
        self._committer.retention = RetentionTable({"": Retention(max_tokens)})

    def _retention_of(self, namespace: str) -> Retention:
        return self._committer.retention.by_namespace(namespace)
