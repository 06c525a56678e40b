"""The files of a writer's segments."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from rest_store.live.documents import SegmentRecord
from rest_store.live.segment import Segment, remove_files, write_segment


class SegmentFiles:
    """Writes and removes the files of segments. Thread-safe.

    Args:
        directory: where they are.
        vocabulary_size: ids are `0 .. vocabulary_size - 1`.

    Attributes:
        leftovers: names of those that could not be removed.
    """

    def __init__(self, directory: Path, vocabulary_size: int) -> None:
        self.leftovers: set[str] = set()
        self._directory = directory
        self._vocabulary_size = vocabulary_size

    def write(self, segment: Segment) -> Segment:
        """Return a segment in files, under a new name; raises what `write_segment` does."""
        return write_segment(segment, self._directory, f"segment-{uuid4().hex}", self._vocabulary_size)

    def remove(self, records: Iterable[SegmentRecord]) -> None:
        """Remove files; those that cannot be removed are kept in mind."""
        self._remove({record.name for record in records})

    def remove_leftovers(self) -> None:
        """Try again to remove what could not be removed."""
        self._remove(set(self.leftovers))

    def remove_all_but(self, records: Iterable[SegmentRecord]) -> None:
        """Remove the files of other segments: of a process that was killed."""
        names = {path.stem for path in self._directory.glob("segment-*.*")}
        self._remove(names - {record.name for record in records})

    def _remove(self, names: set[str]) -> None:
        for name in names:
            self.leftovers.add(name)
            with suppress(OSError):
                remove_files(self._directory, name)
                self.leftovers.discard(name)


def records_of(segments: Iterable[Segment]) -> list[SegmentRecord]:
    """Return the records of those of `segments` that are in files."""
    return [segment.record for segment in segments if segment.record is not None]
