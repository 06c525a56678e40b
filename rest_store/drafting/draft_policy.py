"""Decisions before each step: whether to ask for drafts, whom, and how many tokens to verify.

A step that verifies draft tokens with scores s_1 .. s_m is expected to bring 1 + s_1 + .. + s_m
tokens. The text is written fastest where that sum over the step's time is greatest.
"""

from __future__ import annotations

import math

import numpy as np

from rest_store.drafting.costs import DEFAULT_SLOPE, Floats, StepCosts

# Decay per step of the promises of earlier steps, so that scores are tried again.
_PROMISE_DECAY = 0.5 ** (1 / 256)
_PRIOR_TOKENS = 2.0  # promised and accepted tokens that are assumed before any step
# Promised tokens for each accepted one, up to which scores are believed: chance does that, too.
_SLACK = 1.25

_REREADS = 2.0  # how often a token that waits is read again before it is committed, about

_SMOOTHING = 1 / 8  # of the time that a step with drafts saves
_MAX_LOSS = 0.01  # share of the time that drafting may cost
_MIN_PAUSE = 4  # steps
_MAX_PAUSE = 128
_PAUSE_GROWTH = 4.0  # of a pause after the one before
_PAUSE_RELIEF = 0.95  # of the next pause, for each step that saves time


class Pauses:
    """Steps in which a source of drafts is not asked, because asking loses more than it saves.

    Pauses grow until asking costs about a hundredth of the time, or to 128 steps. Steps that save
    time shorten the next pause.
    """

    def __init__(self) -> None:
        self._saved = 0.0  # smoothed, in plain steps
        self._steps_left = 0
        self._next_pause = float(_MIN_PAUSE)

    def ends(self) -> bool:
        """Return whether to ask in this step; called once for each step."""
        if not self._steps_left:
            return True
        self._steps_left -= 1
        return False

    def settle(self, saved: float) -> None:
        """Learn the time that a step which asked has saved, in plain steps; below 0: it lost."""
        self._saved += _SMOOTHING * (saved - self._saved)
        if saved > 0:
            self._next_pause = max(_PAUSE_RELIEF * self._next_pause, _MIN_PAUSE)
        elif self._saved < -_MAX_LOSS:
            enough = -self._saved / (_SMOOTHING * _MAX_LOSS)
            self._steps_left = math.ceil(min(self._next_pause, enough))
            self._next_pause = min(_PAUSE_GROWTH * self._steps_left, _MAX_PAUSE)
            self._saved = 0.0


class DraftPolicy:
    """Decides for each step whether to ask for drafts, and how many draft tokens to verify.

    A session takes the time of draft tokens (`costs`) and cuts its tree. Asking takes time, too.
    Where asking takes longer than it saves, as in texts that nothing matches, it pauses. Asking
    services pauses by itself.

    The sum of the scores of verified draft tokens is their promise. Where fewer are accepted,
    scores count for less. So scores that promise too much cost a bounded time: in the long run
    about `_SLACK * _PRIOR_TOKENS * (1 - _PROMISE_DECAY)` tokens a step.

    The calls of a step: `wants_drafts`; if it is true, `wants_services` and `costs`; after the step
    `observe`, and `learn` if drafts were asked for.

    Args:
        slope: of new `StepCosts`.
    """

    def __init__(self, slope: float = DEFAULT_SLOPE) -> None:
        self._costs = StepCosts(slope)
        self.begin()

    def begin(self) -> None:
        """Start another generation: forget all but the costs of steps."""
        self._promised = 0.0  # tokens
        self._accepted = 0.0
        self._drafting = Pauses()
        self._services = Pauses()

    def wants_drafts(self, waiting: int = 0) -> bool:
        """Return whether to ask for drafts in this step; called once for each step.

        Args:
            waiting: tokens that the step reads again, because a draft of an earlier one was partly
                wrong. A step that reads some is no plain one, with or without drafts.
        """
        self._promised *= _PROMISE_DECAY
        self._accepted *= _PROMISE_DECAY
        if not self._drafting.ends():
            return False
        return waiting > 0 or not self._costs.wants_plain()

    def wants_services(self) -> bool:
        """Return whether a step that asks for drafts asks services, too; called once for each."""
        return self._services.ends()

    @property
    def reliability(self) -> float:
        """The factor for scores: 1 unless fewer tokens are accepted than they promise; above 0."""
        accepted = self._accepted + _PRIOR_TOKENS
        promised = self._promised + _PRIOR_TOKENS
        return min(1.0, _SLACK * accepted / promised)

    def costs(self, max_drafted: int, waiting: int = 0) -> Floats:
        """Return the costs of a step for a session to cut its tree by, float64[max_drafted + 1].

        They are the seconds of a step with 0 .. max_drafted draft tokens, and more where scores
        have promised too much.

        Args:
            max_drafted: draft tokens.
            waiting: as in `wants_drafts`.
        """
        seconds = self._costs.table(max_drafted + waiting)[waiting:]
        added = seconds - seconds[0]  # below 0 where a wider step runs a faster kernel
        costs: Floats = seconds[0] + np.where(added > 0, added / self.reliability, added)
        return costs

    def worth(self, scores: Floats, waiting: int) -> int:
        """Return how many tokens of a chain to verify if a partly wrong chain is read again.

        If the model does not write the whole chain, the next step reads again: the tokens that wait
        now, the last token, and the accepted draft tokens. It may be partly wrong, too. A step
        without drafts leaves nothing to be read again. So the more tokens wait, the less is worth a
        risk: a token is worth the time that it takes when nothing waits. In simulations of known
        probabilities this is within 1% of the best rule.

        Args:
            scores: of the chain, float64[n]: the probability that each token is accepted with all
                before it.
            waiting: as in `wants_drafts`.
        """
        # Of each number of draft tokens from 0 on: the chance that all are accepted, the expected
        # new tokens, and how many of the draft tokens are read again.
        chances = np.concatenate([[1.0], self.reliability * scores])
        tokens = np.cumsum(chances)
        reread = tokens - 1 - np.arange(chances.size) * chances
        table = self._costs.table(waiting + scores.size)
        per_token = _REREADS * self._costs.per_token
        seconds_alone = table[: chances.size] + per_token * (1 - chances + reread)
        seconds = table[waiting:] + per_token * ((1 - chances) * (1 + waiting) + reread)
        speed_alone = float((tokens / seconds_alone).max())
        return int(np.argmax(tokens - speed_alone * seconds))

    def observe(self, drafted: int, seconds: float) -> None:
        """Learn the seconds of a step with so many draft tokens, without drafting.

        Where the model runs on the processor, `seconds` may be its processor time, which other
        processes hardly change; then also in `learn`.
        """
        self._costs.observe(drafted, seconds)

    def learn(
        self,
        drafted: int,
        promised: float,
        accepted: float,
        seconds: float,
        waited: float = 0.0,
        accepted_from_services: float = 0.0,
    ) -> None:
        """Learn the time and the tokens of drafting for a step; pause if it loses time.

        Args:
            drafted: draft tokens that were verified.
            promised: the sum of their scores.
            accepted: how many of these the model also produced.
            seconds: of drafting.
            waited: how many of these services took; 0: no service was asked.
            accepted_from_services: how many of the accepted tokens the step owes to services.
        """
        if self._costs.observed:
            plain = self._costs.time(0)
            time = self._costs.time(drafted)
            tokens = 1 + self.reliability * promised
            self._drafting.settle(tokens - (time + seconds - waited) / plain)
            if waited:
                self._services.settle(accepted_from_services - waited / plain)
        self._promised += promised
        self._accepted += accepted
