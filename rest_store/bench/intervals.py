"""How sure the figures of a sample are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

_SAMPLES = 1000
Sums = npt.NDArray[np.float64]


def interval(rows: Sequence[Sequence[float]], figure: Callable[[Sums], Sums]) -> tuple[float, float]:
    """Return where a figure lies for 95% of samples of as many rows, drawn from these with replacement (bootstrap).

    Args:
        rows: what each prompt or recording adds, such as tokens and forward passes; at least one.
        figure: given float64[columns, samples], the sums of samples, returns the figure of each.
    """
    table = np.array(rows, np.float64)
    drawn = np.random.default_rng(0).integers(0, len(table), (_SAMPLES, len(table)))
    low, high = np.percentile(figure(table[drawn].sum(axis=1).T), (2.5, 97.5))
    return float(low), float(high)
