"""The segments of what is stored: open already, from their files, or sorted from the documents."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path

from rest_store.datastore.header import token_width
from rest_store.errors import DatastoreError, MissingShardError
from rest_store.live.documents import Documents, SegmentRecord, State
from rest_store.live.segment import Segment, open_segment, segment_of
from rest_store.live.segments import Bounds


def stored_segments(
    directory: Path,
    documents: Documents,
    state: State,
    opened: Sequence[Segment],
    bounds: Bounds,
    vocabulary_size: int,
    *,
    verify: bool,
    removed_meanwhile: bool = False,
) -> Iterator[tuple[SegmentRecord | None, Segment]]:
    """Yield the segments of all documents, oldest first, each with the record of the files that hold them.

    What is in files that are damaged or missing, or larger than `bounds` allow, is sorted anew: it comes in memory, in
    one segment or more, with that record.

    Args:
        directory: of the live datastore.
        documents: its documents, which do not change meanwhile.
        state: what is stored.
        opened: segments that were opened before and hold no document that was deleted since.
        bounds: how large segments may be.
        vocabulary_size: ids are `0 .. vocabulary_size - 1`.
        verify: whether to read the files of segments that were not opened before, and compare their checksums.
        removed_meanwhile: whether a missing file means that another process has removed it since.

    Raises:
        MissingShardError: a file is missing, if it may be `removed_meanwhile`.
        StorageError: documents cannot be read.
    """
    width = token_width(vocabulary_size)
    known = defaultdict[SegmentRecord | None, list[Segment]](list)
    for segment in opened:
        known[segment.record].append(segment)

    def sorted_anew(first: int, last: int | None = None) -> Iterator[Segment]:
        for batch in bounds.batches(documents.read(first, last), width, attrgetter("added")):
            yield segment_of(batch, vocabulary_size)

    for record in state.records:
        parts: Iterable[Segment] = known[record]
        if not parts:
            try:
                segment = open_segment(directory, record, vocabulary_size, verify=verify)
                parts = [segment] if bounds.allow(segment) else sorted_anew(record.first, record.last)
            except DatastoreError as error:
                if removed_meanwhile and isinstance(error, MissingShardError):
                    raise
                parts = sorted_anew(record.first, record.last)
        yield from ((record, part) for part in parts)
    next_number = max([state.first, *(record.last + 1 for record in state.records)])
    in_memory = [segment for segment in known[None] if segment.span.first >= next_number]
    if in_memory:
        yield from ((None, segment) for segment in sorted_anew(next_number, in_memory[0].span.first - 1))
        yield from ((None, segment) for segment in in_memory)
        next_number = in_memory[-1].span.last + 1
    yield from ((None, segment) for segment in sorted_anew(next_number))
