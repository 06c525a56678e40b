"""Compaction: the choice of the segments that are merged next."""

from __future__ import annotations

from collections.abc import Sequence

from rest_store.live.retention import Retention
from rest_store.live.segment import Segment

# With a ratio of 2, tokens would be sorted as often, and there would be twice as many segments.
_MAX_SIZE_RATIO = 4
# From a run of this many segments on, compaction is behind. Each addition then waits, which leaves
# cores to compaction.
MAX_BACKLOG = 4
STALL_SECONDS = 0.02


def segments_to_merge(
    segments: Sequence[Segment], retention: Retention, *, whole: bool = False
) -> list[Segment]:
    """Return consecutive segments that are to become one; [] if there are none.

    An older segment joins the run if it is no larger than four times all newer ones of the run
    together. So sizes grow geometrically with age: there are few segments, and each token is sorted
    a logarithmic number of times.

    Args:
        segments: the segments of a namespace in files, oldest first.
        retention: how large segments may be.
        whole: older segments join however large they are.
    """
    for end in range(len(segments), 1, -1):
        start = end - 1
        positions = segments[start].position_count
        while start > 0:
            older = segments[start - 1]
            if positions + older.position_count > retention.max_segment_positions:
                break
            if older.position_count > _MAX_SIZE_RATIO * positions and not whole:
                break
            if not retention.allows_times(older.oldest, segments[end - 1].newest):
                break
            start -= 1
            positions += older.position_count
        if end - start > 1:
            return list(segments[start:end])
    return []
