"""Compaction: which segments are merged next, and how long additions wait for it."""

from __future__ import annotations

from collections.abc import Sequence

from rest_store.live.retention import Retention
from rest_store.live.segment import Segment

_RATIO = 4  # with 2 each token would be sorted as often, and there would be twice the segments
_FEW = 2  # segments that one merge joins while merging keeps up
_STALL = 0.008  # seconds that additions wait for each further one
_LONGEST_STALL = 0.03


def segments_to_merge(segments: Sequence[Segment], retention: Retention, *, whole: bool = False) -> list[Segment]:
    """Return segments that follow one another and are to become one; [] if there are none.

    Each older segment joins if it is no larger than four times all newer ones of the run together. So sizes grow
    geometrically with age: there are few segments, and each token is sorted a logarithmic number of times.

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


def stall(segments: Sequence[Segment], retention: Retention) -> float:
    """Return the seconds that an addition is to wait: 0 while compaction keeps up.

    Queries take longer the more segments there are. The stall grows with the number of those that are to be merged, and
    leaves cores to compaction. It is short: no addition waits for the end of a merge.
    """
    return min(_LONGEST_STALL, _STALL * max(0, len(segments_to_merge(segments, retention)) - _FEW))
