"""A request of vLLM and its drafts, which may be looked up before the text is known."""

from __future__ import annotations

import numpy as np

from rest_store.datastore.tree import TokenTree
from rest_store.drafting.arbitration import Head
from rest_store.engines.request import NO_TREE, NewRequest, Tokens
from rest_store.engines.vllm.outcomes import NO_OUTCOMES, Outcomes


class VllmRequest:
    """A request that may have drafts from here.

    Args:
        new: how it began.
        head: the experience with a trained head in this text; None: there is no head.

    Attributes:
        new: how it began, without its text.
        outcomes: of the latest lookup.
        draft: the chain that the step under way verifies, or would verify without a head.
        is_chosen: whether the step verifies it.
    """

    def __init__(self, new: NewRequest, head: Head | None) -> None:
        self.new = new._replace(tokens=())
        self._head = head
        self.outcomes = NO_OUTCOMES
        self.draft = NO_TREE
        self.is_chosen = False

    def look_ahead(self, tree: TokenTree, verified: Tokens, max_nodes: int, room: int) -> None:
        """Take a session's drafts for each outcome; the arguments are those of `Outcomes`."""
        self.outcomes = Outcomes.from_tree(tree, verified, max_nodes, room, self._head)

    def end_step(self, new: Tokens) -> None:
        """End a step that has written some tokens: the next draft follows them."""
        if not new.size:
            self.forget_lookahead()
        self.set_draft(new)
        self.forget_lookahead()

    def set_draft(self, new: Tokens) -> None:
        """Set the draft to the one after the tokens that the text has grown by, if there is any."""
        place = self.outcomes.place_after(new)
        self.draft = self.outcomes.draft_after(place)
        self.is_chosen = len(self.draft) > 0 and bool(self.outcomes.is_preferred[place])

    def forget_lookahead(self) -> None:
        """Have no outcomes, as before any lookup."""
        self.outcomes = NO_OUTCOMES

    def verified(self, count: int) -> TokenTree:
        """Return the draft tokens of a session that the step under way has verified.

        Args:
            count: how many draft tokens the engine has verified.
        """
        if not self.is_chosen:
            return NO_TREE
        draft = self.draft
        if len(draft) <= count:
            return draft
        return TokenTree(
            draft.tokens[:count],
            draft.parents[:count],
            draft.counts[:count],
            scores=np.asarray(draft.scores)[:count],
            origins=np.asarray(draft.origins)[:count],
        )

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
