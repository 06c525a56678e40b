"""A step's choice between a session's tree, the chain of a trained head, and both in one tree.

Between texts that are copied and texts that are new, both together have the most expected tokens
per second.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rest_store.datastore.tree import TokenTree
from rest_store.datastore.validation import IntSequence
from rest_store.drafting.arbitration import NO_DRAFT, SURE, Floats, Head, bucket_of
from rest_store.drafting.merge import subtree
from rest_store.errors import ArgumentError

_EMPTY = TokenTree([], [], [], scores=[])
_SMOOTHING = 1 / 16  # of the time that asking the session saves
_MAX_PAUSE = 7  # steps in a row in which the session is not asked


class Plan(NamedTuple):
    """The draft of one step.

    Attributes:
        tree: nodes of the session's tree, perhaps none.
        head_tokens: how many tokens the head is to draft; 0: it is not run.
        tokens: expected new tokens, with the bonus token.
        seconds: expected time of the step, in the unit of its costs.
        bucket: for `PlannedHead.learn`.
    """

    tree: TokenTree
    head_tokens: int
    tokens: float
    seconds: float
    bucket: int


class PlannedHead(Head):
    """A trained head whose chain may be verified together with the session's tree.

    Args:
        seconds: as of `Head`.
        drafting: the time in which a session drafts its tree, in the same unit.

    Not thread-safe.
    """

    def __init__(self, seconds: Sequence[float] | Floats, drafting: float = 0.0) -> None:
        super().__init__(seconds)
        self._drafting = drafting
        self._begin_text()

    def _begin_text(self) -> None:
        self._saved = 0.0  # smoothed time that asking the session saves
        self._pause = 0  # steps of the latest pause
        self._pause_left = 0

    def for_text(self) -> PlannedHead:
        """Return the head for another text: both share their experience with all texts."""
        head = super().for_text()
        assert isinstance(head, PlannedHead)
        head._begin_text()
        return head

    def wants_tree(self) -> bool:
        """Return whether to ask the session in this step, too; called once for each step.

        In texts that the head alone drafts better, the session is asked now and then.
        """
        self._pause_left -= 1
        return self._pause_left < 0

    def plan(self, tree: TokenTree | None, costs: Sequence[float] | Floats) -> Plan:
        """Return the draft with the most expected tokens per second.

        Args:
            tree: a session's, with scores, not cut by costs; None: the session was not asked.
            costs: float[n + 1], the time of a step that verifies 0, 1, .. n draft tokens, in any
                unit.

        Raises:
            ArgumentError: the tree has no scores, such as one of `Datastore.draft`.
        """
        was_asked = tree is not None
        if tree is None:
            tree = _EMPTY
        if tree.scores is None:
            raise ArgumentError("head: a tree has no scores, expected the tree of a session")
        order = np.argsort(-tree.scores, kind="stable")  # no child comes before its parent
        scores = tree.scores[order].astype(np.float64)
        bucket = bucket_of(scores) if was_asked else NO_DRAFT
        nodes_survival = self._nodes_survival(scores, tree.depths[order])
        head_survival = self._head_survival(bucket, nodes_survival.shape[1])
        # The chance that either of two is accepted. Where the session is sure, both propose the
        # same; elsewhere they are independent.
        if SURE <= bucket < NO_DRAFT:
            both = np.minimum(nodes_survival[:, None, :], head_survival[None, :, :]).sum(axis=2)
        else:
            both = np.einsum("nd,kd->nk", nodes_survival, head_survival)
        # Rows are numbers of nodes, columns are numbers of tokens of the head.
        tokens = 1 + nodes_survival.sum(axis=1)[:, None] + head_survival.sum(axis=1) - both
        drafted = np.arange(1 + scores.size)[:, None] + np.arange(self._seconds.size)
        times = np.asarray(costs, np.float64)
        seconds = times[np.minimum(drafted, times.size - 1)] + self._seconds
        speeds = np.where(drafted < times.size, tokens / seconds, 0.0)
        nodes, head_tokens = divmod(int(speeds.argmax()), self._seconds.size)
        best_tokens = float(tokens[nodes, head_tokens])
        best_seconds = float(seconds[nodes, head_tokens])
        if was_asked:
            # Tokens that the head alone would write in the same time.
            alone = float(speeds[0].max()) * (best_seconds + self._drafting)
            self._settle(best_tokens - alone)
        chosen = subtree(tree, np.sort(order[:nodes]))
        return Plan(chosen, head_tokens, best_tokens, best_seconds, bucket)

    def _nodes_survival(self, scores: Floats, depths: npt.NDArray[np.int32]) -> Floats:
        """Return the chances that at least 1, 2, .. tokens of the best n nodes are accepted.

        Returns:
            float64[1 + N, d], a row for each n.
        """
        depth = max(int(depths.max(initial=0)), self._seconds.size - 1)
        by_depth = np.zeros((1 + scores.size, depth))
        by_depth[1 + np.arange(scores.size), depths - 1] = scores
        chances: Floats = np.minimum(self._reliability * by_depth.cumsum(axis=0), 1.0)
        return chances

    def _head_survival(self, bucket: int, depth: int) -> Floats:
        """Return the chances that at least 1, 2, .. of k tokens of the head are accepted.

        Returns:
            float64[1 + K, d], a row for each k.
        """
        chances = np.zeros((self._seconds.size, depth))
        survival = self.survival(bucket)
        for count in range(1, self._seconds.size):
            chances[count, :count] = survival[:count]
        return chances

    def _settle(self, saved: float) -> None:
        """Learn how much the session has saved; pause if it does not pay."""
        self._saved += _SMOOTHING * (saved - self._saved)
        if saved >= 0 or self._saved > 0:
            self._pause = 0
        else:
            self._pause = min(2 * self._pause + 1, _MAX_PAUSE)
        self._pause_left = self._pause

    def learn(self, plan: Plan, tree_accepted: int, head_accepted: int) -> None:
        """Learn from a step.

        Args:
            plan: its draft.
            tree_accepted: how many nodes of the plan's tree the model wrote.
            head_accepted: how many tokens of the head's chain the model wrote, whether they were in
                the tree or not.
        """
        if plan.tree.scores is not None and len(plan.tree):
            self._learn_promises(tree_accepted, float(plan.tree.scores.sum()))
        if plan.head_tokens:
            accepted = min(head_accepted, plan.head_tokens)
            self._learn_head(plan.bucket, accepted, plan.head_tokens)


def with_chain(tree: TokenTree, chain: IntSequence) -> TokenTree:
    """Return `tree` and the tokens of a chain as one tree without scores; new nodes come last."""
    tokens = tree.tokens.tolist()
    parents = tree.parents.tolist()
    path = tree.longest_path(chain)
    last = int(path[-1]) if len(path) else -1
    for token in list(chain)[len(path) :]:
        tokens.append(int(token))
        parents.append(last)
        last = len(tokens) - 1
    return TokenTree(tokens, parents, [0] * len(tokens))
