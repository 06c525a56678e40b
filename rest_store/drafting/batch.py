"""Batches of draft sessions: a step of all of them in one call of the kernel, on all cores."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import cast

import numpy.typing as npt

from rest_store.datastore.kernel import native_kernel
from rest_store.datastore.store import Store
from rest_store.datastore.tree import TokenTree
from rest_store.datastore.validation import IntSequence
from rest_store.drafting.arguments import is_chain, lowest_score, node_limit, tokens_of, top_k_of
from rest_store.drafting.external_sources import Drop
from rest_store.drafting.kernel_session import Drafted, DraftLimits, TopK, append_all, follow_changes
from rest_store.drafting.remote import RemoteDrafting
from rest_store.drafting.session import DraftSession, count_accepted, finish_step
from rest_store.drafting.session_sources import SessionSources
from rest_store.errors import (
    BatchError,
    DatastoreClosedError,
    DatastoreUnavailableError,
    EmptyContextError,
    describe,
)


def draft_all(
    sessions: Sequence[DraftSession],
    max_nodes: int | Sequence[int] = 16,
    *,
    shape: str = "tree",
    min_score: float = 0.0,
) -> list[TokenTree]:
    """Return the next draft of each session: what its `draft` alone would return.

    One call of the kernel, without the GIL, drafts for all sessions in this process: four to eight together, on as many
    cores as that needs. The sessions that services run are asked all at once, in one message for those of a client. So
    are external sources of sessions with a `source_timeout`; other external sources are asked one after the other.

    Args:
        sessions: different ones. They may share sources and a calibration, which learns in `accept_all` only.
        max_nodes: most draft tokens of each, or one number for each session, 0..1024.
        shape: as in `DraftSession.draft`.
        min_score: the same.

    Raises:
        BatchError: a session is given twice, something is no session, or there are not as many numbers as sessions.
        LimitError: `max_nodes` or `min_score` out of range, or an unknown `shape`.
        SessionClosedError: a session is closed.

    If this raises, no session was asked. It waits at most the longest `source_timeout` of all sessions. Interrupts pass
    through as in `DraftSession.draft`; all sessions are then as they were before.
    """
    _require_sessions("draft_all", sessions)
    chain, score = is_chain(shape), lowest_score(min_score)
    limits = [DraftLimits(most, is_chain=chain, min_score=score) for most in _node_limits(max_nodes, len(sessions))]
    try:
        drafts, drops = _draft_all([session.sources for session in sessions], limits)
    except BaseException:
        for session in sessions:
            session.sources.native.forget()
        raise
    return [finish_step(session, drafts[i], drops.get(i, ())) for i, session in enumerate(sessions)]


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
    accepted = append_all([session.sources.native for session in sessions], arrays, of_text, of_nodes)
    for session, array, count, rows, node_rows in zip(sessions, arrays, accepted, of_text, of_nodes, strict=True):
        count_accepted(session, array, count, rows, node_rows)


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


def _draft_all(
    sessions: Sequence[SessionSources], limits: Sequence[DraftLimits]
) -> tuple[dict[int, Drafted], dict[int, list[Drop]]]:
    """Ask the sources outside this process first, draft the other sessions meanwhile, then wait for the answers."""
    drops: dict[int, list[Drop]] = {}
    drafts: dict[int, Drafted] = {}

    def receive(i: int) -> None:
        drafted, drops[i] = sessions[i].receive(limits[i])
        if drafted is not None:
            drafts[i] = drafted

    here = set(range(len(sessions)))
    elsewhere = [i for i, session in enumerate(sessions) if session.asks_elsewhere]
    if not elsewhere:
        drafts = _drafted_here(sessions, limits, here)
    else:
        remotes = [remote for i in elsewhere if (remote := sessions[i].remote) is not None]
        _share(remotes)
        unsent = [i for i in elsewhere if not sessions[i].send(limits[i])]
        left = iter(unsent)
        for remote in remotes:
            remote.flush()

        def receive_unsent() -> None:
            for i in left:
                receive(i)

        # What could not be sent waits, for a connection perhaps: on threads, so that no session waits for another.
        with ThreadPoolExecutor(max(1, len(unsent)), "rest-store-batch") as threads:
            waiting: list[Future[None]] = []
            with suppress(RuntimeError):  # no more threads: this one does what is left
                waiting.extend(threads.submit(receive_unsent) for _ in unsent)
            drafts |= _drafted_here(sessions, limits, here.difference(elsewhere))
            for i in elsewhere:
                if i not in unsent:
                    receive(i)
            receive_unsent()
            for future in waiting:
                future.result()
        drafts |= _drafted_here(sessions, limits, [i for i in elsewhere if i not in drafts])
    return drafts, drops


def _share(remotes: Sequence[RemoteDrafting]) -> None:
    """Have the steps of sessions that one source runs share its messages."""
    numbers = Counter(id(remote.source) for remote in remotes)
    for remote in remotes:
        if numbers[id(remote.source)] > 1:
            remote.share()


def _drafted_here(
    sessions: Sequence[SessionSources], limits: Sequence[DraftLimits], chosen: Collection[int]
) -> dict[int, Drafted]:
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
) -> dict[int, Drafted]:
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
