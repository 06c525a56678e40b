"""A step's choice between a session's chain and the chain of a trained head.

A head (EAGLE, MTP) is a drafter of the target model that takes time of its own. Where a text is
copied, the session is as good; where it is new, the head is better. `rest_store.bench.head_plans`
puts both into one tree.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Floats: TypeAlias = npt.NDArray[np.float64]

# A bucket is a range of the score of the session's likeliest node: where the session is sure, the
# head is, too. These are the bounds between buckets.
_BUCKETS = (0.1, 0.3, 0.5, 0.7, 0.9)
SURE = 3  # the first bucket in which the session is sure
NO_DRAFT = len(_BUCKETS) + 1  # the bucket of steps without a draft of the session

# The acceptance that is assumed at first: of a head's first token, and of each later one.
_FIRST_ACCEPTANCE = 0.7
_LATER_ACCEPTANCE = 0.75
_ASSUMED_WEIGHT = 4.0  # of that assumption, in tokens
_SHARED_WEIGHT = 30.0  # of the experience with all texts, beside that with one, in tokens
# Exponential decay per token of the head: of the experience with all texts, and with one.
_DECAY = 0.9995
_TEXT_DECAY = 0.99
_MAX_ACCEPTANCE = 0.98  # no greater acceptance is believed


class Head:
    """A trained head beside draft sessions: its costs, and its acceptance so far.

    The acceptance of its tokens depends on the text, and on how sure the session is of its own
    first token. Both are learned from the steps that ran the head. All texts share one head.

    Args:
        seconds: float[k + 1], the time in which it drafts 0, 1, .. k tokens, in the unit of a
            step's costs.

    Not thread-safe.
    """

    def __init__(self, seconds: Sequence[float] | Floats) -> None:
        self._seconds = np.asarray(seconds, np.float64)
        # Tokens of the head that were verified, and accepted: the first of a chain and later ones,
        # by bucket.
        shape = (2, NO_DRAFT + 1)
        self._tried = np.full(shape, _ASSUMED_WEIGHT)
        self._accepted = self._tried * np.array([[_FIRST_ACCEPTANCE], [_LATER_ACCEPTANCE]])
        self._tried_in_text = np.zeros(shape)
        self._accepted_in_text = np.zeros(shape)
        # Nodes of the session that were accepted, and the sum of their scores.
        self._promises = np.full(2, _ASSUMED_WEIGHT)
        self._promises_in_text = np.zeros(2)

    def for_text(self) -> Head:
        """Return the head for another text: both share their experience with all texts."""
        head = copy.copy(self)
        head._tried_in_text = np.zeros_like(self._tried)
        head._accepted_in_text = np.zeros_like(self._tried)
        head._promises_in_text = np.zeros(2)
        return head

    def prefers_session(self, scores: Sequence[float], tokens: int | None = None) -> bool:
        """Return whether a step should verify the session's chain, and not the head's.

        Args:
            scores: of the session's chain.
            tokens: the most tokens that the step verifies; None: all that the head drafts.
        """
        verified = scores[:tokens]
        first = np.array(scores[:1] or [0.0])
        sums = np.array([sum(verified)])
        sizes = np.array([len(verified)])
        return bool(self.prefers_sessions(first, sums, sizes, tokens)[0])

    def prefers_sessions(
        self,
        first: Floats,
        sums: Floats,
        sizes: npt.NDArray[np.integer],
        tokens: int | None = None,
    ) -> npt.NDArray[np.bool_]:
        """Return `prefers_session` for many chains, bool[n].

        Args:
            first: float[n], the first score of each chain; 0: it is empty.
            sums: float[n], the sum of its scores.
            sizes: int[n], its tokens.
            tokens: the most tokens that the step verifies; None: all that the head drafts.
        """
        # Both sides are numbers of tokens that the model is expected to accept.
        from_sessions = np.minimum(self._reliability * sums, sizes)
        from_head_by_bucket = np.array(
            [self.survival(bucket)[:tokens].sum() for bucket in range(len(_BUCKETS) + 1)]
        )
        buckets = np.searchsorted(_BUCKETS, first, side="right")
        preferred: npt.NDArray[np.bool_] = from_sessions > from_head_by_bucket[buckets]
        return preferred

    def learn_chain(
        self, scores: Sequence[float], accepted: int, *, is_of_head: bool, tried: int | None = None
    ) -> None:
        """Learn from a step that verified one chain.

        Args:
            scores: of the session's chain.
            accepted: how many tokens of the verified chain the model wrote.
            is_of_head: whether that was the head's chain.
            tried: how many tokens of that chain were verified; None: all of them.
        """
        if not is_of_head:
            self._learn_promises(accepted, sum(scores[:tried]))
            return
        drafted = self._seconds.size - 1
        verified = drafted if tried is None else min(tried, drafted)
        self._learn_head(bucket_of(scores), accepted, verified)

    def _learn_promises(self, accepted: int, promised: float) -> None:
        """Learn from a session's chain: its accepted tokens, and the sum of its scores."""
        new = np.array([accepted, promised])
        self._promises[:] = _DECAY * self._promises + new
        self._promises_in_text[:] = _TEXT_DECAY * self._promises_in_text + new

    def _learn_head(self, bucket: int, accepted: int, tried: int) -> None:
        """Learn from a chain of the head: `accepted` of its `tried` tokens."""
        # Each row: the first token, and the later ones. A later token counts as tried if all tokens
        # before it were accepted.
        new_accepted = np.array([accepted > 0, max(0, accepted - 1)], np.float64)
        new_tried = np.array([1, min(accepted, tried - 1)], np.float64)
        for counts, new, decay in (
            (self._accepted, new_accepted, _DECAY),
            (self._tried, new_tried, _DECAY),
            (self._accepted_in_text, new_accepted, _TEXT_DECAY),
            (self._tried_in_text, new_tried, _TEXT_DECAY),
        ):
            counts[:, bucket] = decay * counts[:, bucket] + new

    @property
    def _reliability(self) -> float:
        """The factor for the scores of nodes: the best of many promises are often too good."""
        accepted, promised = self._promises
        accepted_in_text, promised_in_text = self._promises_in_text
        shared = _SHARED_WEIGHT * accepted / promised
        return float((accepted_in_text + shared) / (promised_in_text + _SHARED_WEIGHT))

    def survival(self, bucket: int) -> Floats:
        """Return the chances that at least 1, 2, .. tokens of the head are accepted, float64[k].

        Args:
            bucket: of the session's draft in the same step (`bucket_of`).
        """
        shared = _SHARED_WEIGHT * self._accepted[:, bucket] / self._tried[:, bucket]
        accepted = self._accepted_in_text[:, bucket] + shared
        tried = self._tried_in_text[:, bucket] + _SHARED_WEIGHT
        first, later = np.minimum(accepted / tried, _MAX_ACCEPTANCE)
        chances: Floats = first * later ** np.arange(self._seconds.size - 1)
        return chances


def bucket_of(scores: Sequence[float] | Floats) -> int:
    """Return the bucket of a draft of the session with these scores, the likeliest node first."""
    likeliest = scores[0] if len(scores) else 0.0
    return int(np.searchsorted(_BUCKETS, likeliest, side="right"))
