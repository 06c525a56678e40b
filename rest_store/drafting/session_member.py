"""A member of a draft session as the session's steps ask it; what fails in it is left out, and counted."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from rest_store.datastore.tree import TokenTree
from rest_store.drafting.limits import DraftLimits, TopK
from rest_store.drafting.members import DATASTORES, PROMPT_LOOKUP, RECYCLED_LOGITS, Member
from rest_store.errors import DeadlineError, ProtocolError, TokenizerMismatchError, describe, error_text

_NO_NODES = np.zeros(0, np.int32)


class Drop(NamedTuple):
    """A source that a step goes on without.

    Attributes:
        place: among the session's sources.
        why: "error", "late" or "tokenizer".
        text: of the error.
    """

    place: int
    why: str
    text: str

    @classmethod
    def of(cls, place: int, error: Exception) -> Drop:
        """Return the source at `place`, because of `error`."""
        why = "error"
        if isinstance(error, TokenizerMismatchError):
            why = "tokenizer"
        elif isinstance(error, DeadlineError):
            why = "late"
        return cls(place, why, error_text(error))


class SessionMember:
    """One member, whose trees become those of the session's sources.

    Args:
        member: the member.
        place: of its source among the session's sources.
        prompt_lookup, recycled_logits: places of these; None: they are no sources.

    Attributes:
        nodes: int32[N], of each node of the tree that it returned last, the node of the session's tree that it is part
            of; -1: of none.
    """

    def __init__(self, member: Member, place: int, prompt_lookup: int | None, recycled_logits: int | None) -> None:
        self.place = place
        self.nodes = _NO_NODES
        self._member = member
        self._origins = np.zeros(8, np.uint8)  # of the session, for each mask of the member's
        for bit, source in ((DATASTORES, place), (PROMPT_LOOKUP, prompt_lookup), (RECYCLED_LOGITS, recycled_logits)):
            if source is not None:
                self._origins[np.arange(8) & bit > 0] |= 1 << source

    def send(self, limits: DraftLimits) -> Drop | None:
        """Ask for the next tree; return why it cannot be asked."""
        try:
            self._member.send(limits)
        except Exception as error:
            return Drop.of(self.place, error)
        return None

    def receive(self, limits: DraftLimits, timeout: float | None) -> TokenTree | Drop:
        """Return the tree, with the origins of the session, or why there is none within `timeout` seconds."""
        try:
            tree = self._of_session(self._member.receive(timeout), limits)
        except Exception as error:
            return Drop.of(self.place, error)
        self.nodes = np.full(len(tree), -1, np.int32)
        return tree

    def _of_session(self, tree: TokenTree, limits: DraftLimits) -> TokenTree:
        """Return `tree` with the origins of the session; raise ProtocolError if it is not what was asked for."""
        scores, origins, parents = tree.scores, tree.origins, tree.parents
        if scores is None or origins is None or len(tree) > limits.max_nodes:
            expected = f"at most {limits.max_nodes} with scores and origins"
            raise ProtocolError(describe("session", "nodes of the tree", len(tree), expected))
        above = np.where(parents < 0, np.float32(1), scores[parents])
        if not ((parents < np.arange(len(tree))) & (scores >= 0) & (scores <= above)).all():
            raise ProtocolError(describe("session", "scores of the tree", "malformed", "0.. that of the parent before"))
        return TokenTree.from_packed(tree.packed, (0, 0), scores.tobytes(), self._origins[origins & 7].tobytes())

    def forget(self) -> None:
        """The session's tree has no node of this member's any more."""
        self.nodes = np.full(self.nodes.size, -1, np.int32)

    def accept(self, tokens: npt.NDArray[np.int32], top_k: TopK | None, node_top_k: TopK | None) -> None:
        """Pass on what `DraftSession.accept` was told."""
        self._member.accept(tokens, top_k, None if node_top_k is None else rows_of(self.nodes, node_top_k))
        self.nodes = _NO_NODES

    def close(self) -> None:
        """End the session there; may be called again."""
        self._member.close()


def rows_of(nodes: npt.NDArray[np.int32], node_top_k: TopK) -> TopK:
    """Return the rows of `node_top_k` for a tree whose nodes are these `nodes` of the session's tree.

    Args:
        nodes: int32[N]; -1: not in the session's tree.
        node_top_k: [1 + M, k], of the session's tree.

    Returns:
        [1 + N, k], rows of -1 where nothing is known.
    """
    unknown = np.full((1, node_top_k.shape[1]), -1, node_top_k.dtype)
    places = np.where(nodes >= 0, nodes + 1, len(node_top_k))
    rows: TopK = np.concatenate([node_top_k, unknown])[np.concatenate([[0], places])]
    return rows
