"""What drafts cost and bring: how long a step takes, how far scores
are believed, and how many draft tokens pay.

A step that verifies draft tokens with scores s_1 .. s_m is expected to bring 1 + s_1 + .. + s_m
tokens. The text is written fastest where that sum over the step's time is greatest. Both are
learned from the steps themselves; no forward pass is spent on measuring alone.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_KEPT_STEPS = 128  # plain steps, and steps with draft tokens, that costs are fitted to
_HALF_LIFE = 128.0  # steps after which a step counts half
_REFIT = 16  # steps between fits, fewer at first
# Steps with draft tokens that are doubted, and steps after which the first of them is.
_FEW, _RETRY = 4, 4
_FIRST_PLAIN, _LAST_PLAIN = 16, 128  # steps between plain ones, at first and in the end
_SLOPE = 0.04  # part of a step of one token that each further token is assumed to take
_SLOPE_WEIGHT = 8.0  # of that assumption: of a step at two tokens from the others
_JUMP_WEIGHT = 1.0  # steps' worth of the assumption that draft tokens as such take no time
_MIN_SLOPE = 0.001
_ROUNDS = 4  # of a fit, each of which believes steps less that are further from the line
# Typical distances from the line, up to which slower and faster steps are believed.
_SLOW, _FAST = 0.5, 2.0
_MIN_SECONDS = 1e-6  # seconds, also of a clock that stands still

# What a step leaves of earlier promises, so that scores are tried again.
_KEPT_PROMISES = 0.5 ** (1 / 256)
_PRIOR = 2.0  # tokens that are taken to be promised and accepted, beside those that were
# Promised tokens for each accepted one, up to which scores are believed: chance does that, too.
_SLACK = 1.25

_AGAIN = 2.0  # times that what waits is read again before it is kept, or about that

_SMOOTHING = 1 / 8  # of what a step with drafts saves
_LOSS = 0.01  # part of the time that drafting may cost
_MIN_PAUSE, _MAX_PAUSE = 4, 128  # steps
_GROWTH = 4.0  # of a pause after the one before
_RELIEF = 0.95  # of the next pause, for each step that saves time


class StepCosts:
    """Seconds of a step by its draft tokens.

    The estimate is a line over all tokens of a step, plus a constant, which may be negative, for
    steps with draft tokens: they run other kernels than plain ones. Recent steps weigh more. Other
    work on the machine delays steps and never speeds one up, so the line runs along the faster
    ones. Steps of one width do not show what a token costs, so a small cost is then assumed, and
    steps without draft tokens are asked for: the first one, then often at first, seldom later. The
    first steps with draft tokens are doubted: if they were slow, one draft token has the assumed
    price again after a while.

    Args:
        slope: part of a step of one token that each further token is assumed to take.

    Attributes:
        observed: steps so far.
    """

    def __init__(self, slope: float = _SLOPE) -> None:
        self.observed = 0
        self._assumed = slope
        # Of plain steps and of those with draft tokens: draft tokens, seconds, and the number of
        # the step.
        self._steps = np.zeros((2, 3, _KEPT_STEPS))
        self._counts = [0, 0]
        self._retry_at, self._is_retry = 0, False
        self._plain_at, self._plain_after = 0, 0
        self._fit_at = 0  # steps observed by then; 0: there is no fit
        self._line = (1.0 + slope, slope, 0.0)  # intercept, slope, jump

    def wants_plain(self) -> bool:
        """Return whether the next step should have no draft tokens,
        because none was measured for a while.
        """
        if self.observed - self._plain_at < self._plain_after:
            return False
        self._plain_at = self.observed  # whether that step can be measured or not
        self._plain_after = min(max(2 * self._plain_after, _FIRST_PLAIN), _LAST_PLAIN)
        return True

    def observe(self, drafted: int, seconds: float) -> None:
        """Learn that a step with `drafted` draft tokens took `seconds`."""
        seconds = max(seconds, _MIN_SECONDS)
        self.observed += 1
        kind = int(drafted > 0)
        self._steps[kind, :, self._counts[kind] % _KEPT_STEPS] = drafted, seconds, self.observed
        self._counts[kind] += 1
        if drafted:
            self._retry_at = self.observed + _RETRY * 2 ** min(self._counts[1], _FEW)
        if not drafted:
            self._plain_at = self.observed

    def time(self, drafted: int) -> float:
        """Return the seconds of a step, as of the latest `table`, in its unit."""
        intercept, slope, jump = self._line
        seconds = intercept + slope * drafted + jump * (drafted > 0)
        if drafted == 1 and self._is_retry:
            return min(seconds, (1 + self._assumed) * intercept)
        return seconds

    @property
    def per_token(self) -> float:
        """The seconds of each draft token, as of the latest `table`, in its unit."""
        return self._line[1]

    def table(self, most: int) -> Floats:
        """Return the seconds of a step with 0 .. most draft tokens, float64[most + 1].

        Before any step was observed, the unit is another one.
        """
        if self.observed - self._fit_at >= max(1, min(self._fit_at // 4, _REFIT)):
            self._line = self._fitted()
            self._fit_at = self.observed
        intercept, slope, jump = self._line
        drafted = np.arange(most + 1)
        seconds: Floats = intercept + slope * drafted + jump * (drafted > 0)
        self._is_retry = 0 < self._counts[1] < _FEW and self.observed >= self._retry_at
        seconds[1:2] = self.time(1)
        return seconds

    def _fitted(self) -> tuple[float, float, float]:
        """Return the seconds of a plain step, those of a draft token, and those of having any."""
        latest = [steps[:, :count] for steps, count in zip(self._steps, self._counts, strict=True)]
        drafted, seconds, numbers = np.concatenate(latest, axis=1)
        weights = 0.5 ** ((self.observed - numbers) / _HALF_LIFE)
        has_drafts = drafted > 0
        typical, width = _median(seconds, weights), _median(drafted, weights)
        assumed = self._assumed * typical / (1 + self._assumed * (1 + width))
        kinds = [kind for kind in (has_drafts, ~has_drafts) if kind.any()]
        intercept, slope, jump = typical - assumed * width, assumed, 0.0
        for _ in range(_ROUNDS):
            errors = seconds - (intercept + slope * drafted + jump * has_drafts)
            believed = weights.copy()
            for kind in kinds:  # each by itself: there may be few of one, far from all of the other
                believed[kind] *= _belief(errors[kind], weights[kind], 1e-3 * typical)
            intercept, slope, jump = _solved(drafted, has_drafts, seconds, believed, assumed)
        least = _MIN_SLOPE * typical
        slope = max(slope, least)
        intercept = max(intercept, least)
        return intercept, slope, max(jump, least - intercept)


def _belief(errors: Floats, weights: Floats, least: float) -> Floats:
    """Return how far each step is believed, 0..1: less where its
    error is large, and soonest where it was slow.
    """
    sizes = np.abs(errors)
    bounds = np.where(errors > 0, _SLOW, _FAST) * max(_median(sizes, weights), least)
    belief: Floats = bounds / np.maximum(sizes, bounds)
    return belief


def _solved(
    drafted: Floats,
    has_drafts: npt.NDArray[np.bool_],
    seconds: Floats,
    weights: Floats,
    assumed: float,
) -> tuple[float, float, float]:
    """Return intercept, slope and jump by weighted least squares,
    regularized towards the assumed slope and no jump.

    This does not use BLAS, whose threads would compete with the model's.
    """
    total = float(weights.sum())
    w, j, s = (float((weights * column).sum()) / total for column in (drafted, has_drafts, seconds))
    widths, jumps, seconds = drafted - w, has_drafts - j, seconds - s
    ww = float((weights * widths * widths).sum()) + _SLOPE_WEIGHT
    jj = float((weights * jumps * jumps).sum()) + _JUMP_WEIGHT
    wj = float((weights * widths * jumps).sum())
    ws = float((weights * widths * seconds).sum()) + _SLOPE_WEIGHT * assumed
    js = float((weights * jumps * seconds).sum())
    slope = (ws * jj - js * wj) / (ww * jj - wj * wj)
    jump = (js - slope * wj) / jj
    return s - slope * w - jump * j, slope, jump


def _median(values: Floats, weights: Floats) -> float:
    order = np.argsort(values)
    below = np.cumsum(weights[order])
    return float(values[order[np.searchsorted(below, below[-1] / 2)]])


class Pauses:
    """Steps in which somebody is not asked for drafts, because that loses more than it saves.

    Pauses grow until asking costs about a hundredth of the time, or to 128 steps; steps that save
    time shorten the next pause.
    """

    def __init__(self) -> None:
        self._saved = 0.0  # smoothed, in plain steps
        self._left, self._next = 0, float(_MIN_PAUSE)

    def ends(self) -> bool:
        """Return whether to ask in this step; called once for each."""
        if not self._left:
            return True
        self._left -= 1
        return False

    def settle(self, saved: float) -> None:
        """Learn what a step that asked has saved, in plain steps; less than 0: it has lost."""
        self._saved += _SMOOTHING * (saved - self._saved)
        if saved > 0:
            self._next = max(_RELIEF * self._next, _MIN_PAUSE)
        elif self._saved < -_LOSS:
            self._left = math.ceil(min(self._next, -self._saved / (_SMOOTHING * _LOSS)))
            self._saved, self._next = 0.0, min(_GROWTH * self._left, _MAX_PAUSE)


class DraftPolicy:
    """Decides for each step whether to ask for drafts, and whom,
    and how many draft tokens to verify.

    A session is told what draft tokens cost (`costs`), and cuts its tree. Asking takes time, too.
    Where it takes longer than it saves, as in texts that nothing matches, it pauses. Asking
    services pauses by itself.

    The sum of the scores of verified draft tokens is what they promise. Where fewer are accepted,
    scores count for less. So scores that promise too much cost a bounded time: in the long run
    about `_SLACK * _PRIOR * (1 - _KEPT_PROMISES)` tokens a step.

    A step: `wants_drafts`, and if so `wants_services` and `costs`; after it `observe`, and if
    drafts were asked for `learn`.

    Args:
        slope: that of new `StepCosts`.
    """

    def __init__(self, slope: float = _SLOPE) -> None:
        self._costs = StepCosts(slope)
        self.begin()

    def begin(self) -> None:
        """Start another generation: what steps cost is kept, all else is forgotten."""
        self._promised = self._accepted = 0.0  # tokens
        self._drafting, self._services = Pauses(), Pauses()

    def wants_drafts(self, waiting: int = 0) -> bool:
        """Whether to ask for drafts in this step; called once for each.

        Args:
            waiting: tokens that the step reads again, because a draft of an earlier one was partly
                wrong. A step that reads some is no plain one, with or without drafts.
        """
        self._promised *= _KEPT_PROMISES
        self._accepted *= _KEPT_PROMISES
        return self._drafting.ends() and not (waiting == 0 and self._costs.wants_plain())

    def wants_services(self) -> bool:
        """Whether to ask services, too, in a step that asks for drafts; called once for each."""
        return self._services.ends()

    @property
    def reliability(self) -> float:
        """What scores are multiplied by: 1 unless fewer tokens are
        accepted than they promise, and above 0.
        """
        return min(1.0, _SLACK * (self._accepted + _PRIOR) / (self._promised + _PRIOR))

    def costs(self, most: int, waiting: int = 0) -> Floats:
        """Return what a step costs for a session to cut its tree by, float64[most + 1].

        It is the seconds of a step with 0 .. most draft tokens, more where scores have promised too
        much.

        Args:
            most: draft tokens.
            waiting: as in `wants_drafts`.
        """
        seconds = self._costs.table(most + waiting)[waiting:]
        added = seconds - seconds[0]  # below 0 where a wider step runs a faster kernel
        costs: Floats = seconds[0] + np.where(added > 0, added / self.reliability, added)
        return costs

    def worth(self, scores: Floats, waiting: int) -> int:
        """Return how many tokens of a chain to verify where those
        of one that is partly wrong are read again.

        If the model does not write the whole chain, the next step reads again what waits now, the
        last token, and the draft tokens that were accepted, and may be partly wrong, too. A step
        without drafts leaves nothing to be read again. So the more waits, the less is worth a risk:
        a token is worth the time that it takes when nothing waits. In simulations of known
        probabilities this is within 1% of the best rule.

        Args:
            scores: of the chain, float64[n]: how probable it is that each token is accepted with
                all before it.
            waiting: as in `wants_drafts`.
        """
        likely = np.concatenate([[1.0], self.reliability * scores])
        tokens = np.cumsum(likely)
        table = self._costs.table(waiting + scores.size)
        again = tokens - 1 - np.arange(likely.size) * likely  # the draft tokens of those
        per_token = _AGAIN * self._costs.per_token
        alone = table[: likely.size] + per_token * (1 - likely + again)
        seconds = table[waiting:] + per_token * ((1 - likely) * (1 + waiting) + again)
        return int(np.argmax(tokens - float((tokens / alone).max()) * seconds))

    def observe(self, drafted: int, seconds: float) -> None:
        """Learn from a step: its draft tokens, and the seconds that it took without drafting.

        Where the model runs on the processor, its time may be given instead, for which other
        processes matter less; then also in `learn`.
        """
        self._costs.observe(drafted, seconds)

    def learn(
        self,
        drafted: int,
        promised: float,
        accepted: float,
        seconds: float,
        waited: float = 0.0,
        of_services: float = 0.0,
    ) -> None:
        """Learn what drafting for a step took and brought; pause if it loses more than it saves.

        Args:
            drafted: draft tokens that were verified.
            promised: the sum of their scores.
            accepted: how many of these the model also produced.
            seconds: of drafting.
            waited: how many of these services took; 0: none was asked.
            of_services: how many of the accepted ones would not have been without services.
        """
        if self._costs.observed:
            plain, time = self._costs.time(0), self._costs.time(drafted)
            self._drafting.settle(
                1 + self.reliability * promised - (time + seconds - waited) / plain
            )
            if waited:
                self._services.settle(of_services - waited / plain)
        self._promised += promised
        self._accepted += accepted
