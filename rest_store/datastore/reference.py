"""The reference kernel: exact search and draft trees in plain numpy.

Slow and simple: one binary search for each boundary, one pass over all occurrences for each node. The native kernel is
tested against it, and it takes over where the native kernel was not built (see `rest_store.datastore.kernel`).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from rest_store.datastore.mapped_file import MappedFile
from rest_store.datastore.shard import decode_symbols, gather_entries

PackedTree = tuple[bytes, tuple[int, int]]  # the packed nodes (see TokenTree), and length and count of the match
_BLOCK = 1 << 20  # ranks read at once


@dataclass(frozen=True)
class KernelShard:
    """The arrays of one shard as a kernel reads them from the mappings.

    Attributes:
        symbols: uint8[w * P + 8], payload and tail of the tokens file.
        keys: uint8[8 * K], the keys of the suffixes file.
        entries: uint8, its packed entries and tail.
        position_count: positions P.
        entry_count: suffix array entries N.
        key_count: keys K.
        width: bytes of one symbol w, 2 or 3.
        bits: bits of one entry b.
        files: what is mapped.
    """

    symbols: npt.NDArray[np.uint8]
    keys: npt.NDArray[np.uint8]
    entries: npt.NDArray[np.uint8]
    position_count: int
    entry_count: int
    key_count: int
    width: int
    bits: int
    files: tuple[MappedFile[Any], ...] = ()

    def require_readable(self) -> None:
        """Raise DatastoreUnavailableError if a page of the files could not be read."""
        for file in self.files:
            file.require_readable()

    def positions(self, begin: int, end: int) -> npt.NDArray[np.int64]:
        """Return the suffix array at ranks `begin .. end - 1`, clamped to the shard."""
        entries = gather_entries(self.entries, self.bits, np.arange(begin, end, dtype=np.int64))
        return np.minimum(entries, self.position_count - 1)

    def symbols_at(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the symbols at `positions` int64[n]; positions past the end give the last symbol."""
        offsets = np.minimum(positions, self.position_count - 1) * self.width
        raw = self.symbols[offsets[:, None] + np.arange(self.width)]
        return decode_symbols(raw.reshape(-1), self.width).astype(np.int64)

    def first_rank(self, pattern: npt.NDArray[np.int64], *, after: bool) -> int:
        """Return the least rank whose suffix is not less than `pattern`; with `after`, nor begins with it."""
        low, high = 0, self.entry_count
        steps = np.arange(pattern.size)
        while low < high:
            middle = (low + high) // 2
            symbols = self.symbols_at(self.positions(middle, middle + 1) + steps)
            differing = np.flatnonzero(symbols != pattern)
            below = after if differing.size == 0 else bool(symbols[differing[0]] < pattern[differing[0]])
            low, high = (middle + 1, high) if below else (low, middle)
        return low

    def next_symbols(self, begin: int, end: int, skip: int) -> npt.NDArray[np.int64]:
        """Return the symbol `skip` positions into each suffix of ranks `begin .. end - 1`."""
        blocks = [
            self.symbols_at(self.positions(start, min(start + _BLOCK, end)) + skip)
            for start in range(begin, end, _BLOCK)
        ]
        return np.concatenate(blocks) if blocks else np.zeros(0, dtype=np.int64)


Intervals = list[tuple[int, int]]  # the ranks begin .. end - 1 of one sequence, one pair for each shard


@dataclass(order=True)
class _Node:
    """A node of the trie, ordered by the rule of FORMAT.md, section 7."""

    negative_count: int
    depth: int
    path: tuple[int, ...]
    intervals: Intervals = field(compare=False)


class ReferenceKernel:
    """The queries of a datastore in numpy. Thread-safe.

    Args:
        shards: at least one.
        vocabulary_size: ids are `0 .. vocabulary_size - 1`.
    """

    def __init__(self, shards: Sequence[KernelShard], vocabulary_size: int) -> None:
        self.shards = list(shards)
        self.vocabulary_size = vocabulary_size

    def _occurrences(self, tokens: npt.NDArray[np.int64]) -> Intervals:
        return [(shard.first_rank(tokens, after=False), shard.first_rank(tokens, after=True)) for shard in self.shards]

    def _match(self, suffix: list[int]) -> tuple[int, Intervals]:
        best: tuple[int, Intervals] = (0, [(0, 0)] * len(self.shards))
        for length in range(1, len(suffix) + 1):
            intervals = self._occurrences(np.array(suffix[-length:]))
            if _total(intervals) == 0:
                break
            best = (length, intervals)
        return best

    def longest_suffix_match(self, suffix: list[int]) -> tuple[int, int]:
        """Return (length, count) of the longest suffix of `suffix` that occurs."""
        length, intervals = self._match(suffix)
        self.require_readable()
        return length, _total(intervals)

    def count(self, tokens: list[int]) -> int:
        """Return the occurrences of `tokens`."""
        count = _total(self._occurrences(np.array(tokens)))
        self.require_readable()
        return count

    def draft(self, suffix: list[int], max_nodes: int, max_depth: int) -> PackedTree:
        """Return the draft tree of a context that ends with `suffix`."""
        length, intervals = self._match(suffix)
        chosen: list[_Node] = []
        open_nodes = self._children((), intervals, length) if length else []
        heapq.heapify(open_nodes)
        while open_nodes and len(chosen) < max_nodes:
            node = heapq.heappop(open_nodes)
            chosen.append(node)
            if node.depth < max_depth:
                for child in self._children(node.path, node.intervals, length):
                    heapq.heappush(open_nodes, child)
        places = {node.path: place for place, node in enumerate(chosen)}
        columns: list[tuple[list[int], type[np.integer[Any]]]] = [
            ([-node.negative_count for node in chosen], np.int64),
            ([node.path[-1] for node in chosen], np.int32),
            ([places.get(node.path[:-1], -1) for node in chosen], np.int32),
            ([node.depth for node in chosen], np.int32),
        ]
        self.require_readable()
        packed = b"".join(np.array(values, dtype).tobytes() for values, dtype in columns)
        return packed, (length, _total(intervals))

    def require_readable(self) -> None:
        """Raise DatastoreUnavailableError if a page of the files could not be read."""
        for shard in self.shards:
            shard.require_readable()

    def _children(self, path: tuple[int, ...], intervals: Intervals, length: int) -> list[_Node]:
        """Split the occurrences of the match and `path` by their next token."""
        by_token: dict[int, Intervals] = {}
        for place, (shard, (begin, end)) in enumerate(zip(self.shards, intervals, strict=True)):
            symbols = shard.next_symbols(begin, end, length + len(path))
            starts = np.flatnonzero(np.diff(symbols, prepend=-1))
            ends = np.append(starts, symbols.size)[1:]
            for start, stop in zip(starts.tolist(), ends.tolist(), strict=True):
                token = int(symbols[start])
                if token < self.vocabulary_size:
                    child = by_token.setdefault(token, [(0, 0)] * len(self.shards))
                    child[place] = (begin + start, begin + stop)
        return [_Node(-_total(child), len(path) + 1, (*path, token), child) for token, child in by_token.items()]


def _total(intervals: Intervals) -> int:
    return sum(end - begin for begin, end in intervals)
