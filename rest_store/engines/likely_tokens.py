"""What the target model found likely in a step, by row of the batch, as sessions take it in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int32]


class LikelyTokens:
    """The target model's most likely tokens after the positions that a step computed logits for.

    Args:
        computed: int32[n, k], in the order of the batch: of a row with d draft tokens, d + 1 positions, the first
            before its draft. -1 ends a position's tokens.
        drafts: draft tokens of each row.
    """

    def __init__(self, computed: Rows, drafts: Sequence[int]) -> None:
        self._starts = [0]
        for count in drafts:
            self._starts.append(self._starts[-1] + count + 1)
        self._fits = computed.ndim == 2 and len(computed) == self._starts[-1]
        self._computed = computed

    @property
    def fits(self) -> bool:
        """Whether there are as many positions as the rows have.

        A scheduler verifies fewer draft tokens than it was given, never more: if the sums are equal, so are all rows.
        """
        return self._fits

    def of_text(self, row: int, output: int, count: int) -> Rows | None:
        """Return the likely tokens around the end of a row's text, as `top_k` of `DraftSession.accept`.

        Args:
            row: of the batch.
            output: tokens that the step produced in it.
            count: of those that the session has not been told yet, which may be more.

        Returns:
            int32[m, k], m >= `count`; of the last token, which the model has not read, and of those that were produced
            by earlier steps, no tokens. None if the step did not compute as many positions in this row.
        """
        first, end = self._starts[row : row + 2]
        if output > end - first:
            return None
        before = max(0, count - output - 1)
        return self._rows(first, first + output, before=before, after=1)

    def of_nodes(self, row: int, nodes: int) -> Rows | None:
        """Return the likely tokens after a row's context and its draft tokens, as `node_top_k`.

        Args:
            row: of the batch.
            nodes: that its session drafted; the first ones were verified.

        Returns:
            int32[1 + nodes, k]; None if more were verified.
        """
        first, end = self._starts[row : row + 2]
        absent = 1 + nodes - (end - first)
        return None if absent < 0 else self._rows(first, end, after=absent)

    def _rows(self, first: int, end: int, *, before: int = 0, after: int) -> Rows:
        """Return the tokens of positions `first` to `end`, with rows of -1 for those before and after, not computed."""
        rows = np.full((before + end - first + after, self._computed.shape[1]), -1, np.int32)
        rows[before : before + end - first] = self._computed[first:end]
        return rows
