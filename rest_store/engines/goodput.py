"""How many draft tokens pay in a batch: what a step costs is learned from the steps, and set against what they bring.

A row's draft tokens are a chain. Each has a score, the probability that it is accepted with all before it. A step over
R rows with draft tokens of scores s_1 .. s_m brings R + s_1 + .. + s_m tokens, so the batch writes fastest where that
sum over the step's time is greatest. Where less is accepted than the scores promise, they count for less.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain

import numpy as np
import numpy.typing as npt

from rest_store.drafting.reliability import Reliability

Floats = npt.NDArray[np.float64]

_KEPT = 256  # plain steps, and steps with draft tokens, that costs are fitted to
_HALF_LIFE = 128.0  # steps after which a step counts half
_REFIT = 16  # steps between fits
_FIRST_PLAIN, _LAST_PLAIN = 16, 128  # steps between plain ones, at first and after a surprise, and in the end
_SURPRISE = 0.3  # part by which a step differs from what was expected; as a smoothed mean, half of that
_SLOPE = 0.04  # part of a step of one token that each further token is assumed to take
_SLOPE_WEIGHT = 4.0  # of that assumption: of a step at two tokens from the others
_JUMP_WEIGHT = 1.0  # steps' worth of the assumption that drafting as such takes no time
_LEAST_SLOPE = 0.001
_SHORTEST = 1e-6  # seconds, also of a clock that stands still

_SMOOTHING = 1 / 8  # of what drafting gains
_LOSS = 0.005  # part of the speed that drafting may cost before it pauses
_SHORTEST_PAUSE, _LONGEST_PAUSE = 4, 32  # steps

_PRIOR, _SLACK = 4.0, 1.25  # of the reliability of scores, in tokens a row

_DOUBT = 0.5  # part of the score that pays at present, from which on draft tokens may pay in the next step


class _Steps:
    """The latest steps of one kind: rows, draft tokens, seconds, and the number of each among all steps."""

    def __init__(self) -> None:
        self.columns = np.zeros((4, _KEPT))
        self.count = 0

    def add(self, *values: float) -> None:
        self.columns[:, self.count % _KEPT] = values
        self.count += 1

    @property
    def present(self) -> Floats:
        """Those that are kept, float64[4, n]."""
        return self.columns[:, : self.count]


class StepCosts:
    """Seconds of a step over n tokens, all rows together, of which some may be draft tokens.

    The fit is a line over n, plus a constant for steps with draft tokens, which engines verify in another way than they
    sample. Recent steps, and steps with about as many rows, weigh more; outliers weigh less. If all steps had the same
    width, they do not show what a token costs, and a small cost is assumed. So the class asks for steps without draft
    tokens: often at first and when steps take longer or shorter than expected, seldom later.
    """

    def __init__(self) -> None:
        self._plain, self._drafted = _Steps(), _Steps()
        self._observed = 0
        self._plain_at, self._plain_after = 0, _FIRST_PLAIN
        self._fit_at = 0
        self._fit_rows = 0
        self._line = (1.0, _SLOPE, 0.0)  # intercept, slope, jump
        self._surprise = 0.0

    @property
    def is_known(self) -> bool:
        """Whether a step was observed."""
        return self._observed > 0

    def wants_plain(self) -> bool:
        """Return whether the next step should have no draft tokens, because none was measured for a while."""
        if self._observed - self._plain_at < self._plain_after:
            return False
        self._plain_at = self._observed  # whether that step can be measured or not
        self._plain_after = min(2 * self._plain_after, _LAST_PLAIN)
        return True

    def observe(self, rows: int, drafted: int, seconds: float) -> None:
        """Learn that a step over `rows` rows, with `drafted` draft tokens in all, took `seconds`."""
        seconds = max(seconds, _SHORTEST)
        if self._fit_at:
            expected = self._time(rows, drafted)
            surprise = max(-0.5, min(seconds / expected - 1, 0.5))
            self._surprise += (surprise - self._surprise) / 8
            if abs(self._surprise) > _SURPRISE / 2:
                self._plain_after, self._surprise = _FIRST_PLAIN, 0.0
            if abs(surprise) > _SURPRISE:
                self._fit_rows = 0
        self._observed += 1
        (self._drafted if drafted else self._plain).add(rows, drafted, seconds, self._observed)
        if not drafted:
            self._plain_at = self._observed

    def _time(self, rows: int, drafted: int) -> float:
        intercept, slope, jump = self._line
        return intercept + slope * (rows + drafted) + jump * (drafted > 0)

    @property
    def slope(self) -> float:
        """Seconds that a further token takes, as of the latest `table`, in its unit."""
        return self._line[1]

    def table(self, rows: int, most: int) -> list[float]:
        """Return the seconds of a step over `rows` rows with 0 .. most draft tokens.

        Before any step was observed, the unit is another one.
        """
        others = not self._fit_rows / 1.25 <= rows <= self._fit_rows * 1.25
        if self._observed and (others or self._observed - self._fit_at >= _REFIT):
            self._line = self._fitted(rows)
            self._fit_at, self._fit_rows = self._observed, rows
        intercept, slope, jump = self._line
        plain = intercept + slope * rows
        return [plain, *(plain + jump + slope * drafted for drafted in range(1, most + 1))]

    def _fitted(self, rows: int) -> tuple[float, float, float]:
        """Return intercept, slope and jump around `rows` rows."""
        of_rows, drafted, seconds, numbers = np.concatenate([self._plain.present, self._drafted.present], axis=1)
        weights = 0.5 ** ((self._observed - numbers) / _HALF_LIFE) / (1 + (2 * np.log2(of_rows / rows)) ** 2)
        widths, jumps = of_rows + drafted, (drafted > 0).astype(np.float64)
        typical = _median(seconds)
        assumed = _SLOPE * typical / (1 + _SLOPE * _median(widths))
        intercept, slope, jump = _solved(widths, jumps, seconds, weights, assumed)
        for _ in range(2):
            errors = np.abs(seconds - intercept - slope * widths - jump * jumps)
            bound = max(2 * _median(errors), 1e-3 * typical)
            held = weights * np.minimum(1, bound / np.maximum(errors, bound))
            intercept, slope, jump = _solved(widths, jumps, seconds, held, assumed)
        least = _LEAST_SLOPE * typical
        slope = max(slope, least)
        return max(intercept, least - slope * rows), slope, max(jump, 0.0)


def _solved(
    widths: Floats, jumps: Floats, seconds: Floats, weights: Floats, assumed: float
) -> tuple[float, float, float]:
    """Return intercept, slope and jump by weighted least squares, regularized towards the assumed slope and no jump.

    This does not use BLAS, whose threads would compete with the engine's.
    """
    total = float(weights.sum())
    w, j, s = (float((weights * column).sum()) / total for column in (widths, jumps, seconds))
    widths, jumps, seconds = widths - w, jumps - j, seconds - s
    ww = float((weights * widths * widths).sum()) + _SLOPE_WEIGHT
    jj = float((weights * jumps * jumps).sum()) + _JUMP_WEIGHT
    wj = float((weights * widths * jumps).sum())
    ws = float((weights * widths * seconds).sum()) + _SLOPE_WEIGHT * assumed
    js = float((weights * jumps * seconds).sum())
    slope = (ws * jj - js * wj) / (ww * jj - wj * wj)
    jump = (js - slope * wj) / jj
    return s - slope * w - jump * j, slope, jump


def _median(values: Floats) -> float:
    middle = values.size // 2
    return float(np.partition(values, middle)[middle])


class Goodput:
    """Decides for each step whether to ask the sessions for drafts, and how many draft tokens to verify.

    Asking takes time, too. While it takes longer than it saves, as on a saturated machine, with a slow service, or in
    texts that nothing matches, only some steps ask. The same holds for texts that match by chance, whose draft tokens
    the model does not accept.
    """

    def __init__(self) -> None:
        self._costs = StepCosts()
        self._reliability = Reliability(prior=_PRIOR, slack=_SLACK)
        self._rows = 1  # of the latest choice
        self._expected = (1.0, 1.0, 1.0)  # of the latest choice: tokens a row, its time, and that of a plain step
        self._gain = 0.0  # smoothed, as part of the speed without drafts
        self._least = 0.0  # score that pays, as of the latest choice
        self._pause = 0
        self._next_pause = _SHORTEST_PAUSE

    def observe(self, rows: int, drafted: int, seconds: float) -> None:
        """Learn from a step: its rows, its draft tokens, and the seconds that the engine took for it."""
        self._costs.observe(rows, drafted, seconds)

    @property
    def is_paused(self) -> bool:
        """Whether the next step does not ask."""
        return self._pause > 0

    def wants_drafts(self) -> bool:
        """Whether to ask the sessions for this step; called once for each."""
        self._reliability.forget()
        if self._pause:
            self._pause -= 1
            return False
        return not self._costs.wants_plain()

    @property
    def min_score(self) -> float:
        """The score from which on draft tokens may pay in the next step; sessions need not look for others."""
        return min(_DOUBT * self._least, _DOUBT)

    def chosen(self, scores: Sequence[Sequence[float]], rows: int) -> list[int]:
        """Return how many draft tokens of each row to verify: those that make tokens per second greatest.

        Args:
            scores: of the draft tokens of each row, descending.
            rows: of the batch, with those that have none.
        """
        ordered = sorted(chain.from_iterable(scores), reverse=True)
        times = self._costs.table(rows, len(ordered))
        factor = self._reliability.factor
        tokens = greatest = float(rows)
        speed, time, least = tokens / times[0], times[0], math.inf
        for score, seconds in zip(ordered, times[1:], strict=True):
            tokens += factor * score
            if tokens / seconds > speed:
                greatest, speed, time, least = tokens, tokens / seconds, seconds, score
        self._least = speed * self._costs.slope / factor
        self._expected = greatest / rows, time, times[0]
        self._rows = rows
        return [sum(score >= least for score in row) for row in scores]

    def judge(self, promised: float, accepted: float) -> None:
        """Learn what became of the latest `chosen`.

        Args:
            promised: the sum of the scores of draft tokens that were verified.
            accepted: how many of these the model also produced.
        """
        self._reliability.add(promised / self._rows, accepted / self._rows)

    def settle(self, seconds: float) -> None:
        """Learn that drafting for the latest `chosen`, all of it, took `seconds`."""
        if not self._costs.is_known:
            return
        tokens, time, plain = self._expected
        gain = tokens * plain / (time + seconds) - 1
        self._gain += _SMOOTHING * (gain - self._gain)
        if gain > 0:
            self._next_pause = _SHORTEST_PAUSE
        if self._gain < -_LOSS:
            self._gain = 0.0
            self._pause, self._next_pause = self._next_pause, min(2 * self._next_pause, _LONGEST_PAUSE)
