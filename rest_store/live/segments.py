"""The segments of a live datastore at present, oldest first, and which of them to merge next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np

from rest_store.datastore.header import TAIL_SIZE, token_width
from rest_store.datastore.shard_view import ShardView
from rest_store.datastore.store import Snapshot
from rest_store.datastore.validation import limit, real
from rest_store.errors import LimitError, describe
from rest_store.live.segment import Segment

_YOUNG = 1 << 12  # positions sorted anew with each addition
_SEALED = 1 << 20  # positions from which on a segment is written to files
_LARGEST = 1 << 24  # positions of a segment: sorting them takes some seconds
_COMMIT = 1 << 20  # positions of one commit
_RATIO = 4  # with 2 each token would be sorted as often, and there would be twice the segments
_FEW = 2  # segments that one merge joins while merging keeps up
_DELAY = 0.008  # seconds that additions are held back for each further one
_LONGEST_DELAY = 0.03
_LEAST_SEGMENTS = 8  # segments that a bounded datastore has at least, since whole ones are evicted


class _HasSymbols(Protocol):
    @property
    def symbols(self) -> bytes: ...


Item = TypeVar("Item", bound=_HasSymbols)


@dataclass(frozen=True)
class Bounds:
    """How much a live datastore keeps.

    Attributes:
        max_tokens: most tokens; None: no limit. The oldest documents beyond it are evicted, an eighth at most at once.
        max_age: most seconds that a document is kept; None: no limit. It may be evicted an eighth of that earlier.
    """

    max_tokens: int | None = None
    max_age: float | None = None

    @property
    def young(self) -> int:
        """Positions up to which the newest segment is sorted anew with each addition."""
        return min(_YOUNG, self.largest)

    @property
    def sealed(self) -> int:
        """Positions from which on segments are written to files."""
        return min(_SEALED, self.largest)

    @property
    def largest(self) -> int:
        """Positions of a segment, unless it holds a single document, or documents added in one commit."""
        return _LARGEST if self.max_tokens is None else max(1, min(_LARGEST, self.max_tokens // _LEAST_SEGMENTS))

    @property
    def commit(self) -> int:
        """Positions that are added in one commit, unless it is a single document."""
        return min(_COMMIT, self.largest)

    def may_join(self, first: Segment, last: Segment) -> bool:
        """Return whether segments may be merged from `first` to `last`: together they are evicted."""
        return self.may_span(first.span.oldest, last.span.newest)

    def allow(self, segment: Segment) -> bool:
        """Return whether `segment` is as small as these bounds ask for; it may have been made under others."""
        small = segment.position_count <= self.largest
        return segment.span.document_count == 1 or (small and self.may_join(segment, segment))

    def batches(
        self, documents: Iterable[Item], width: int, added: Callable[[Item], float] = lambda document: 0.0
    ) -> Iterator[list[Item]]:
        """Yield documents in lists that may each become a segment.

        Args:
            documents: in the order of their numbers.
            width: bytes of a token.
            added: when a document was added.
        """
        batch: list[Item] = []
        size = 0
        for document in documents:
            positions = len(document.symbols) // width + 1
            if batch and (size + positions > self.commit or not self.may_span(added(batch[0]), added(document))):
                yield batch
                batch, size = [], 0
            batch.append(document)
            size += positions
        if batch:
            yield batch

    def may_span(self, oldest: float, newest: float) -> bool:
        """Return whether documents added at these times may be in one segment."""
        return self.max_age is None or newest - oldest <= self.max_age / _LEAST_SEGMENTS


def checked_limits(max_tokens: Any, max_age: Any) -> tuple[int | None, float | None]:
    """Return each limit as it is stored, an int and a float.

    Raises:
        LimitError: one is neither None nor positive: a whole number of tokens, or seconds.
    """
    tokens = None if max_tokens is None else limit("max_tokens", max_tokens, 2**62, where="live datastore")
    if max_age is None:
        return tokens, None
    age = real(max_age)
    if not 0 < age < 2**62:
        raise LimitError(describe("live datastore", "max_age", repr(max_age), "None or positive seconds"))
    return tokens, age


class Segments:
    """The present segments, and the snapshot over them. Others may read it while one thread changes it.

    Args:
        vocabulary_size: ids are `0 .. vocabulary_size - 1`.

    Attributes:
        all: the segments, oldest first; those in files come before those in memory.
        snapshot: what queries read.
    """

    def __init__(self, vocabulary_size: int) -> None:
        self.vocabulary_size = vocabulary_size
        self.all: tuple[Segment, ...] = ()
        self._nothing = _empty_view(vocabulary_size)
        self.snapshot = Snapshot.of([self._nothing], vocabulary_size)

    def set(self, segments: Sequence[Segment], *, without_some: bool = True) -> None:
        """Have queries read `segments` from now on.

        Args:
            segments: all of them.
            without_some: whether they may lack documents that were there before.
        """
        views = [segment.view for segment in segments] or [self._nothing]
        snapshot = Snapshot.of(views, self.vocabulary_size)
        self.all, self.snapshot = tuple(segments), snapshot

    def replaced(self, old: Sequence[Segment], new: Segment) -> list[Segment] | None:
        """Return all segments with `new` in the place of `old`, which follow one another; None if some are gone."""
        if old[0] not in self.all:
            return None
        start = self.all.index(old[0])
        stop = start + len(old)
        return [*self.all[:start], new, *self.all[stop:]] if self.all[start:stop] == tuple(old) else None

    @property
    def in_files(self) -> tuple[Segment, ...]:
        """The segments in files."""
        return tuple(segment for segment in self.all if segment.record is not None)

    @property
    def in_memory(self) -> tuple[Segment, ...]:
        """The segments in memory."""
        return tuple(segment for segment in self.all if segment.record is None)


def to_seal(memory: Sequence[Segment], bounds: Bounds, *, whole: bool = False) -> list[Segment]:
    """Return the oldest of the segments in memory that are to become one in files; [] while there are too few.

    Args:
        memory: the segments in memory.
        bounds: of the datastore.
        whole: whether to seal them however few they are.
    """
    run: list[Segment] = []
    total = 0
    for segment in memory:
        if run and (total + segment.position_count > bounds.largest or not bounds.may_join(run[0], segment)):
            return run
        if total >= bounds.sealed:
            return run
        run.append(segment)
        total += segment.position_count
    return run if whole or total >= bounds.sealed else []


def to_merge(segments: Sequence[Segment], bounds: Bounds, *, whole: bool = False) -> list[Segment]:
    """Return segments that follow one another and are to become one; [] if there are none.

    Each older segment joins if it is no larger than four times all newer ones of the run together. So sizes grow
    geometrically with age: there are few segments, and each token is sorted a logarithmic number of times.

    Args:
        segments: all of one kind.
        bounds: of the datastore.
        whole: join older segments however large they are.
    """
    for end in range(len(segments), 1, -1):
        start = end - 1
        total = segments[start].position_count
        while start > 0:
            older = segments[start - 1]
            fits = total + older.position_count <= bounds.largest
            if (
                not fits
                or (older.position_count > _RATIO * total and not whole)
                or not bounds.may_join(older, segments[end - 1])
            ):
                break
            start -= 1
            total += older.position_count
        if end - start > 1:
            return list(segments[start:end])
    return []


def delay(segments: Segments, bounds: Bounds) -> float:
    """Return the seconds that an addition is to be held back: 0 while merging keeps up.

    Queries take longer the more segments there are. The delay grows with the number of those that are to be merged, and
    leaves cores to merging. It is short: no addition waits for the end of a merge.
    """
    runs = (to_merge(segments.in_memory, bounds), to_merge(segments.in_files, bounds))
    return min(_LONGEST_DELAY, _DELAY * sum(max(0, len(run) - _FEW) for run in runs))


def _empty_view(vocabulary_size: int) -> ShardView:
    """Return a shard without tokens: kernels need at least one shard."""
    width = token_width(vocabulary_size)
    symbols = np.concatenate([np.full(width, 0xFF, np.uint8), np.zeros(TAIL_SIZE, np.uint8)])
    nothing = np.zeros(0, np.uint8)
    return ShardView(symbols, nothing, np.zeros(TAIL_SIZE, np.uint8), 1, 0, 0, width, 1)
