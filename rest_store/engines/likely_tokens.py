"""What the target model found likely in a step, by row of the batch, as sessions take it in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Rows = npt.NDArray[np.int32]


class LikelyTokens:
    """The target model's most likely tokens after the positions that a step computed logits for.

    Args:
        computed: int32[n, k], in the order of the batch: a row with d draft tokens has d + 1 positions, the first of
            them before its draft. -1 ends a position's tokens.
        drafts: the number of draft tokens of each row.
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

        A scheduler may verify fewer draft tokens than it was given, never more. So if the sums are equal, each row has
        the expected number.
        """
        return self._fits

    def of_text(self, row: int, output: int, count: int) -> Rows | None:
        """Return the likely tokens around the end of a row's text, as `top_k` of `DraftSession.accept`.

        Args:
            row: of the batch.
            output: number of tokens that the step produced in the row.
            count: number of tokens that the session does not have yet; it may be larger than `output`.

        Returns:
            int32[m, k], m >= `count`. The rows of the last token, which the model has not read, and of tokens from
            earlier steps are all -1. None if the step computed fewer positions in this row.
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
            nodes: number of tokens that its session drafted, of which the first were verified.

        Returns:
            int32[1 + nodes, k]; None if more tokens were verified than drafted.
        """
        first, end = self._starts[row : row + 2]
        absent = 1 + nodes - (end - first)
        return None if absent < 0 else self._rows(first, end, after=absent)

    def _rows(self, first: int, end: int, *, before: int = 0, after: int) -> Rows:
        """Return the tokens of positions `first` to `end`, with `before` and `after` rows of -1 around them."""
        rows = np.full((before + end - first + after, self._computed.shape[1]), -1, np.int32)
        rows[before : before + end - first] = self._computed[first:end]
        return rows
