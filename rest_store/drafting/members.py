"""Members of a draft session: whole sessions over some of its sources, run in other processes.

A session asks its members for their trees, drafts its own meanwhile, and merges the trees that
arrive in time. A member that is late or fails is left out of the step.
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
    """Bits of the origins of a member's tree.

    Attributes:
        datastores: of all its datastores together.
        prompt_lookup: of its prompt lookup, which each member has.
        recycled_logits: the same.
    """

    datastores: int
    prompt_lookup: int
    recycled_logits: int


_ORIGINS = Origins(1, 2, 4)  # where the member's tree is merged with no other


@dataclass(frozen=True)
class MemberSettings:
    """The settings of a `DraftSession` for another process to run.

    Attributes:
        learn: whether the calibration learns from accepted tokens.
        tokenizer: of the session; None: that of the datastores.
        prompt_lookup: whether the text is a source.
        references: int32[n] each; prompt lookup searches these, too.
        recycled_logits: key under which sessions share recycled logits; None: these are no source.
        origins: the names of the sources in the session.
        group: the group that the generation is of; "": none.
    """

    learn: bool
    tokenizer: TokenizerIdentity | None
    prompt_lookup: bool = False
    references: Sequence[npt.NDArray[np.int32]] = ()
    recycled_logits: bytes | None = None
    origins: Origins = _ORIGINS
    group: str = ""


class Member(Protocol):
    """A session in another process, over the datastores of that process. One thread at a time.

    The connection may break. A later `send` opens the session again with the full text, after a
    pause that grows with each failure.

    Attributes:
        has_references: whether it searches the references of the settings.
    """

    has_references: bool

    def send(self, options: DraftOptions, /) -> None:
        """Send the tokens accepted since the last step, and ask for the next tree. Does not wait.

        Raises:
            DeadlineError: the answer to an earlier step has not come yet. The accepted tokens are
                sent with a later step.
            ServiceError: the request cannot be sent now; the subclass says why.
            TokenizerMismatchError: the datastores have another tokenizer.
        """

    def receive(self, timeout: float | None) -> TokenTree:
        """Return the tree that the latest `send` asked for.

        Args:
            timeout: seconds to wait at most; None: as long as the source says.

        Returns:
            A tree of that step's options, with the origins of the settings. Parents come before
            children, and no score is greater than the parent's (`require_tree`).

        Raises:
            DeadlineError: the tree has not come in time. It is skipped when it comes.
            ServiceError: no answer, or a malformed one; the subclass says why.
            TokenizerMismatchError: the datastores have another tokenizer.
        """

    def accept(
        self, tokens: npt.NDArray[np.int32], top_k: TopK | None, node_top_k: TopK | None
    ) -> None:
        """Hold the arguments of `DraftSession.accept` for the next step.

        Args:
            tokens: the new tokens.
            top_k: of these tokens, as there.
            node_top_k: [1 + N, k], the likely tokens after the text before, and after each of the N
                nodes of the tree that this member has returned since then. Rows are -1 where
                unknown; None: all are unknown. Without such a tree, N is 0.
        """

    def close(self) -> None:
        """End the session there; may be called again."""


@runtime_checkable
class MemberSource(Protocol):
    """A source whose sessions run in other processes: a `DatastoreClient`, or your own.

    In figures and messages it has the name that `str` gives it.
    """

    def members(
        self, settings: MemberSettings, text: Callable[[], npt.NDArray[np.int32]]
    ) -> Sequence[Member]:
        """Return the members of a new session: one, or one for each partition of the datastores.

        Does not wait. Where the service is known to answer, the session is opened ahead of its
        first step.

        Args:
            settings: of the session.
            text: returns the text so far, int32[n], to open the session with.
        """


def require_tree(where: str, tree: object, options: DraftOptions) -> None:
    """Check a tree where it enters a session: a member may be anybody's code.

    A `TokenTree` has valid columns, and parents before their children. This checks the rest.

    Args:
        where: how messages begin.
        tree: the tree.
        options: of the draft that the member was asked for.

    Raises:
        ArgumentError: not a `TokenTree`; more nodes than `options` allow, or branches in a chain; a
            negative token; no scores or origins; or a score that is not between 0 and its parent's
            (1 for a child of the context).
    """
    if not isinstance(tree, TokenTree):
        raise ArgumentError(describe(where, "tree", f"a {type(tree).__name__}", "a TokenTree"))
    size = len(tree)
    if size > options.max_nodes:
        raise ArgumentError(
            describe(where, "number of nodes", size, f"at most {options.max_nodes}")
        )
    if tree.scores is None or tree.origins is None:
        raise ArgumentError(f"{where}: a tree has no scores or no origins, expected both")
    if not size:
        return
    smallest = int(tree.tokens.min())
    if smallest < 0:
        raise ArgumentError(describe(where, "a token", smallest, "an id"))
    parents = tree.parents
    if options.is_chain and not np.array_equal(parents, np.arange(-1, size - 1)):
        raise ArgumentError(f"{where}: a tree has branches, expected a chain")
    # The last element stands for parent -1.
    parents_scores = np.append(tree.scores, np.float32(1))[parents]
    # Written so that NaN is wrong, too.
    is_wrong = ~((tree.scores >= 0) & (tree.scores <= parents_scores))
    if is_wrong.any():
        node = int(np.argmax(is_wrong))
        score = float(tree.scores[node])
        raise ArgumentError(
            describe(where, f"the score of node {node}", score, "0 to its parent's")
        )
