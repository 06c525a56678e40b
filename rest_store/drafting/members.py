"""Members of a draft session: whole sessions over some of its sources, run in other processes.

A session asks its members for their trees, drafts its own meanwhile, and merges those that arrive
in time. A member that is late or fails is left out of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.datastore.tree import TokenTree
from rest_store.drafting.draft_options import DraftOptions, TopK
from rest_store.errors import ArgumentError, describe


class Origins(NamedTuple):
    """Bits of the origins of a member's tree: its datastores
    together, and the sources that each member has.
    """

    datastores: int
    prompt_lookup: int
    recycled_logits: int


_ORIGINS = Origins(1, 2, 4)  # of a member that nobody else's trees are merged with


@dataclass(frozen=True)
class MemberSettings:
    """The settings of a `DraftSession` for another process to run.

    Attributes:
        learn: whether the calibration learns from what is accepted.
        tokenizer: of the session; None: that of the datastores.
        prompt_lookup: whether the text is a source.
        references: int32[n] each; prompt lookup searches these, too.
        recycled_logits: key under which sessions share recycled logits; None: these are no source.
        origins: what the session calls the sources.
    """

    learn: bool
    tokenizer: TokenizerIdentity | None
    prompt_lookup: bool = False
    references: Sequence[npt.NDArray[np.int32]] = ()
    recycled_logits: bytes | None = None
    origins: Origins = _ORIGINS


class Member(Protocol):
    """A session in another process, over datastores that it has. One thread at a time.

    It may be lost at any time; a later `send` then opens it again with the text, at the earliest
    after a pause that grows with each failure.

    Attributes:
        has_references: whether it searches the references of the settings.
    """

    has_references: bool

    def send(self, limits: DraftOptions) -> None:
        """Send what was accepted since the last step, and ask for the next tree; waits for nothing.

        Raises:
            DeadlineError: the answer to an earlier step has not come yet. What was accepted is
                kept.
            ServiceError: it cannot be sent now; the subclass says why.
            TokenizerMismatchError: the datastores have another tokenizer.
        """

    def receive(self, timeout: float | None) -> TokenTree:
        """Return the tree that the latest `send` asked for.

        Args:
            timeout: seconds to wait at most; None: as long as the source says.

        Returns:
            A tree within the limits, parents before children, with the origins of the settings, and
            with scores of which none is greater than the parent's.

        Raises:
            DeadlineError: it has not come in time. It is skipped when it comes.
            ServiceError: no answer, or one that is no such tree; the subclass says why.
            TokenizerMismatchError: the datastores have another tokenizer.
        """

    def accept(
        self, tokens: npt.NDArray[np.int32], top_k: TopK | None, node_top_k: TopK | None
    ) -> None:
        """Keep for the next step what `DraftSession.accept` was told.

        Args:
            tokens: the new tokens.
            top_k: of these, as there.
            node_top_k: [1 + N, k], after the text before, and after each of the N nodes of the tree
                that this member has returned since then, rows of -1 where unknown; None: nothing is
                known. Without such a tree, N is 0.
        """

    def close(self) -> None:
        """End the session there; may be called again."""


@runtime_checkable
class MemberSource(Protocol):
    """A source in other processes that run whole draft sessions
    over it: a `DatastoreClient`, or your own.

    In figures and messages it has the name that `str` gives it.
    """

    def members(
        self, settings: MemberSettings, text: Callable[[], npt.NDArray[np.int32]]
    ) -> Sequence[Member]:
        """Return the members of a new session: one, or one for each partition of the datastores.

        Waits for nothing. Where the service is known to answer, the session is opened ahead of its
        first step.

        Args:
            settings: of the session.
            text: returns the text so far, int32[n], to open the session with.
        """


def require_tree(where: str, tree: object, max_nodes: int) -> None:
    """Check a tree as it comes from a member, which may be anybody's code.

    Raises:
        ArgumentError: it is no `TokenTree`, has more than `max_nodes` nodes, a negative token, no
            scores or origins, or a score that is not between 0 and its parent's (1 for a child of
            the context).
    """
    if not isinstance(tree, TokenTree):
        raise ArgumentError(describe(where, "tree", f"a {type(tree).__name__}", "a TokenTree"))
    if len(tree) > max_nodes:
        raise ArgumentError(describe(where, "number of nodes", len(tree), f"at most {max_nodes}"))
    if tree.scores is None or tree.origins is None:
        raise ArgumentError(describe(where, "tree", "without scores or origins", "both"))
    if not len(tree):
        return
    if (least := int(tree.tokens.min())) < 0:
        raise ArgumentError(describe(where, "a token", least, "an id"))
    # The last one stands for parent -1.
    of_parents = np.append(tree.scores, np.float32(1))[tree.parents]
    # Not a number is wrong, too.
    wrong = np.flatnonzero(~((tree.scores >= 0) & (tree.scores <= of_parents)))
    if wrong.size:
        node = int(wrong[0])
        raise ArgumentError(
            describe(
                where, f"the score of node {node}", float(tree.scores[node]), "0 to its parent's"
            )
        )
