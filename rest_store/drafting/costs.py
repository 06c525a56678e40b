"""The time of a step by the number of its draft tokens, learned from the steps themselves.

No forward pass is spent on measuring alone. `DraftPolicy` decides by these times.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]

# Steps that costs are fitted to: so many plain ones, and so many with draft tokens.
_HISTORY_STEPS = 128
_HALF_LIFE = 128.0  # steps after which a step counts half
_REFIT_STEPS = 16  # steps between fits, fewer at first
# The first steps with draft tokens are doubted. If they were slow, one draft token is tried again
# after a pause, which doubles with each of them.
_DOUBTED_STEPS = 4
_RETRY_STEPS = 4
# Steps between plain ones, at first and in the end.
_MIN_PLAIN_INTERVAL = 16
_MAX_PLAIN_INTERVAL = 128
DEFAULT_SLOPE = 0.04  # assumed time of a further token, as a share of a step of one token
_SLOPE_WEIGHT = 8.0  # of that assumption, in steps that are two tokens from the others
_JUMP_WEIGHT = 1.0  # of the assumption that having draft tokens takes no time, in steps
_MIN_SLOPE = 0.001
_FIT_ROUNDS = 4  # each round believes the steps far from the line less
# Steps are believed up to so many typical distances from the line: slower ones, and faster ones.
_SLOW_BOUND = 0.5
_FAST_BOUND = 2.0
_MIN_SECONDS = 1e-6  # also of a clock that stands still


class CostLine(NamedTuple):
    """The seconds of a step with n draft tokens: `plain + slope * n`, and `jump` if n > 0."""

    plain: float
    slope: float
    jump: float

    def time(self, drafted: int) -> float:
        """Return the seconds of a step with so many draft tokens."""
        return self.plain + self.slope * drafted + self.jump * (drafted > 0)

    def table(self, max_drafted: int) -> Floats:
        """Return the seconds of a step with 0 .. max_drafted draft tokens."""
        drafted = np.arange(max_drafted + 1)
        seconds: Floats = self.plain + self.slope * drafted + self.jump * (drafted > 0)
        return seconds


class StepCosts:
    """The seconds of a step by its draft tokens.

    The estimate is a line over the tokens of a step, plus a constant for steps with draft tokens:
    they run other kernels than plain ones. The constant may be negative. Recent steps weigh more.
    Other work on the machine delays steps and never speeds one up, so the line runs along the
    faster ones.

    Steps of one width do not show the time of a token. Then a small time is assumed, and steps
    without draft tokens are asked for: the first step, then often at first, seldom later. The first
    steps with draft tokens are doubted: if they were slow, one draft token has the assumed price
    again after a while.

    Args:
        slope: assumed time of each further token, as a share of a step of one token.

    Attributes:
        observed: steps so far.
    """

    def __init__(self, slope: float = DEFAULT_SLOPE) -> None:
        self.observed = 0
        self._assumed_slope = slope
        # For plain steps and for steps with draft tokens, rings of: draft tokens, seconds, and the
        # number of the step.
        self._steps = np.zeros((2, 3, _HISTORY_STEPS))
        self._counts = [0, 0]
        self._retry_at = 0
        self._is_retry = False
        self._plain_at = 0
        self._plain_interval = 0
        self._fitted_at = 0  # steps observed by the latest fit; 0: there is none
        self._line = CostLine(1.0 + slope, slope, 0.0)

    def wants_plain(self) -> bool:
        """Return whether the next step should have no draft tokens, to measure a plain step."""
        if self.observed - self._plain_at < self._plain_interval:
            return False
        self._plain_at = self.observed  # whether that step can be measured or not
        doubled = max(2 * self._plain_interval, _MIN_PLAIN_INTERVAL)
        self._plain_interval = min(doubled, _MAX_PLAIN_INTERVAL)
        return True

    def observe(self, drafted: int, seconds: float) -> None:
        """Learn that a step with `drafted` draft tokens took `seconds`."""
        self.observed += 1
        kind = int(drafted > 0)
        place = self._counts[kind] % _HISTORY_STEPS
        self._steps[kind, :, place] = drafted, max(seconds, _MIN_SECONDS), self.observed
        self._counts[kind] += 1
        if drafted:
            pause = _RETRY_STEPS * 2 ** min(self._counts[1], _DOUBTED_STEPS)
            self._retry_at = self.observed + pause
        else:
            self._plain_at = self.observed

    def time(self, drafted: int) -> float:
        """Return the seconds of a step, as of the latest `table`, in its unit."""
        seconds = self._line.time(drafted)
        if drafted != 1 or not self._is_retry:
            return seconds
        assumed = (1 + self._assumed_slope) * self._line.plain
        return min(seconds, assumed)

    @property
    def per_token(self) -> float:
        """The seconds of each draft token, as of the latest `table`, in its unit."""
        return self._line.slope

    def table(self, max_drafted: int) -> Floats:
        """Return the seconds of a step with 0 .. max_drafted draft tokens, float64[n + 1].

        Before any step was observed, the unit is another one.
        """
        interval = max(1, min(self._fitted_at // 4, _REFIT_STEPS))
        if self.observed - self._fitted_at >= interval:
            self._line = self._fit()
            self._fitted_at = self.observed
        is_doubted = 0 < self._counts[1] < _DOUBTED_STEPS
        self._is_retry = is_doubted and self.observed >= self._retry_at
        seconds = self._line.table(max_drafted)
        seconds[1:2] = self.time(1)
        return seconds

    def _fit(self) -> CostLine:
        """Fit the line to the latest steps."""
        latest = [steps[:, :count] for steps, count in zip(self._steps, self._counts, strict=True)]
        drafted, seconds, numbers = np.concatenate(latest, axis=1)
        weights = 0.5 ** ((self.observed - numbers) / _HALF_LIFE)
        has_drafts = drafted > 0
        typical = _median(seconds, weights)
        width = _median(drafted, weights)
        assumed = self._assumed_slope * typical / (1 + self._assumed_slope * (1 + width))
        line = CostLine(typical - assumed * width, assumed, 0.0)
        for _ in range(_FIT_ROUNDS):
            errors = seconds - (line.plain + line.slope * drafted + line.jump * has_drafts)
            believed = weights.copy()
            # Each kind by itself: there may be few steps of one, far from all of the other.
            for kind in (has_drafts, ~has_drafts):
                if kind.any():
                    believed[kind] *= _belief(errors[kind], weights[kind], 1e-3 * typical)
            line = _least_squares(drafted, has_drafts, seconds, believed, assumed)
        smallest = _MIN_SLOPE * typical
        slope = max(line.slope, smallest)
        plain = max(line.plain, smallest)
        return CostLine(plain, slope, max(line.jump, smallest - plain))


def _belief(errors: Floats, weights: Floats, min_size: float) -> Floats:
    """Return how far each step is believed, 0..1: less where its error is large.

    Slow steps are doubted soonest. `min_size` is the smallest typical error.
    """
    sizes = np.abs(errors)
    typical = max(_median(sizes, weights), min_size)
    bounds = np.where(errors > 0, _SLOW_BOUND, _FAST_BOUND) * typical
    belief: Floats = bounds / np.maximum(sizes, bounds)
    return belief


def _least_squares(
    drafted: Floats,
    has_drafts: npt.NDArray[np.bool_],
    seconds: Floats,
    weights: Floats,
    assumed_slope: float,
) -> CostLine:
    """Return the line of weighted least squares, regularized to the assumed slope and no jump.

    Slope and jump solve the two normal equations of the centered columns: tokens (x) and having
    draft tokens (j) against seconds (y). The constant follows from the means. This does not use
    BLAS, whose threads would compete with the model's.
    """
    total = float(weights.sum())
    mean_drafted = float((weights * drafted).sum()) / total
    mean_jump = float((weights * has_drafts).sum()) / total
    mean_seconds = float((weights * seconds).sum()) / total
    x = drafted - mean_drafted
    j = has_drafts - mean_jump
    y = seconds - mean_seconds
    xx = float((weights * x * x).sum()) + _SLOPE_WEIGHT
    jj = float((weights * j * j).sum()) + _JUMP_WEIGHT
    xj = float((weights * x * j).sum())
    xy = float((weights * x * y).sum()) + _SLOPE_WEIGHT * assumed_slope
    jy = float((weights * j * y).sum())
    slope = (xy * jj - jy * xj) / (xx * jj - xj * xj)
    jump = (jy - slope * xj) / jj
    plain = mean_seconds - slope * mean_drafted - jump * mean_jump
    return CostLine(plain, slope, jump)


def _median(values: Floats, weights: Floats) -> float:
    """Return the weighted median: half of the weight is at this value or below."""
    order = np.argsort(values)
    below = np.cumsum(weights[order])
    return float(values[order[np.searchsorted(below, below[-1] / 2)]])
