"""The drafts after each outcome of a step, as a session looked them up while the step ran.

A step verifies a draft: it accepts some of its tokens and writes a bonus token. A lookahead
(`look_ahead_all`) has the draft, the likely bonus tokens after each of its tokens, and the chain
after each of those. A *place* is where a text may end: 0 is the text of the lookup, 1 + i the path
to node i. The chain after place i begins at node i.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rest_store.datastore.tree import TokenTree
from rest_store.drafting.arbitration import Head
from rest_store.engines.request import NO_TREE, Tokens

_MIN_SCORE = 1e-6


@dataclass(frozen=True)
class Outcomes:
    """The outcomes of a step and the draft after each.

    Attributes:
        tree: a lookahead, or a chain after a text that is known; N nodes.
        verified_places: int32[n], the places after 0, 1, .. tokens of the verified draft; those
            that the tree has.
        sizes: int32[N + 1], the tokens of the draft after each place.
        is_preferred: bool[N + 1], whether to verify the draft after each place, and not a head's.
        chances: float32[N], that each node is accepted if its parent is.
    """

    tree: TokenTree
    verified_places: npt.NDArray[np.int32]
    sizes: npt.NDArray[np.int32]
    is_preferred: npt.NDArray[np.bool_]
    chances: npt.NDArray[np.float32]

    @classmethod
    def from_tree(
        cls, tree: TokenTree, verified: Tokens, max_nodes: int, room: int, head: Head | None
    ) -> Outcomes:
        """Return the outcomes in a tree.

        Args:
            tree: a lookahead, or a chain after a text that is known.
            verified: the draft that is verified.
            max_nodes: tokens of the next draft.
            room: tokens that the text of the lookup may still grow by.
            head: the experience with a trained head; None: there is no head.
        """
        places = np.append(0, 1 + tree.longest_path(verified)).astype(np.int32)
        scores = np.append(np.float32(1), np.asarray(tree.scores, np.float32))
        before = np.maximum(scores, _MIN_SCORE)
        depths = np.append(0, tree.depths)
        numbers = np.arange(len(tree) + 1)
        # The chain after a place ends before the first node that does not follow the one before.
        is_after = tree.parents == numbers[:-1] - 1
        breaks = np.append(np.where(is_after, len(tree), numbers[:-1]), len(tree))
        ends = np.minimum.accumulate(breaks[::-1])[::-1]
        sizes = np.clip(np.minimum(ends - numbers, room - depths), 0, max_nodes)
        is_preferred = sizes > 0
        if head is not None and len(tree):
            sums = np.append(0.0, np.cumsum(scores[1:], dtype=np.float64))
            first = np.append(scores[1:], 0) / before
            expected = (sums[numbers + sizes] - sums) / before
            is_preferred &= head.prefers_sessions(first, expected, sizes, max_nodes)
        return cls(
            tree,
            places,
            sizes.astype(np.int32),
            is_preferred,
            scores[1:] / before[1 + tree.parents],
        )

    def place_after(self, new: Tokens) -> int:
        """Return the place at which a text is once it has grown by some tokens; -1: there is none.

        Args:
            new: the accepted tokens of the verified draft and the bonus token; or nothing.
        """
        if not new.size:
            return 0
        if new.size > self.verified_places.size:
            return -1
        parent = self.verified_places[new.size - 1] - 1
        nodes = np.flatnonzero((self.tree.parents == parent) & (self.tree.tokens == new[-1]))
        return 1 + int(nodes[0]) if nodes.size else -1

    def draft_after(self, place: int) -> TokenTree:
        """Return the chain after a place, as it would be verified, with its own scores."""
        if place < 0:
            return NO_TREE
        size = int(self.sizes[place])
        nodes = slice(place, place + size)
        return TokenTree(
            self.tree.tokens[nodes],
            range(-1, size - 1),
            self.tree.counts[nodes],
            scores=np.cumprod(self.chances[nodes]),
            origins=np.asarray(self.tree.origins)[nodes],
        )


NO_OUTCOMES = Outcomes.from_tree(NO_TREE, np.zeros(0, np.int32), 0, 0, None)
