"""The deletion of documents: the segments that hold them, sorted anew without them."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from rest_store.live.documents import Documents
from rest_store.live.segment import Segment, segment_of
from rest_store.live.segment_files import SegmentFiles


class Deletion:
    """Prepares the segments that a deletion leaves, so that the deletion itself is short.

    Args:
        ids: of the documents.
        files: of the segments.
        vocabulary_size: ids of tokens are `0 .. vocabulary_size - 1`.

    Attributes:
        new_segments: those that were sorted so far.
    """

    def __init__(self, ids: Sequence[str], files: SegmentFiles, vocabulary_size: int) -> None:
        self.new_segments: list[Segment] = []
        self._ids = list(dict.fromkeys(ids))
        self._files = files
        self._vocabulary_size = vocabulary_size
        self._parts: dict[Segment, list[Segment]] = {}  # what is left of each segment

    def numbers(self, documents: Documents) -> list[int]:
        """Return the numbers of the documents that are stored, ascending; evicted ones included."""
        return sorted(documents.numbers(self._ids).values())

    def left(self, segments: Sequence[Segment], documents: Documents) -> list[Segment]:
        """Return what is left of `segments`, sorting what was not sorted before.

        Raises:
            StorageError: `documents` cannot be read, or segments cannot be written.
        """
        numbers = self.numbers(documents)
        for segment in segments:
            if segment not in self._parts and _holds(segment, numbers):
                self._parts[segment] = self._without(segment, set(numbers), documents)
        return [part for segment in segments for part in self._parts.get(segment, [segment])]

    def _without(self, segment: Segment, numbers: set[int], documents: Documents) -> list[Segment]:
        """Return `segment` without some of its documents: one segment, in files as it is; none if nothing is left."""
        stored = documents.read(segment.span.first, segment.span.last)
        left = [document for document in stored if document.number not in numbers]
        if not left:
            return []
        part = segment_of(left, self._vocabulary_size)
        self.new_segments.append(part if segment.record is None else self._files.write(part))
        return self.new_segments[-1:]


def _holds(segment: Segment, numbers: Sequence[int]) -> bool:
    """Return whether any of `numbers`, ascending, are of documents of `segment`."""
    return bisect_left(numbers, segment.span.first) < bisect_right(numbers, segment.span.last)
