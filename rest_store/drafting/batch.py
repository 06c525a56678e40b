"""Batches of draft sessions: a step of all of them in one call of the kernel, on all cores."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, cast

import numpy.typing as npt

from rest_store.datastore.kernel import native_kernel
from rest_store.datastore.store import Store
from rest_store.datastore.tree import TokenTree
from rest_store.datastore.validation import IntSequence
from rest_store.drafting.arguments import is_chain, lowest_score, node_limit, tokens_of, top_k_of
from rest_store.drafting.kernel_session import append_all, follow_changes
from rest_store.drafting.limits import DraftLimits, TopK
from rest_store.drafting.session import DraftSession
from rest_store.drafting.session_sources import SessionSources
from rest_store.errors import (
    BatchError,
    DatastoreClosedError,
    DatastoreUnavailableError,
    EmptyContextError,
    describe,
)

if TYPE_CHECKING:
    from rest_store._kernel import PackedDraft


def draft_all(
    sessions: Sequence[DraftSession],
    max_nodes: int | Sequence[int] = 16,
    *,
    shape: str = "tree",
    min_score: float = 0.0,
) -> list[TokenTree]:
    """Return the next draft of each session: what its `draft` alone would return.

    Services are asked for all sessions first. One call of the kernel, without the GIL, drafts for the sessions in this
    process meanwhile: four to eight together, on as many cores as that needs.

    Args:
        sessions: different ones. They may share sources and a calibration, which learns in `accept_all` only.
        max_nodes: most draft tokens of each, or one number for each session, 0..1024.
        shape: as in `DraftSession.draft`.
        min_score: the same.

    Raises:
        BatchError: a session is given twice, something is no session, or there are not as many numbers as sessions.
        LimitError: `max_nodes` or `min_score` out of range, or an unknown `shape`.
        SessionClosedError: a session is closed.

    If this raises, no session was asked. Interrupts pass through as in `DraftSession.draft`, for all sessions.
    """
    _require_sessions("draft_all", sessions)
    chain, score = is_chain(shape), lowest_score(min_score)
    limits = [DraftLimits(most, is_chain=chain, min_score=score) for most in _node_limits(max_nodes, len(sessions))]
    try:
        trees = _draft_all([session.sources for session in sessions], limits)
    except BaseException:
        for session in sessions:
            session.sources.forget()
        raise
    for session, tree in zip(sessions, trees, strict=True):
        session.statistics.add_step(len(tree), session.sources.drops)
    return trees


def accept_all(
    sessions: Sequence[DraftSession],
    tokens: Sequence[IntSequence],
    top_k: Sequence[npt.ArrayLike | None] | None = None,
    *,
    node_top_k: Sequence[npt.ArrayLike | None] | None = None,
) -> None:
    """Append what the target model produced to each session, as `DraftSession.accept`.

    Args:
        sessions: different ones.
        tokens: of each session: 1-D integers, at least one.
        top_k: of each session, as in `DraftSession.accept`, or None.
        node_top_k: the same.

    Raises:
        BatchError: a session is given twice, something is no session, or there are not as many `tokens` or top-k.
        ContextTypeError, EmptyContextError, TokenRangeError: one of `tokens`, or a top-k, is not as above.
        SessionClosedError: a session is closed.

    If this raises, nothing was appended. What a shared calibration learns does not depend on threads: it learns from
    the sessions in their order.
    """
    _require_sessions("accept_all", sessions)
    if len(tokens) != len(sessions):
        expected = f"{len(sessions)}, one for each session"
        raise BatchError(describe("accept_all", "number of tokens", len(tokens), expected))
    arrays = [tokens_of("tokens", values) for values in tokens]
    if not all(array.size for array in arrays):
        raise EmptyContextError(describe("accept_all", "tokens of a session", "empty", "at least one token"))
    of_text, of_nodes = _rows("top_k", top_k, len(sessions)), _rows("node_top_k", node_top_k, len(sessions))
    natives = [session.sources.native for session in sessions]
    of_kernel = [session.sources.rows_here(rows) for session, rows in zip(sessions, of_nodes, strict=True)]
    counts = append_all(natives, arrays, of_text, of_kernel)
    for session, array, rows, node_rows, count in zip(sessions, arrays, of_text, of_nodes, counts, strict=True):
        session.statistics.accepted += session.sources.accept(array, rows, node_rows, count)
        session.statistics.tokens += array.size


def _rows(what: str, top_k: Sequence[npt.ArrayLike | None] | None, count: int) -> list[TopK | None]:
    """Return the top-k of each session."""
    if top_k is None:
        return [None] * count
    if len(top_k) != count:
        raise BatchError(describe("accept_all", f"number of {what}", len(top_k), f"{count}, one for each session"))
    return [None if values is None else top_k_of(what, values) for values in top_k]


def _require_sessions(where: str, sessions: Sequence[DraftSession]) -> None:
    for session in sessions:
        if not isinstance(session, DraftSession):
            raise BatchError(describe(where, "session", f"a {type(session).__name__}", "a DraftSession"))
        session.sources.require_open(where)
    if len({id(session) for session in sessions}) < len(sessions):
        raise BatchError(describe(where, "session", "given twice", "different sessions"))


def _node_limits(max_nodes: int | Sequence[int], count: int) -> list[int]:
    if not hasattr(max_nodes, "__len__"):
        return [node_limit(max_nodes)] * count
    limits = [node_limit(most) for most in cast("Sequence[int]", max_nodes)]
    if len(limits) != count:
        raise BatchError(describe("draft_all", "number of max_nodes", len(limits), f"{count}, one for each session"))
    return limits


def _draft_all(sessions: Sequence[SessionSources], limits: Sequence[DraftLimits]) -> list[TokenTree]:
    """Ask the members of all sessions, draft here meanwhile, then wait for their answers."""
    for session, one in zip(sessions, limits, strict=True):
        session.send(one)
    drafts = _drafted_here(sessions, limits, [i for i, session in enumerate(sessions) if session.drafts_here])
    unanswered = [i for i, session in enumerate(sessions) if not session.receive(limits[i])]
    drafts |= _drafted_here(sessions, limits, [i for i in unanswered if i not in drafts])
    return [session.merge(drafts.get(i), limits[i]) for i, session in enumerate(sessions)]


def _drafted_here(
    sessions: Sequence[SessionSources], limits: Sequence[DraftLimits], chosen: Collection[int]
) -> dict[int, PackedDraft]:
    """Return what the kernel drafts for the `chosen` sessions."""
    stores: set[Store] = set()
    for i in chosen:
        opened = sessions[i].datastores.values()
        follow_changes(sessions[i].native, opened)
        stores.update(datastore.store for datastore in opened)
    drafted = _drafted_by_kernel(sessions, limits, chosen)
    if not all(map(_is_readable, stores)):
        again = [i for i in chosen if sessions[i].leave_out_unreadable()]
        drafted |= _drafted_by_kernel(sessions, limits, again)
    return drafted


def _drafted_by_kernel(
    sessions: Sequence[SessionSources], limits: Sequence[DraftLimits], chosen: Collection[int]
) -> dict[int, PackedDraft]:
    if not chosen:
        return {}
    natives, nodes = [sessions[i].native for i in chosen], [limits[i].max_nodes for i in chosen]
    _, _, chain, min_score = limits[0]  # the same for all
    drafts = native_kernel().draft_all(natives, nodes, chain, min_score)
    return dict(zip(chosen, drafts, strict=True))


def _is_readable(store: Store) -> bool:
    try:
        store.require_readable()
    except (DatastoreClosedError, DatastoreUnavailableError):
        return False
    return True
