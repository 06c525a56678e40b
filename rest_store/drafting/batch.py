"""Batches of draft sessions: a step of all of them in one call of the kernel, on all cores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy.typing as npt

from rest_store.datastore.kernel import native_kernel
from rest_store.datastore.tree import TokenTree
from rest_store.datastore.validation import IntSequence
from rest_store.drafting.draft_options import DraftOptions, TopK, parse_tokens, parse_top_k
from rest_store.drafting.session import DraftSession
from rest_store.drafting.session_sources import draft_step
from rest_store.errors import ArgumentError, ContextTypeError, QueryError, describe


def draft_all(
    sessions: Sequence[DraftSession],
    max_nodes: int | Sequence[int] = 16,
    costs: npt.ArrayLike | None = None,
    *,
    shape: str = "tree",
    services: bool = True,
) -> list[TokenTree]:
    """Return the next draft of each session: what its `draft` alone would return.

    Services are asked for all sessions first. One call of the kernel, without the GIL, drafts for
    the sessions in this process meanwhile: four to eight together, on as many cores as that needs;
    with costs one after the other.

    Args:
        sessions: different ones. They may share sources and a calibration, which learns in
            `accept_all` only.
        max_nodes: most draft tokens of each, or one number for each session, 0..1024.
        costs: as in `DraftSession.draft`.
        shape: as in `DraftSession.draft`.
        services: the same.

    Raises:
        ArgumentError: a session is given twice, something is no session, or there are not as many
            numbers as sessions; or as in `DraftSession.draft`.
        SessionClosedError: a session is closed.

    If this raises, no session was asked. Interrupts pass through as in `DraftSession.draft`, for
    all sessions.
    """
    _require_sessions("draft_all", sessions)
    numbers = max_nodes if isinstance(max_nodes, Sequence) else [max_nodes] * len(sessions)
    if len(numbers) != len(sessions):
        expected = f"{len(sessions)}, one for each session"
        raise ArgumentError(describe("draft_all", "number of max_nodes", len(numbers), expected))
    limits = [DraftOptions.from_arguments(most, costs, shape) for most in numbers]
    trees = draft_step([session.sources for session in sessions], limits, services=services)
    for session in sessions:
        session.statistics.add_step(session.sources.drops)
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
        ArgumentError: a session is given twice, something is no session, or there are not as many
            `tokens` or top-k.
        ContextTypeError, QueryError: one of `tokens`, or a top-k, is not as above.
        SessionClosedError: a session is closed.

    If this raises, nothing was appended. What a shared calibration learns does not depend on
    threads: it learns from the sessions in their order.
    """
    _require_sessions("accept_all", sessions)
    if len(tokens) != len(sessions):
        expected = f"{len(sessions)}, one for each session"
        raise ArgumentError(describe("accept_all", "number of tokens", len(tokens), expected))
    arrays = [parse_tokens("tokens", values) for values in tokens]
    if not all(array.size for array in arrays):
        raise QueryError(
            describe("accept_all", "tokens of a session", "empty", "at least one token")
        )
    of_text, of_nodes = (
        _rows("top_k", top_k, len(sessions)),
        _rows("node_top_k", node_top_k, len(sessions)),
    )
    natives = [session.sources.native for session in sessions]
    of_kernel = [
        session.sources.rows_here(rows) for session, rows in zip(sessions, of_nodes, strict=True)
    ]
    try:
        native_kernel().accept_all(natives, arrays, of_text, of_kernel)
    except ValueError as error:
        raise ContextTypeError(f"accept_all: {error}") from None
    for session, array, rows, node_rows in zip(sessions, arrays, of_text, of_nodes, strict=True):
        session.sources.accept(array, rows, node_rows)


def _rows(what: str, top_k: Sequence[npt.ArrayLike | None] | None, count: int) -> list[TopK | None]:
    """Return the top-k of each session."""
    if top_k is None:
        return [None] * count
    if len(top_k) != count:
        raise ArgumentError(
            describe(
                "accept_all", f"number of {what}", len(top_k), f"{count}, one for each session"
            )
        )
    return [parse_top_k(what, values) for values in top_k]


def _require_sessions(where: str, sessions: Sequence[DraftSession]) -> None:
    for session in sessions:
        if not isinstance(session, DraftSession):
            raise ArgumentError(
                describe(where, "session", f"a {type(session).__name__}", "a DraftSession")
            )
        session.sources.require_open(where)
    if len({id(session) for session in sessions}) < len(sessions):
        raise ArgumentError(describe(where, "session", "given twice", "different sessions"))
