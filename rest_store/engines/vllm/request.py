"""A request of vLLM and its drafts, which may be looked up before the text is known.

A lookup knows a text as it was a step ago. The step under way adds up to K + 1 tokens to it. So the
first K + 1 + K tokens of a session's chain after that text hold the K tokens of the next draft, if
the chain is right so far.
"""

from __future__ import annotations

import numpy as np

from rest_store.datastore.tree import TokenTree
from rest_store.drafting.arbitration import Head
from rest_store.engines.request import NO_TREE, NewRequest, Tokens

_MIN_SCORE = 1e-6


class VllmRequest:
    """A request that may have drafts from here.

    Args:
        new: how it began.
        head: the experience with a trained head in this text; None: there is no head.

    Attributes:
        new: how it began, without its text.
        lookahead: a session's chain after the text as it was at the latest lookup.
        worth: whether to verify the rest of `lookahead`, by the number of tokens that the text has
            grown by since the lookup; more than these are not expected.
        draft: the chain that the step under way verifies, or would verify without a head.
        is_chosen: whether the step verifies it.
    """

    def __init__(self, new: NewRequest, head: Head | None) -> None:
        self.new = new._replace(tokens=())
        self._head = head
        self.lookahead = NO_TREE
        self.worth: list[bool] = []
        self.draft = NO_TREE
        self.is_chosen = False

    def look_ahead(self, chain: TokenTree, lag: int, max_nodes: int) -> None:
        """Take a session's chain after the text as it is known.

        Args:
            chain: the chain, perhaps empty.
            lag: the most tokens that the text grows by before the next draft.
            max_nodes: tokens of a draft.
        """
        self.forget_lookahead()
        if not len(chain):
            return
        self.lookahead = chain
        scores = np.asarray(chain.scores).tolist()
        for grown in range(min(lag, len(scores)) + 1):
            rest = _conditional(scores, grown, max_nodes)
            self.worth.append(self._is_worth(rest, max_nodes))

    def _is_worth(self, scores: list[float], max_nodes: int) -> bool:
        """Return whether to verify a chain with these scores, and not one of the head."""
        if not scores:
            return False
        return self._head is None or self._head.prefers_session(scores, max_nodes)

    def set_draft(self, new: Tokens, max_nodes: int) -> None:
        """Set the draft to the rest of the lookahead after the tokens that the text has grown by.

        There is none if the lookahead was wrong.
        """
        grown = new.size
        is_right = grown < len(self.worth) and np.array_equal(self.lookahead.tokens[:grown], new)
        self.draft = _rest(self.lookahead, grown, max_nodes) if is_right else NO_TREE
        self.is_chosen = is_right and self.worth[grown]

    def end_step(self, new: Tokens, max_nodes: int) -> None:
        """End a step that has written some tokens: the next draft follows them."""
        if not new.size:
            self.forget_lookahead()
        self.set_draft(new, max_nodes)
        self.forget_lookahead()

    def forget_lookahead(self) -> None:
        """Have no lookahead, as before any lookup."""
        self.lookahead = NO_TREE
        self.worth = []

    def verified(self, count: int) -> TokenTree:
        """Return the draft tokens of a session that the step under way has verified.

        Args:
            count: how many draft tokens the engine has verified.
        """
        if not self.is_chosen:
            return NO_TREE
        return _rest(self.draft, 0, count)

    def learn(self, written: int, verified: int) -> None:
        """Learn from a step about the head.

        Args:
            written: tokens that the step has written.
            verified: draft tokens that the engine has verified.
        """
        if self._head is not None and verified > 0:
            scores = np.asarray(self.draft.scores).tolist()
            self._head.learn_chain(
                scores, written - 1, is_of_head=not self.is_chosen, tried=verified
            )


def _conditional(scores: list[float], grown: int, max_nodes: int) -> list[float]:
    """Return the scores of a chain after its first `grown` tokens, given that these are right."""
    before = max(scores[grown - 1], _MIN_SCORE) if grown else 1.0
    return [score / before for score in scores[grown : grown + max_nodes]]


def _rest(chain: TokenTree, grown: int, max_nodes: int) -> TokenTree:
    """Return up to `max_nodes` tokens of a chain after its first `grown` ones, with scores."""
    if grown == 0 and len(chain) <= max_nodes:
        return chain
    scores = _conditional(np.asarray(chain.scores).tolist(), grown, max_nodes)
    size = len(scores)
    nodes = slice(grown, grown + size)
    return TokenTree(
        chain.tokens[nodes],
        range(-1, size - 1),
        chain.counts[nodes],
        scores=scores,
        origins=np.asarray(chain.origins)[nodes],
    )
