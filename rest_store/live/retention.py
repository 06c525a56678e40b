"""How much a live datastore keeps, and how large its segments may be.

Eviction removes whole segments. So that little is evicted too early, a segment holds at most an
eighth of the tokens, and of the time, that a namespace keeps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rest_store.datastore.validation import check_int, real
from rest_store.errors import ArgumentError, describe
from rest_store.live.clock import Clock

if TYPE_CHECKING:
    from rest_store.live.records import DocumentRecord
    from rest_store.live.segment import Segment

_MAX_MEMTABLE_POSITIONS = 1 << 12  # each addition sorts the whole memtable again
_MAX_SEGMENT_POSITIONS = 1 << 24  # sorting a segment of this size takes some seconds
_MAX_COMMIT_POSITIONS = 1 << 22  # documents of one commit; sorting them takes half a second
_MIN_SEGMENTS = 8  # in a namespace that evicts
_MAX_BOUND = 2**62  # of tokens, epochs and seconds


@dataclass(frozen=True)
class Retention:
    """How much a namespace keeps. None: all.

    Attributes:
        max_tokens: the most tokens. The oldest documents beyond it are evicted, and up to an eighth
            of `max_tokens` with them.
        max_age: the most seconds that a document is kept. It may be evicted an eighth earlier.
        max_epochs: how many epochs are kept, up to the greatest epoch of a document.
    """

    max_tokens: int | None = None
    max_age: float | None = None
    max_epochs: int | None = None

    @classmethod
    def parse(cls, max_tokens: Any, max_age: Any, max_epochs: Any) -> Retention:
        """Return the retention that a caller asks for.

        Raises:
            ArgumentError: an argument is neither None nor positive, or `max_tokens` or `max_epochs`
                is not a whole number.
        """
        return cls(
            _positive_int("max_tokens", max_tokens),
            _positive_seconds("max_age", max_age),
            _positive_int("max_epochs", max_epochs),
        )

    def or_else(self, default: Retention) -> Retention:
        """Return this retention, with the fields of `default` where this one has None."""
        return Retention(
            self.max_tokens or default.max_tokens,
            self.max_age or default.max_age,
            self.max_epochs or default.max_epochs,
        )

    @property
    def max_segment_positions(self) -> int:
        """The most positions of a segment with several documents."""
        if self.max_tokens is None:
            return _MAX_SEGMENT_POSITIONS
        return max(1, min(_MAX_SEGMENT_POSITIONS, self.max_tokens // _MIN_SEGMENTS))

    @property
    def max_memtable_positions(self) -> int:
        """A memtable of this size or more is flushed."""
        return min(_MAX_MEMTABLE_POSITIONS, self.max_segment_positions)

    def allows_times(self, oldest: float, newest: float) -> bool:
        """Return whether one segment may hold documents that were added at these times."""
        return self.max_age is None or abs(newest - oldest) <= self.max_age / _MIN_SEGMENTS

    def batches(
        self, documents: Iterable[DocumentRecord], width: int
    ) -> Iterator[list[DocumentRecord]]:
        """Yield documents in lists. Each list may become a segment, and is committed at once.

        Args:
            documents: documents of one namespace, by number.
            width: bytes of a token.
        """
        max_positions = min(_MAX_COMMIT_POSITIONS, self.max_segment_positions)
        batch: list[DocumentRecord] = []
        size = 0
        for document in documents:
            positions = len(document.symbols) // width + 1
            if batch:
                is_too_large = size + positions > max_positions
                if is_too_large or not self.allows_times(batch[0].added, document.added):
                    yield batch
                    batch = []
                    size = 0
            batch.append(document)
            size += positions
        if batch:
            yield batch


class RetentionTable:
    """The retention of each namespace.

    Args:
        stored: the retention that was set for each namespace. A field that is None is that of the
            namespace "", which is the default.
    """

    def __init__(self, stored: Mapping[str, Retention] | None = None) -> None:
        stored = stored or {}
        self._default = stored.get("", Retention())
        self._own = {name: own.or_else(self._default) for name, own in stored.items()}

    def by_namespace(self, namespace: str) -> Retention:
        """Return the retention of a namespace."""
        return self._own.get(namespace, self._default)

    def retained(self, segments: Sequence[Segment], clock: Clock) -> list[Segment]:
        """Return the segments of a namespace that stay.

        A segment is evicted if one of its documents is too old, or if it and the newer segments
        that are young enough have more than `max_tokens`.

        Args:
            segments: the oldest first.
            clock: tells the age of documents.
        """
        retained: list[Segment] = []
        total = 0
        for segment in reversed(segments):
            retention = self.by_namespace(segment.namespace)
            if retention.max_age is not None and clock.age(segment.oldest) >= retention.max_age:
                continue
            total += segment.token_count
            if retention.max_tokens is None or total <= retention.max_tokens:
                retained.append(segment)
        retained.reverse()
        return retained

    @property
    def shortest_age(self) -> float:
        """The smallest `max_age` of all namespaces; infinite if there is none."""
        ages = (own.max_age for own in self._own.values() if own.max_age is not None)
        return min(ages, default=math.inf)


def _positive_int(name: str, value: Any) -> int | None:
    """Return `value` if it is None or a whole number from 1 on, else raise ArgumentError."""
    if value is None:
        return None
    return check_int(name, value, _MAX_BOUND, where="live datastore")


def _positive_seconds(name: str, value: Any) -> float | None:
    """Return `value` if it is None or a number above 0, else raise ArgumentError."""
    if value is None:
        return None
    seconds = real(value)
    if not 0 < seconds < _MAX_BOUND:
        raise ArgumentError(
            describe("live datastore", name, repr(value), "None or positive seconds")
        )
    return seconds
