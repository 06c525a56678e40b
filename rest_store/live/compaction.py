"""Compaction: which segments are merged next, and when additions wait for it."""

from __future__ import annotations

from collections.abc import Sequence

from rest_store.live.retention import Retention
from rest_store.live.segment import Segment

_RATIO = 4  # with 2 each token would be sorted as often, and there would be twice the segments
BACKLOG = 4  # segments to be merged from which on merging does not keep up with additions
STALL = 0.02  # seconds that each addition waits then, which leaves cores to compaction


def segments_to_merge(
    segments: Sequence[Segment], retention: Retention, *, whole: bool = False
) -> list[Segment]:
    """Return segments that follow one another and are to become one; [] if there are none.

    Each older segment joins if it is no larger than four times all newer ones of the run together.
    So sizes grow geometrically with age: there are few segments, and each token is sorted a
    logarithmic number of times.

    Args:
        segments: those in files, oldest first.
        retention: how large segments may be.
        whole: join older segments however large they are.
    """
    for end in range(len(segments), 1, -1):
        start = end - 1
        total = segments[start].position_count
        while start > 0:
            older = segments[start - 1]
            if total + older.position_count > retention.largest:
                break
            if older.position_count > _RATIO * total and not whole:
                break
            if not retention.may_span(older.oldest, segments[end - 1].newest):
                break
            start -= 1
            total += older.position_count
        if end - start > 1:
            return list(segments[start:end])
    return []
