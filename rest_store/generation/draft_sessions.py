"""The draft sessions of a generation, whose failures never fail or change it.

A session may be anybody's code. What it raises is caught, its trees are checked before they are verified, and failures
are counted; one warning says so if drafting stopped. Slow sources are bounded inside the session
(`DraftSession(source_timeout=...)`).

A session runs on the thread of its generation, where KeyboardInterrupt and SystemExit may be those of a handler of
signals: they pass through. Everything else is a failure of the session.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from rest_store.datastore.tree import TokenTree
from rest_store.drafting.session import DraftSession
from rest_store.errors import (
    DatastoreClosedError,
    DrafterError,
    DraftingWarning,
    LimitError,
    SessionError,
    describe,
    error_text,
)
from rest_store.generation.drafts import EMPTY, Draft, own_tree, tree_fault

if TYPE_CHECKING:  # torch is not needed here
    from rest_store.generation.top_k import TopTokens

TOP_K = 8  # most likely tokens passed to sessions
_MAX_FAILURES = 3  # in a row; then the session is closed
_MAX_REASONS, _MAX_REASON_LENGTH = 4, 200
_INTERRUPTS = (KeyboardInterrupt, SystemExit)


class Session(Protocol):
    """The drafting side of one sequence, for example a `DraftSession`."""

    def draft(self, *, max_nodes: int, costs: npt.NDArray[np.float64] | None) -> TokenTree:
        """Return a tree of continuations of all tokens so far; may be empty.

        Args:
            max_nodes: most nodes.
            costs: float64[max_nodes + 1], seconds of a step that verifies 0, 1, ... draft tokens; None: unknown.
        """

    def accept(self, tokens: Sequence[int]) -> None:
        """Take over the tokens that the target model produced, at least one, oldest first.

        Two more arguments are passed if the signature has them. `top_k`: int64[len(tokens), k], the model's most
        likely next tokens after each of `tokens`, -1 where unknown. `node_top_k`: int64[1 + N, k], the same after the
        context and after each of the N nodes of the latest tree; None if that tree was not verified as a whole.
        """

    def close(self) -> None:
        """Release all resources; the session is not used afterwards."""


SessionFactory = Callable[[list[int]], Session]


@dataclass
class DraftCounts:
    """What the sessions of one generation did.

    Attributes:
        asked: trees asked for.
        nodes: draft tokens verified.
        accepted: draft tokens accepted.
        failed: calls that raised.
        malformed: answers that are not a tree over the vocabulary within the budget.
        errors: the first few reasons, as text.
        dropped: steps that went on without a source, as in `SessionStatistics`; added up when sessions close.
        source_errors: the error texts of these sources; collected when sessions close.
    """

    asked: int = 0
    nodes: int = 0
    accepted: int = 0
    failed: int = 0
    malformed: int = 0
    errors: list[str] = field(default_factory=list)
    dropped: dict[tuple[int, str], int] = field(default_factory=dict)
    source_errors: list[str] = field(default_factory=list)

    def note(self, reason: str) -> None:
        """Keep one of the first few reasons."""
        if len(self.errors) < _MAX_REASONS:
            self.errors.append(reason[:_MAX_REASON_LENGTH])


class DraftSessions:
    """The draft sessions of a generation, one for each row.

    Args:
        session_factory: makes the session of a prompt; None: no drafts.
        prompts: token ids of each row, without padding.
        vocabulary_size: token ids of the model.

    Attributes:
        counts: what the sessions did.

    Raises:
        DrafterError: `session_factory` returns something else than a session.
        SessionError, LimitError: `session_factory` makes a `DraftSession` of wrong sources, or a limit is out of range.
        DatastoreClosedError: a source is closed before the generation begins.
    """

    def __init__(
        self, session_factory: SessionFactory | None, prompts: Sequence[list[int]], vocabulary_size: int
    ) -> None:
        self.counts = DraftCounts()
        self._vocabulary_size = vocabulary_size
        self._sessions: list[Session | None] = [None] * len(prompts)
        self._top_k_arguments: list[set[str]] = [set() for _ in prompts]
        self._failures = [0] * len(prompts)
        self._stopped: dict[str, None] = {}  # why sessions were given up and sources left out, each reason once
        try:
            if session_factory is not None:
                for row, prompt in enumerate(prompts):
                    self._open(row, session_factory, prompt)
        except BaseException:
            self._close_all()
            raise

    def _open(self, row: int, session_factory: SessionFactory, prompt: list[int]) -> None:
        try:
            session = session_factory(prompt)
        except (*_INTERRUPTS, SessionError, LimitError, DatastoreClosedError):
            raise
        except BaseException as error:
            self._fail(row, f"opening: {error_text(error)}", give_up=True)
            return
        methods = [getattr(session, name, None) for name in ("draft", "accept", "close")]
        if isinstance(session, type) or not all(map(callable, methods)):
            kind, expected = f"a {type(session).__name__}", "a session with draft, accept and close"
            raise DrafterError(describe("generate", "what the drafter returned", kind, expected))
        self._sessions[row] = session
        with suppress(TypeError, ValueError):  # some built-in functions have no signature
            self._top_k_arguments[row] = {"top_k", "node_top_k"} & set(inspect.signature(session.accept).parameters)

    @property
    def active(self) -> bool:
        """Whether a row still has a session."""
        return any(session is not None for session in self._sessions)

    @property
    def wants_top_k(self) -> bool:
        """Whether a session takes the model's most likely tokens."""
        return any(self._sessions[row] is not None and names for row, names in enumerate(self._top_k_arguments))

    def draft(self, row: int, max_nodes: int, costs: npt.NDArray[np.float64] | None) -> TokenTree:
        """Return a valid tree for `row`, empty if its session fails; arguments as in `Session.draft`."""
        session = self._sessions[row]
        if session is None:
            return EMPTY
        self.counts.asked += 1
        try:
            tree = own_tree(session.draft(max_nodes=max_nodes, costs=costs))
            fault = tree_fault(tree, max_nodes, self._vocabulary_size)
        except _INTERRUPTS:
            raise
        except BaseException as error:
            self._fail(row, f"draft: {error_text(error)}")
            return EMPTY
        if fault is not None:
            self._fail(row, f"draft: {fault}", malformed=True)
            return EMPTY
        self._failures[row] = 0
        return tree

    def inform(
        self,
        tokens: Sequence[list[int]],
        paths: Sequence[list[int]],
        top_tokens: TopTokens,
        drafts: Sequence[Draft],
    ) -> None:
        """Pass the accepted tokens to the sessions, and the most likely tokens after all that was verified.

        Args:
            tokens: that each row got.
            paths: the places in the step that they follow, the first being 0.
            top_tokens: of the step.
            drafts: of each row.
        """
        if not self.active:
            return
        for row, (new, path) in enumerate(zip(tokens, paths, strict=True)):
            if not new:
                continue
            after = np.full((len(new), TOP_K), -1, dtype=np.int64)  # unknown after the last one
            of_nodes = None
            if top_tokens.indices is not None:
                top = top_tokens.indices[row]
                after[: len(path) - 1, : top.shape[1]] = top[path[1:]]
                nodes = len(drafts[row].tree)
                of_nodes = top[: 1 + nodes] if nodes and drafts[row].whole else None
            self.accept(row, list(new), after, of_nodes)  # a copy: the caller of the generation reads `tokens`

    def accept(
        self, row: int, tokens: list[int], top_k: npt.NDArray[np.int64], node_top_k: npt.NDArray[np.int64] | None
    ) -> None:
        """Tell the session of `row` what the model produced; arguments as in `Session.accept`."""
        session = self._sessions[row]
        if session is None:
            return
        arguments: dict[str, Any] = {"top_k": top_k, "node_top_k": node_top_k}
        try:
            session.accept(tokens, **{name: arguments[name] for name in self._top_k_arguments[row]})
        except _INTERRUPTS:
            raise
        except BaseException as error:  # it no longer knows the context
            self._fail(row, f"accept: {error_text(error)}", give_up=True)

    def close(self) -> None:
        """Close all sessions; say once if one or a source stopped, or if failures left nothing drafted."""
        failures = list(self.counts.errors) if not self.counts.nodes else []
        self._close_all()
        reasons = list(self._stopped) or failures
        if reasons:
            what = "drafting went on without a session or source" if self.counts.nodes else "nothing was drafted"
            more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
            warnings.warn(f"rest-store: {what}: {reasons[0]}{more}", DraftingWarning, stacklevel=2)

    def _close_all(self) -> None:
        """Close all sessions, even if an interrupt comes in between."""
        with ExitStack() as stack:
            for row in reversed(range(len(self._sessions))):
                stack.callback(self._close, row)

    def _fail(self, row: int, reason: str, *, malformed: bool = False, give_up: bool = False) -> None:
        """Count a failure of the session of `row`; give the session up when it keeps failing."""
        self._failures[row] += 1
        if malformed:
            self.counts.malformed += 1
        else:
            self.counts.failed += 1
        self.counts.note(reason)
        if give_up or self._failures[row] >= _MAX_FAILURES:
            self._stopped[reason[:_MAX_REASON_LENGTH]] = None
            self._close(row)

    def _close(self, row: int) -> None:
        session, self._sessions[row] = self._sessions[row], None
        if session is None:
            return
        if isinstance(session, DraftSession):
            for source, steps in session.statistics.dropped.items():
                self.counts.dropped[source] = self.counts.dropped.get(source, 0) + steps
            self.counts.source_errors += session.statistics.errors
            for absence in session.statistics.absent.values():
                if absence.steps >= min(_MAX_FAILURES, session.statistics.steps):
                    self._stopped[absence.reason] = None
        try:
            session.close()
        except _INTERRUPTS:
            raise
        except BaseException as error:
            self.counts.note(f"close: {error_text(error)}")
