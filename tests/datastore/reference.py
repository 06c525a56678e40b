"""The oracle of the compiled kernel: exact search and draft trees in plain numpy.

Slow and simple: one binary search for each boundary, one pass over all occurrences for each node.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from rest_store.datastore.datastore import Datastore
from rest_store.datastore.shard import ShardView, decode_symbols
from rest_store.datastore.tree import SuffixMatch, TokenTree
from tests.shared.strategies import gather_entries

_BLOCK = 1 << 20  # ranks read at once


@dataclass(frozen=True)
class Shard:
    """Reads one shard entry by entry."""

    view: ShardView

    def positions(self, begin: int, end: int) -> npt.NDArray[np.int64]:
        """Return the suffix array at ranks `begin .. end - 1`, clamped to the shard."""
        entries = gather_entries(self.view.entries, self.view.bits, np.arange(begin, end, dtype=np.int64))
        return np.minimum(entries, self.view.position_count - 1)

    def symbols_at(self, positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the symbols at `positions` int64[n]; positions past the end give the last symbol."""
        offsets = np.minimum(positions, self.view.position_count - 1) * self.view.width
        raw = self.view.symbols[offsets[:, None] + np.arange(self.view.width)]
        return decode_symbols(raw.reshape(-1), self.view.width).astype(np.int64)

    def first_rank(self, pattern: npt.NDArray[np.int64], *, after: bool) -> int:
        """Return the least rank whose suffix is not less than `pattern`; with `after`, nor begins with it."""
        low, high = 0, self.view.entry_count
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


class Reference:
    """The queries of an open datastore, with arguments in range."""

    def __init__(self, store: Datastore) -> None:
        self.shards = [Shard(shard.view) for shard in store.shards]
        self.vocabulary_size = store.vocabulary_size

    def _occurrences(self, tokens: list[int]) -> Intervals:
        pattern = np.array(tokens)
        return [
            (shard.first_rank(pattern, after=False), shard.first_rank(pattern, after=True)) for shard in self.shards
        ]

    def _match(self, suffix: list[int]) -> tuple[int, Intervals]:
        best: tuple[int, Intervals] = (0, [(0, 0)] * len(self.shards))
        for length in range(1, len(suffix) + 1):
            intervals = self._occurrences(suffix[-length:])
            if _total(intervals) == 0:
                break
            best = (length, intervals)
        return best

    def longest_suffix_match(self, context: list[int], *, max_suffix: int = 16) -> SuffixMatch:
        length, intervals = self._match(context[-max_suffix:])
        return SuffixMatch(length, _total(intervals))

    def count(self, tokens: list[int]) -> int:
        return _total(self._occurrences(tokens))

    def draft(self, context: list[int], *, max_nodes: int = 64, max_suffix: int = 16, max_depth: int = 10) -> TokenTree:
        length, intervals = self._match(context[-max_suffix:])
        chosen: list[_Node] = []
        open_nodes = self._children((), intervals, length) if length else []
        heapq.heapify(open_nodes)
        while open_nodes and len(chosen) < max_nodes:
            node = heapq.heappop(open_nodes)
            chosen.append(node)
            if node.depth < max_depth:
                for child in self._children(node.path, node.intervals, length):
                    heapq.heappush(open_nodes, child)
        numbers = {node.path: number for number, node in enumerate(chosen)}
        return TokenTree(
            [node.path[-1] for node in chosen],
            [numbers.get(node.path[:-1], -1) for node in chosen],
            [-node.negative_count for node in chosen],
            match=SuffixMatch(length, _total(intervals)),
        )

    def _children(self, path: tuple[int, ...], intervals: Intervals, length: int) -> list[_Node]:
        """Split the occurrences of the match and `path` by their next token."""
        by_token: dict[int, Intervals] = {}
        for index, (shard, (begin, end)) in enumerate(zip(self.shards, intervals, strict=True)):
            symbols = shard.next_symbols(begin, end, length + len(path))
            starts = np.flatnonzero(np.diff(symbols, prepend=-1))
            ends = np.append(starts, symbols.size)[1:]
            for start, stop in zip(starts.tolist(), ends.tolist(), strict=True):
                token = int(symbols[start])
                if token < self.vocabulary_size:
                    child = by_token.setdefault(token, [(0, 0)] * len(self.shards))
                    child[index] = (begin + start, begin + stop)
        return [_Node(-_total(child), len(path) + 1, (*path, token), child) for token, child in by_token.items()]


def _total(intervals: Intervals) -> int:
    return sum(end - begin for begin, end in intervals)
