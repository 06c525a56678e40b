"""What a step of a draft session may make, and the rows of likely tokens that it learns from."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

NO_COSTS = np.zeros(0)  # for a draft that is not cut to the size with the most tokens per second

# Rows of most likely tokens, [n, k]; -1, or any other number that is no token, ends a row.
TopK: TypeAlias = npt.NDArray[np.int32] | npt.NDArray[np.int64]


class DraftLimits(NamedTuple):
    """What a session is asked for; the arguments of the kernel's `draft`.

    Attributes:
        max_nodes: most draft tokens, 0..1024.
        costs: those of `DraftSession.draft`, float64[n + 1]; empty: the draft is not cut.
        is_chain: whether it is to be a chain.
        min_score: the draft ends before the first node with a lower score.
    """

    max_nodes: int
    costs: npt.NDArray[np.float64] = NO_COSTS
    is_chain: bool = False
    min_score: float = 0.0
