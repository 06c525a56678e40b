"""How far the scores of draft tokens can be believed."""

from __future__ import annotations

_KEPT = 0.5 ** (1 / 256)  # what a step leaves of earlier promises, so that scores are tried again


class Reliability:
    """The ratio of accepted tokens to those that scores promise: 1 unless fewer are accepted.

    The sum of the scores of verified draft tokens is what they promise. Scores that promise too much cost a bounded
    time, because verifying them lowers the ratio. In the long run they cost about `slack * prior * (1 - _KEPT)` tokens
    a step.

    Args:
        prior: tokens that are taken to be promised and accepted, beside those that were.
        slack: promised tokens for each accepted one, up to which scores are believed: chance does that, too.
    """

    def __init__(self, *, prior: float, slack: float = 1.0) -> None:
        self._prior, self._slack = prior, slack
        self._promised = self._accepted = 0.0

    @property
    def factor(self) -> float:
        """What scores are to be multiplied by, above 0 and at most 1."""
        return min(1.0, self._slack * (self._accepted + self._prior) / (self._promised + self._prior))

    def forget(self) -> None:
        """Give earlier steps less weight; called once a step."""
        self._promised *= _KEPT
        self._accepted *= _KEPT

    def add(self, promised: float, accepted: float) -> None:
        """Count the draft tokens of a step, on average over the rows of a batch.

        Args:
            promised: the sum of their scores.
            accepted: how many the model also produced.
        """
        self._promised += promised
        self._accepted += accepted
