"""The draft sessions of a generation, whose failures never fail or change it.

Errors of sessions are caught, and a session that fails is closed; a warning says so.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from rest_store.datastore.tree import TokenTree
from rest_store.drafting.batch import batch_width, best_nodes, draft_all
from rest_store.drafting.draft_options import TOP_K, TopK
from rest_store.drafting.merge import subtree
from rest_store.drafting.session import DraftSession
from rest_store.errors import (
    DatastoreClosedError,
    DraftingWarning,
    SessionClosedError,
    SourceError,
    error_text,
)
from rest_store.generation.draft_counts import DraftCounts

if TYPE_CHECKING:  # torch is not needed here
    from rest_store.generation.drafting_options import DraftingOptions
    from rest_store.generation.output import Piece
    from rest_store.generation.top_tokens import TopTokens

EMPTY = TokenTree([], [], [], scores=[], origins=[])
_LONG_ABSENCE = 3  # steps after which a source that is still absent at the end is reported
_MAX_REASONS = 4
_MAX_REASON_LENGTH = 200


class _Drafted(NamedTuple):
    """The latest tree of a session.

    Attributes:
        size: its nodes, as the session made it.
        nodes: ascending indices of those that can be verified.
    """

    size: int
    nodes: npt.NDArray[np.intp]


_NOTHING = _Drafted(0, np.arange(0))


class DraftSessions:
    """The draft sessions of a generation, one for each row.

    Args:
        options: how to draft.
        prompts: token ids of each row, without padding.
        vocabulary_size: token ids of the model.

    Attributes:
        counts: of the sessions' work.
        waited: seconds that they spent on services in the latest step.

    Raises:
        SourceError: a `DraftSession` has wrong sources.
        DatastoreClosedError: a source is closed before the generation begins.
    """

    def __init__(
        self,
        options: DraftingOptions,
        prompts: Sequence[list[int]],
        vocabulary_size: int,
    ) -> None:
        self.counts = DraftCounts()
        self.waited = 0.0
        self._vocabulary_size = vocabulary_size
        self._sessions: list[DraftSession | None] = [None] * len(prompts)
        # Of each row, the latest tree.
        self._drafted = [_NOTHING] * len(prompts)
        self._stopped: dict[str, None] = {}  # why sessions and sources stopped, each reason once
        make = options.session_factory(
            len(prompts), lambda error: self._count_failure(f"references: {error_text(error)}")
        )
        for row, prompt in enumerate(prompts):
            try:
                self._sessions[row] = None if make is None else make(row, prompt)
            except (SourceError, SessionClosedError, DatastoreClosedError):
                self._close_all()
                raise
            except Exception as error:
                self._fail(row, f"opening: {error_text(error)}")

    @property
    def active(self) -> bool:
        """Whether a row still has a session."""
        return any(session is not None for session in self._sessions)

    def draft(
        self,
        depths: Sequence[int],
        max_nodes: int,
        costs: npt.NDArray[np.float64] | None,
        *,
        shape: str = "tree",
        services: bool = True,
    ) -> list[TokenTree]:
        """Return a tree for each row that can be verified, empty if there is none.

        Arguments as in `draft_all`, but for `depths`: how many tokens of each row can be accepted;
        0: it has ended. The `costs` of a batch are those of its widest tree (`batch_width`).
        """
        sessions: dict[int, DraftSession] = {}
        for row, session in enumerate(self._sessions):
            if session is not None and depths[row] > 0:
                sessions[row] = session
        trees = [EMPTY] * len(depths)
        self.counts.requested += len(sessions)
        self.waited = 0.0
        is_batch = costs is not None and len(sessions) > 1
        own_costs = None if is_batch else costs
        try:
            session_trees = draft_all(
                [*sessions.values()], max_nodes, own_costs, shape=shape, services=services
            )
        except Exception as error:
            for row in sessions:
                self._fail(row, f"draft: {error_text(error)}")
            return trees
        self.waited = max((session.statistics.waited for session in sessions.values()), default=0.0)
        whole: dict[int, TokenTree] = {}
        for row, tree in zip(sessions, session_trees, strict=True):
            # Nothing of it is verified; the session goes on.
            if wrong := self._fault(tree, max_nodes):
                self._drafted[row] = _Drafted(len(tree), np.arange(0))
                self._count_failure(f"draft: {wrong}")
                continue
            whole[row] = tree
        width = max_nodes
        if costs is not None and is_batch:
            width = batch_width([*whole.values()], costs[: 1 + max_nodes])
        for row, tree in whole.items():
            nodes = best_nodes(tree, width) if shape == "tree" else likeliest_nodes(tree)[:width]
            nodes = nodes[tree.depths[nodes] <= depths[row]]
            self._drafted[row] = _Drafted(len(tree), nodes)
            self.counts.empty += not nodes.size
            trees[row] = tree if nodes.size == len(tree) else subtree(tree, nodes)
        return trees

    def _fault(self, tree: TokenTree, max_nodes: int) -> str:
        """Return the fault of a tree, which somebody else's member may have made.

        Empty: nothing.
        """
        if len(tree) > max_nodes or tree.origins is None:
            return f"{len(tree)} nodes, at most {max_nodes} asked for; or without origins"
        if (
            len(tree)
            and not 0 <= int(tree.tokens.min()) <= int(tree.tokens.max()) < self._vocabulary_size
        ):
            return f"a token outside the model's 0..{self._vocabulary_size - 1}"
        return ""

    def count_by_services(self, piece: Piece) -> int:
        """Return how many of the accepted draft tokens would not have been without services."""
        number = 0
        for session, origins in zip(self._sessions, piece.origins, strict=True):
            if session is not None and (elsewhere := session.service_origins):
                draft_origins = [origin for origin in origins if origin]
                local_length = 0  # of the path that local sources drafted, too
                for origin in draft_origins:
                    if not origin & ~elsewhere:
                        break
                    local_length += 1
                number += len(draft_origins) - local_length
        return number

    def accept(self, piece: Piece, top_tokens: TopTokens) -> None:
        """Pass the accepted tokens to the sessions, with the likely tokens after each of them."""
        for row, (session, tokens) in enumerate(zip(self._sessions, piece.tokens, strict=True)):
            if session is None or not tokens:
                continue
            try:
                session.accept(tokens, **self._top_k(top_tokens, row, piece))
                self._drafted[row] = _NOTHING
            except Exception as error:  # it no longer knows the context
                self._fail(row, f"accept: {error_text(error)}")

    def close(self) -> None:
        """Close all sessions; say once if one or a source stopped."""
        self._close_all()
        if reasons := list(self._stopped):
            what = "nothing was drafted"
            if self.counts.nodes:
                what = "drafting went on without a session, source or reference"
            more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
            warnings.warn(f"rest-store: {what}: {reasons[0]}{more}", DraftingWarning, stacklevel=2)

    def _close_all(self) -> None:
        for row in range(len(self._sessions)):
            self._close(row)

    def _fail(self, row: int, reason: str) -> None:
        """Count a failure of the session of `row`, and close it."""
        self._count_failure(reason)
        self._close(row)

    def _count_failure(self, reason: str) -> None:
        self.counts.failed += 1
        self.counts.errors = [*self.counts.errors, reason[:_MAX_REASON_LENGTH]][:_MAX_REASONS]
        self._stopped[reason[:_MAX_REASON_LENGTH]] = None

    def _close(self, row: int) -> None:
        session, self._sessions[row] = self._sessions[row], None
        if session is None:
            return
        for source, steps in session.statistics.omissions.items():
            self.counts.omissions[source] = self.counts.omissions.get(source, 0) + steps
        for absence in session.statistics.absent.values():
            if absence.steps >= min(_LONG_ABSENCE, session.statistics.steps):
                self._stopped[absence.reason] = None
        with suppress(Exception):
            session.close()

    def _top_k(self, top_tokens: TopTokens, row: int, piece: Piece) -> dict[str, TopK | None]:
        """Return the arguments `top_k` and `node_top_k` of `DraftSession.accept`."""
        likely = np.full((len(piece.tokens[row]), TOP_K), -1, np.int32)
        if top_tokens.indices is None:
            return {"top_k": likely}
        top = top_tokens.indices[row]
        path = piece.paths[row]
        likely[: len(path) - 1, : top.shape[1]] = top[list(path[1:])]
        # A chain that was shortened has its first nodes.
        drafted = self._drafted[row]
        nodes = drafted.nodes[: len(piece.trees[row])]
        node_tokens = np.full((1 + drafted.size, top.shape[1]), -1, np.int32)
        node_tokens[0] = top[0]  # also where there is no tree
        node_tokens[1 + nodes] = top[1 : 1 + nodes.size]
        return {"top_k": likely, "node_top_k": node_tokens}


def likeliest_nodes(tree: TokenTree) -> npt.NDArray[np.intp]:
    """Return the nodes of the likeliest path of `tree`.

    A member of somebody else's may branch where a chain was requested.
    """
    if tree.parents.tolist() == list(range(-1, len(tree) - 1)):
        return np.arange(len(tree))
    scores = np.zeros(len(tree)) if tree.scores is None else tree.scores
    path: list[int] = []
    while children := np.flatnonzero(tree.parents == (path[-1] if path else -1)).tolist():
        path.append(max(children, key=scores.__getitem__))
    return np.array(path, np.intp)


def shortened(chain: TokenTree, nodes: int) -> TokenTree:
    """Return the first nodes of `chain`."""
    return chain if nodes >= len(chain) else subtree(chain, np.arange(nodes))
