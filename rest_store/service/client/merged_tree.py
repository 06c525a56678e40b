"""The draft tree of a datastore from those of its parts: the same nodes, counts and order, proved.

This is the threshold algorithm (Fagin, Lotem and Naor, "Optimal aggregation algorithms for middleware", 2003) on a
trie. Each part lists its heaviest nodes, heaviest first. So the count of a node that a part does not list is at most
that of the last node that it lists, and at most the count of the parent minus those of the known children. Parts are
asked for the counts of nodes that they did not list and that may be among the heaviest. The tree is proved once no node
that no part has listed can belong to it; until then the parts list more.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from rest_store.datastore.tree import SuffixMatch, TokenTree
from rest_store.errors import ProtocolError, TreeError, describe

Path = tuple[int, ...]  # tokens from the context to a node
Key = tuple[int, int, Path]  # the order of nodes: by -count, then depth, then path (FORMAT.md, section 7)
_ROOT: Path = ()


class Listing:
    """What one part knows of the continuations of the match.

    Args:
        tree: the heaviest nodes of the part.
        asked: how many nodes the part was asked for.

    Attributes:
        counts: of the nodes that are known, by path.
        most: greatest count that a node may have that was not listed; 0 if all nodes were.
        last: depth and path of the last node listed; nodes of the same count that were not listed come after it.
    """

    def __init__(self, tree: TokenTree, asked: int) -> None:
        self.counts: dict[Path, int] = {_ROOT: tree.match.count}
        paths: list[Path] = []
        for token, parent, count in zip(tree.tokens.tolist(), tree.parents.tolist(), tree.counts.tolist(), strict=True):
            path = (*paths[parent], token) if parent >= 0 else (token,)
            paths.append(path)
            self.counts[path] = count
        is_whole = len(paths) < asked
        self.most = 0 if is_whole else self.counts[paths[-1]]
        self.last: tuple[int, Path] = (0, _ROOT) if is_whole else (len(paths[-1]), paths[-1])
        self._below: dict[Path, int] | None = None

    def bound(self, path: Path) -> int:
        """Return the greatest count that the node at `path` can have."""
        known = self.counts.get(path)
        return min(self.most, self.counts.get(path[:-1], self.most)) if known is None else known

    def left(self, path: Path) -> int:
        """Return the greatest count that a child of `path` can have whose count is not known."""
        if self._below is None:
            below: dict[Path, int] = {}
            for node, count in self.counts.items():
                if node:
                    below[node[:-1]] = below.get(node[:-1], 0) + count
            self._below = below
        return min(self.most, self.counts.get(path, self.most) - self._below.get(path, 0))

    def learn(self, counts: Mapping[Path, int]) -> None:
        """Take in the counts of nodes that were not listed."""
        self.counts.update(counts)
        self._below = None


class MergedTree:
    """The tree of one context, in the making.

    Args:
        max_nodes: most nodes.
        max_depth: longest path.

    Attributes:
        match: the longest suffix match of the whole.
    """

    def __init__(self, max_nodes: int, max_depth: int) -> None:
        self._max_nodes = max_nodes
        self._max_depth = max_depth
        self.match = SuffixMatch(0, 0)
        self._listings: dict[int, Listing] = {}
        self._chosen: list[Key] = []

    def add(self, trees: Mapping[int, TokenTree], asked: int) -> None:
        """Take in what the parts list, by part, each of which was asked for `asked` nodes.

        Those with a shorter match have no occurrence of the longest one.
        """
        length = max(tree.match.length for tree in trees.values())
        known = {part: listing.counts for part, listing in self._listings.items()}
        fresh = {part: Listing(tree, asked) for part, tree in trees.items() if tree.match.length == length}
        for part, listing in fresh.items():
            listing.learn({path: count for path, count in known.get(part, {}).items() if path not in listing.counts})
        self._listings = {**self._listings, **fresh} if length else {}
        total = sum(listing.counts[_ROOT] for listing in self._listings.values())
        self.match = SuffixMatch(length, total)

    @property
    def unfinished(self) -> list[int]:
        """The parts that have not listed all that they have."""
        return [part for part, listing in self._listings.items() if listing.most]

    def uncounted(self) -> dict[int, list[Path]]:
        """Return, by part, the nodes to ask it to count; empty if the counts that are known decide the tree.

        A node is asked for if some part listed it and its upper bound, the sum of what each part may have, is not below
        the last of the `max_nodes` greatest lower bounds, the sums of the counts that are known.
        """
        listings = self._listings
        if len(listings) < 2 or not any(listing.most for listing in listings.values()):
            return {}
        lows = self._totals()
        keys = ((-count, len(path), path) for path, count in lows.items())
        best = heapq.nsmallest(self._max_nodes, keys)
        last = best[-1] if len(best) == self._max_nodes else (1, 0, _ROOT)  # any count is more than -1
        asked: dict[int, list[Path]] = {}
        for path, low in lows.items():
            parts = [part for part, listing in listings.items() if listing.most and path not in listing.counts]
            if parts:
                high = low + sum(listings[part].bound(path) for part in parts)
                if (-high, len(path), path) <= last:
                    for part in parts:
                        asked.setdefault(part, []).append(path)
        return asked

    def _totals(self) -> dict[Path, int]:
        """Return the sum of the known counts of each node that occurs: a lower bound of its count."""
        totals: dict[Path, int] = {}
        for listing in self._listings.values():
            for path, count in listing.counts.items():
                if count:
                    totals[path] = totals.get(path, 0) + count
        totals.pop(_ROOT, None)
        return totals

    def learn(self, part: int, counts: Mapping[Path, int]) -> None:
        """Take in the counts that a part has for nodes that it did not list."""
        self._listings[part].learn(counts)

    def choose(self) -> bool:
        """Choose the heaviest known nodes; return whether they are proved to be the nodes of the whole datastore."""
        listings = [*self._listings.values()]
        keys = ((-count, len(path), path) for path, count in self._totals().items())
        self._chosen = heapq.nsmallest(self._max_nodes, keys)
        if not any(listing.most for listing in listings):
            return True
        least = self._chosen[-1] if len(self._chosen) == self._max_nodes else None
        return not any(
            self._may_hide(path, listings, least)
            for path in [_ROOT, *(path for _, _, path in self._chosen)]
            if len(path) < self._max_depth
        )

    @staticmethod
    def _may_hide(path: Path, listings: Sequence[Listing], least: Key | None) -> bool:
        """Return whether a child of `path` that no part listed may come before `least`; None: the tree has room."""
        total, after = 0, (0, _ROOT)
        for listing in listings:
            left = listing.left(path)
            total += left
            if left and left == listing.most:  # at most as heavy as the last node listed, and then after it in order
                after = max(after, listing.last)
        if least is None or total == 0:
            return total > 0
        count, depth, place = -least[0], least[1], least[2]
        return total > count or (total == count and len(path) < depth and after < (depth, place))

    def tree(self) -> TokenTree:
        """Return the tree that was chosen; raise ProtocolError if the counts of the parts cannot be those of a tree."""
        place_of = {path: place for place, (_, _, path) in enumerate(self._chosen)}
        try:
            return TokenTree(
                [path[-1] for _, _, path in self._chosen],
                [place_of[path[:-1]] if depth > 1 else -1 for _, depth, path in self._chosen],
                [-count for count, _, _ in self._chosen],
                match=self.match,
            )
        except (KeyError, TreeError):
            expected = "at most that of its parent, and less than 2^63"
            raise ProtocolError(describe("parts", "count of a node", "more", expected)) from None
