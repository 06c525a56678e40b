"""The oracle of the compiled kernel: exact answers over plain
documents, in numpy, without a suffix array.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rest_store.datastore.kernel import MAX_SEQUENCE
from rest_store.datastore.tree import SuffixMatch, TokenTree
from tests.shared.strategies import Corpus

Positions = npt.NDArray[np.int64]
_SEPARATOR = -1


class Oracle:
    """The queries of a datastore of `corpus`, with arguments in range."""

    def __init__(self, corpus: Corpus) -> None:
        stored = [token for document in corpus.documents for token in (*document, _SEPARATOR)]
        self.size = len(stored)
        self.symbols = np.array([*stored, *[_SEPARATOR] * MAX_SEQUENCE])

    def _positions(self, tokens: Sequence[int]) -> Positions:
        """Where the sequence begins, in order."""
        found = np.arange(self.size)
        for place, token in enumerate(tokens):
            found = found[self.symbols[found + place] == token]
        return found

    def count(self, tokens: Sequence[int]) -> int:
        return self._positions(tokens).size

    def longest_suffix_match(self, context: Sequence[int], *, max_suffix: int = 16) -> SuffixMatch:
        length, found = self._match(context[-max_suffix:])
        return SuffixMatch(length, found.size)

    def _match(self, suffix: Sequence[int]) -> tuple[int, Positions]:
        best = 0, np.zeros(0, np.int64)
        for length in range(1, len(suffix) + 1):
            found = self._positions(suffix[-length:])
            if not found.size:
                break
            best = length, found
        return best

    def draft(
        self,
        context: Sequence[int],
        *,
        max_nodes: int = 64,
        max_suffix: int = 16,
        max_depth: int = 10,
    ) -> TokenTree:
        """The heaviest continuations, by the rule of FORMAT.md, section 7."""
        length, found = self._match(context[-max_suffix:])
        chosen: list[tuple[tuple[int, ...], int]] = []  # path and count
        reached = self._children((), found + length)
        heapq.heapify(reached)
        while reached and len(chosen) < max_nodes:
            negative_count, depth, path, ends = heapq.heappop(reached)
            chosen.append((path, -negative_count))
            for child in self._children(path, ends) if depth < max_depth else ():
                heapq.heappush(reached, child)
        numbers = {path: number for number, (path, _) in enumerate(chosen)}
        return TokenTree(
            [path[-1] for path, _ in chosen],
            [numbers.get(path[:-1], -1) for path, _ in chosen],
            [count for _, count in chosen],
            match=SuffixMatch(length, found.size),
        )

    def _children(
        self, path: tuple[int, ...], ends: Positions
    ) -> list[tuple[int, int, tuple[int, ...], Positions]]:
        """Split what a path leads to by the next token: count, negative; depth; path.

        And where each goes on.
        """
        ends = ends[np.argsort(self.symbols[ends], kind="stable")]
        tokens = self.symbols[ends]
        parts = np.split(ends, np.flatnonzero(np.diff(tokens)) + 1)
        nexts = [(int(self.symbols[part[0]]), part) for part in parts if part.size]
        return [
            (-part.size, len(path) + 1, (*path, token), part + 1)
            for token, part in nexts
            if token != _SEPARATOR
        ]
