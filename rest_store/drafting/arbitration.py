"""A step's choice between a session's tree, the chain of a trained head, and both in one tree.

A head (EAGLE, MTP) is a drafter of the target model that takes time of its own. Where a text is
copied, the tree alone is as good; where it is new, the head is better; in between both together
have the most expected tokens per second.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rest_store.datastore.tree import TokenTree
from rest_store.datastore.validation import IntSequence
from rest_store.drafting.merge import subtree
from rest_store.errors import ArgumentError, describe

Floats = npt.NDArray[np.float64]
_EMPTY = TokenTree([], [], [], scores=[])

# Of the score of a tree's likeliest node: where it is sure, the head is, too.
_BUCKETS = (0.1, 0.3, 0.5, 0.7, 0.9)
_SURE = 3  # the first bucket of those in which it is sure
_NOT_ASKED = len(_BUCKETS) + 1  # the bucket of steps without a draft of the session
# Acceptance of a head's first token, and of each later one, that is assumed at first.
_FIRST, _LATER = 0.7, 0.75
_ASSUMED = 4.0  # tokens' worth of that assumption
_KNOWN = 30.0  # tokens' worth of what all texts have shown, for a new one
_KEPT, _KEPT_OF_TEXT = 0.9995, 0.99  # what a token of the head leaves of earlier ones
_MAX_ACCEPTANCE = 0.98  # acceptance that is believed
_SMOOTHING = 1 / 16  # of what asking the session saves
_MAX_PAUSE = 7


class Plan(NamedTuple):
    """What a step is to verify.

    Attributes:
        tree: nodes of the session's tree, perhaps none.
        head_tokens: how many tokens the head is to draft; 0: it is not run.
        tokens: expected new tokens, with the bonus token.
        seconds: what the step is expected to take, in the unit of its costs.
        bucket: for `learn`.
    """

    tree: TokenTree
    head_tokens: int
    tokens: float
    seconds: float
    bucket: int


class Head:
    """A trained head beside draft sessions: what it costs, and what steps have shown of it.

    How many of its tokens are accepted depends on the text, and on how sure the session is of its
    own first token; both are learned from the steps that ran it. All texts share one.

    Args:
        seconds: float[k + 1], the time that it takes to draft 0, 1, .. k tokens, in the unit of a
            step's costs.
        drafting: the time that a session takes to draft its tree, in the same unit.

    Not thread-safe.
    """

    def __init__(self, seconds: Sequence[float] | Floats, drafting: float = 0.0) -> None:
        self._seconds = np.asarray(seconds, np.float64)
        self._drafting = drafting
        # By asking the session; steps in which it is not asked.
        self._saved, self._pause, self._left = 0.0, 0, 0
        # Tokens accepted, and tried: the first of a chain and later ones, by bucket.
        shape = (2, _NOT_ASKED + 1)
        self._tried = np.full(shape, _ASSUMED)
        self._accepted = self._tried * np.array([[_FIRST], [_LATER]])
        self._of_text = np.zeros((2, *shape))
        # Nodes accepted, and promised by their scores.
        self._promises, self._promises_of_text = np.full(2, _ASSUMED), np.zeros(2)

    def for_text(self) -> Head:
        """Return the same head for another text: what one learns for all texts, both know."""
        head = copy.copy(self)
        head._of_text, head._promises_of_text = np.zeros_like(self._of_text), np.zeros(2)
        head._saved, head._pause, head._left = 0.0, 0, 0
        return head

    def prefers_session(self, scores: Sequence[float], tokens: int | None = None) -> bool:
        """Return whether a step that verifies one chain should verify
        the session's, and not as much of the head's.

        Args:
            scores: of the session's chain.
            tokens: the most tokens that the step verifies; None: all that the head drafts.
        """
        of_head = self._survival(_bucket(scores))[:tokens].sum()
        scores = scores[:tokens]
        return bool(min(self._reliability * sum(scores), len(scores)) > of_head)

    def learn_chain(
        self, scores: Sequence[float], accepted: int, *, is_of_head: bool, tried: int | None = None
    ) -> None:
        """Learn what became of a step that verified one chain.

        Args:
            scores: of the session's chain.
            accepted: how many tokens of the verified chain the model wrote.
            is_of_head: whether that was the head's chain.
            tried: how many tokens of that chain were verified; None: all of them.
        """
        if is_of_head:
            drafted = self._seconds.size - 1
            self._learn_head(
                _bucket(scores), accepted, drafted if tried is None else min(tried, drafted)
            )
        else:
            self._learn_promises(accepted, sum(scores[:tried]))

    def wants_tree(self) -> bool:
        """Return whether to ask the session in this step, too; called once for each.

        In texts that the head alone drafts better, the session is asked now and then.
        """
        self._left -= 1
        return self._left < 0

    def plan(self, tree: TokenTree | None, costs: Sequence[float] | Floats) -> Plan:
        """Return what a step is to verify: what has the most expected tokens per second.

        Args:
            tree: a session's, with scores, not cut by costs; None: it was not asked.
            costs: float[n + 1], the time of a step that verifies 0, 1, .. n draft tokens, in any
                unit.

        Raises:
            ArgumentError: the tree has no scores, such as one of `Datastore.draft`.
        """
        was_asked = tree is not None
        tree = _EMPTY if tree is None else tree
        if tree.scores is None:
            raise ArgumentError(
                describe("head", "scores of the tree", "absent", "those that a session gives")
            )
        times = np.asarray(costs, np.float64)
        order = np.argsort(-tree.scores, kind="stable")  # no child comes before its parent
        scores = tree.scores[order].astype(np.float64)
        bucket = _bucket(scores) if was_asked else _NOT_ASKED
        by_depth = np.zeros(
            (1 + scores.size, max(int(tree.depths.max(initial=0)), self._seconds.size - 1))
        )
        by_depth[1 + np.arange(scores.size), tree.depths[order] - 1] = scores
        # Chances that at least so many tokens are accepted: of the best n nodes, and of k tokens of
        # the head.
        of_tree = np.minimum(self._reliability * by_depth.cumsum(axis=0), 1.0)
        of_head = np.zeros((self._seconds.size, of_tree.shape[1]))
        survival = self._survival(bucket)
        for count in range(1, self._seconds.size):
            of_head[count, :count] = survival[:count]
        # Either of two: where the session is sure, they accept the same; elsewhere they are
        # independent.
        if _SURE <= bucket < _NOT_ASKED:
            both = np.minimum(of_tree[:, None, :], of_head[None, :, :]).sum(axis=2)
        else:
            both = np.einsum("nd,kd->nk", of_tree, of_head)
        tokens = 1 + of_tree.sum(axis=1)[:, None] + of_head.sum(axis=1)[None, :] - both
        drafted = np.arange(1 + scores.size)[:, None] + np.arange(self._seconds.size)[None, :]
        seconds = times[np.minimum(drafted, times.size - 1)] + self._seconds[None, :]
        speeds = np.where(drafted < times.size, tokens / seconds, 0.0)
        nodes, head_tokens = divmod(int(speeds.argmax()), self._seconds.size)
        best = float(tokens[nodes, head_tokens]), float(seconds[nodes, head_tokens])
        if was_asked:  # in what the head alone would write meanwhile
            saved = best[0] - float(speeds[0].max()) * (best[1] + self._drafting)
            self._saved += _SMOOTHING * (saved - self._saved)
            self._pause = (
                0 if saved >= 0 or self._saved > 0 else min(2 * self._pause + 1, _MAX_PAUSE)
            )
            self._left = self._pause
        return Plan(subtree(tree, np.sort(order[:nodes])), head_tokens, *best, bucket)

    def learn(self, plan: Plan, of_tree: int, of_head: int) -> None:
        """Learn what became of a plan.

        Args:
            plan: what was verified.
            of_tree: how many nodes of its tree the model wrote.
            of_head: how many tokens of the head's chain the model wrote, whether they were in the
                tree or not.
        """
        if plan.tree.scores is not None and len(plan.tree):
            self._learn_promises(of_tree, float(plan.tree.scores.sum()))
        if plan.head_tokens:
            self._learn_head(plan.bucket, min(of_head, plan.head_tokens), plan.head_tokens)

    def _learn_promises(self, accepted: int, promised: float) -> None:
        new = np.array([accepted, promised])
        for promises, kept in ((self._promises, _KEPT), (self._promises_of_text, _KEPT_OF_TEXT)):
            promises[:] = kept * promises + new

    def _learn_head(self, bucket: int, accepted: int, tried: int) -> None:
        new_accepted = np.array([accepted > 0, max(0, accepted - 1)], np.float64)
        new_tried = np.array([1, min(accepted, tried - 1)], np.float64)
        for counts, kept in (
            ((self._accepted, self._tried), _KEPT),
            (self._of_text, _KEPT_OF_TEXT),
        ):
            for column, new in zip(counts, (new_accepted, new_tried), strict=True):
                column[:, bucket] = kept * column[:, bucket] + new

    @property
    def _reliability(self) -> float:
        """What scores of nodes are to be multiplied by, since the
        best of many promises are often too good.
        """
        accepted, promised = self._promises
        of_text, promised_in_text = self._promises_of_text
        return float((of_text + _KNOWN * accepted / promised) / (promised_in_text + _KNOWN))

    def _survival(self, bucket: int) -> Floats:
        """Return the chances that at least 1, 2, .. tokens of the head are accepted, float64[k]."""
        known = self._accepted[:, bucket] / self._tried[:, bucket]
        accepted, tried = self._of_text[:, :, bucket]
        first, later = np.minimum((accepted + _KNOWN * known) / (tried + _KNOWN), _MAX_ACCEPTANCE)
        chances: Floats = first * later ** np.arange(self._seconds.size - 1)
        return chances


def _bucket(scores: Sequence[float] | Floats) -> int:
    """Return the bucket of a draft of the session with these scores, the likeliest node first."""
    return int(np.searchsorted(_BUCKETS, scores[0] if len(scores) else 0.0, side="right"))


def with_chain(tree: TokenTree, chain: IntSequence) -> TokenTree:
    """Return `tree` and the tokens of a chain as one tree, without
    scores: its own nodes first, then what is new.
    """
    tokens, parents = tree.tokens.tolist(), tree.parents.tolist()
    path = tree.longest_path(chain)
    last = int(path[-1]) if len(path) else -1
    for token in list(chain)[len(path) :]:
        tokens.append(int(token))
        parents.append(last)
        last = len(tokens) - 1
    return TokenTree(tokens, parents, [0] * len(tokens))
