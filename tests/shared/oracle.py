"""The kernel's oracle gives exact answers over plain documents, without a suffix array."""

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

    def positions(self, tokens: Sequence[int]) -> Positions:
        """Where the sequence begins, in order."""
        matches = np.arange(self.size)
        for place, token in enumerate(tokens):
            matches = matches[self.symbols[matches + place] == token]
        return matches

    def visible(self, matches: Positions) -> int:
        """How many occurrences of a sequence, which begins or ends at `found`, are told of."""
        return matches.size

    def count(self, tokens: Sequence[int]) -> int:
        return self.visible(self.positions(tokens))

    def longest_suffix_match(self, context: Sequence[int], *, max_suffix: int = 16) -> SuffixMatch:
        length, matches = self._match(context[-max_suffix:])
        return SuffixMatch(length, self.visible(matches))

    def _match(self, suffix: Sequence[int]) -> tuple[int, Positions]:
        best = 0, np.zeros(0, np.int64)
        for length in range(1, len(suffix) + 1):
            matches = self.positions(suffix[-length:])
            if not self.visible(matches):
                break
            best = length, matches
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
        length, matches = self._match(context[-max_suffix:])
        chosen: list[tuple[tuple[int, ...], int]] = []  # path and count
        reached = self._children((), matches + length)
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
            match=SuffixMatch(length, self.visible(matches)),
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
            (-self.visible(part), len(path) + 1, (*path, token), part + 1)
            for token, part in nexts
            if token != _SEPARATOR and self.visible(part)
        ]


class SharedOracle(Oracle):
    """The queries of `reader` where a datastore is shared after `shared_after` groups.

    Args:
        documents: group and tokens of each.
    """

    def __init__(
        self,
        vocabulary_size: int,
        documents: Sequence[tuple[str, Sequence[int]]],
        shared_after: int,
        reader: str,
    ) -> None:
        super().__init__(Corpus(vocabulary_size, [[list(tokens) for _, tokens in documents]]))
        names = [name for name, tokens in documents for _ in range(len(tokens) + 1)]
        # What ends at a separator began before it.
        self._names = np.array([*names, ""])
        self._shared_after = shared_after
        self._reader = reader

    def visible(self, matches: Positions) -> int:
        # A token at `found`, or the one before where a sequence ends: of one document in any case.
        groups = self._names[np.minimum(matches, self._names.size - 1)]
        if np.unique(groups).size >= self._shared_after:
            return matches.size
        return int(np.sum(groups == self._reader)) if self._reader else 0
