"""How much a live datastore keeps, how old documents are, and how
large segments may be: whole ones are evicted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rest_store.datastore.validation import check_int, real
from rest_store.errors import ArgumentError, describe

if TYPE_CHECKING:
    from rest_store.live.segment import Segment
    from rest_store.live.upstream import DocumentRecord

_MEMTABLE = 1 << 12  # positions that are sorted anew with each addition
_MAX_SEGMENT_POSITIONS = 1 << 24  # positions of a segment: sorting them takes some seconds
_COMMIT = 1 << 20  # positions of one commit
_MIN_SEGMENTS = 8  # that a datastore with limits has at least


@dataclass(frozen=True)
class Retention:
    """How much a namespace keeps; None: no limit.

    Attributes:
        max_tokens: most tokens. The oldest documents beyond it are evicted, an eighth at most at
            once.
        max_age: most seconds that a document is kept. It may be evicted an eighth of that earlier.
        max_epochs: epochs that are kept: so many up to the greatest that there is.
    """

    max_tokens: int | None = None
    max_age: float | None = None
    max_epochs: int | None = None

    @classmethod
    def checked(cls, max_tokens: Any, max_age: Any, max_epochs: Any) -> Retention:
        """Return limits as they are stored.

        Raises:
            ArgumentError: one is neither None nor positive: whole numbers of tokens and epochs, and
                seconds.
        """
        tokens = (
            None
            if max_tokens is None
            else check_int("max_tokens", max_tokens, 2**62, where="live datastore")
        )
        epochs = (
            None
            if max_epochs is None
            else check_int("max_epochs", max_epochs, 2**62, where="live datastore")
        )
        age = None if max_age is None else real(max_age)
        if age is not None and not 0 < age < 2**62:
            raise ArgumentError(
                describe("live datastore", "max_age", repr(max_age), "None or positive seconds")
            )
        return cls(tokens, age, epochs)

    @property
    def largest(self) -> int:
        """Positions of a segment, unless it holds a single document."""
        return (
            _MAX_SEGMENT_POSITIONS
            if self.max_tokens is None
            else max(1, min(_MAX_SEGMENT_POSITIONS, self.max_tokens // _MIN_SEGMENTS))
        )

    @property
    def memtable(self) -> int:
        """Positions from which on the memtable is flushed."""
        return min(_MEMTABLE, self.largest)

    def may_span(self, oldest: float, newest: float) -> bool:
        """Return whether documents added at these times may be in one segment."""
        return self.max_age is None or abs(newest - oldest) <= self.max_age / _MIN_SEGMENTS

    def batches(
        self, documents: Iterable[DocumentRecord], width: int
    ) -> Iterator[list[DocumentRecord]]:
        """Yield documents in lists that may each become a segment.

        Args:
            documents: in the order of their numbers.
            width: bytes of a token.
        """
        batch: list[DocumentRecord] = []
        size, most = 0, min(_COMMIT, self.largest)
        for document in documents:
            positions = len(document.symbols) // width + 1
            if batch and (
                size + positions > most or not self.may_span(batch[0].added, document.added)
            ):
                yield batch
                batch, size = [], 0
            batch.append(document)
            size += positions
        if batch:
            yield batch


class Limits:
    """How much each namespace keeps.

    Args:
        stored: what was set for each namespace; what is None there is as set for the namespace "".
    """

    def __init__(self, stored: Mapping[str, Retention] | None = None) -> None:
        stored = stored or {}
        self._default = stored.get("", Retention())
        self._own = {
            name: Retention(
                own.max_tokens or self._default.max_tokens,
                own.max_age or self._default.max_age,
                own.max_epochs or self._default.max_epochs,
            )
            for name, own in stored.items()
        }

    def of(self, namespace: str) -> Retention:
        """Return how much a namespace keeps."""
        return self._own.get(namespace, self._default)

    def kept(self, segments: Sequence[Segment], clock: Clock) -> list[Segment]:
        """Return the segments of a namespace without those too old,
        and the first of those that are too much.
        """
        kept: list[Segment] = []
        total = 0
        for segment in reversed(segments):
            retention = self.of(segment.namespace)
            if retention.max_age is not None and clock.age(segment.oldest) >= retention.max_age:
                continue
            total += segment.token_count
            if retention.max_tokens is None or total <= retention.max_tokens:
                kept.append(segment)
        return kept[::-1]

    @property
    def least_age(self) -> float:
        """The smallest `max_age` of all; infinite if there is none."""
        return min(
            (some.max_age for some in self._own.values() if some.max_age is not None),
            default=math.inf,
        )


class Clock:
    """Seconds since 1970 that go on evenly when the system's clock
    is set, and the ages of documents by them.

    They go on from `last`, the time of the newest document, if the system's clock is behind that,
    or so far ahead that all documents would be too old: `longest` seconds or more. Then the clock
    is wrong, or the machine was off for long; nobody can tell which, and documents that are kept
    for too long do less harm than documents that are lost.

    Where they are ahead of the system's clock by less than `longest`, that was ahead when the
    newest documents were added: their times are in the future, which counts as now, and the
    documents before them are younger by as much.
    """

    def __init__(self, last: float, longest: float) -> None:
        now = time.time()
        self._longest = longest
        self._began = last if last and not last <= now < last + longest else now
        self._offset = self._began - _even_seconds()

    def now(self) -> float:
        """Return the time that a document has which is added now."""
        return self._offset + _even_seconds()

    def age(self, added: float) -> float:
        """Return the seconds since a document was added."""
        ahead = self.now() - time.time()
        if added < self._began and 0 < ahead < self._longest:
            added = min(added + ahead, self._began)
        return self.now() - added


def _even_seconds() -> float:
    # The first counts sleep, too.
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
