"""Batches of draft sessions: a step of all of them in one call of the kernel, on all cores."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from rest_store.datastore.kernel import MAX_NODES
from rest_store.datastore.tree import TokenTree
from rest_store.datastore.validation import IntSequence, check_int
from rest_store.drafting.draft_options import Accepted, DraftOptions, parse_tokens
from rest_store.drafting.session import DraftSession
from rest_store.drafting.session_sources import SessionSources
from rest_store.drafting.steps import accept_step, draft_step
from rest_store.errors import ArgumentError, describe

MAX_LENGTH = 48  # of a chain


def draft_all(
    sessions: Sequence[DraftSession],
    max_nodes: int | Sequence[int] = 16,
    costs: npt.ArrayLike | None = None,
    *,
    shape: str = "tree",
    services: bool = True,
) -> list[TokenTree]:
    """Return the next draft of each session, the same that its `draft` alone would return.

    Services are asked for all sessions first. Meanwhile one call of the kernel, without the GIL,
    drafts for the sessions in this process: four to eight together, on as many cores as that needs;
    with costs, one after the other.

    Args:
        sessions: different ones. They may share sources and a calibration, which learns in
            `accept_all` only.
        max_nodes: most draft tokens of each session, 0..1024: one number for all, or one for each.
        costs: as in `DraftSession.draft`.
        shape: as in `DraftSession.draft`.
        services: the same.

    Raises:
        ArgumentError: a session occurs twice, an object is no session, or there are not as many
            numbers as sessions; or as in `DraftSession.draft`.
        SessionClosedError: a session is closed.

    If this raises, no session was asked. Interrupts pass through as in `DraftSession.draft`, for
    all sessions.
    """
    sources = _sources_of("draft_all", sessions)
    numbers = max_nodes if isinstance(max_nodes, Sequence) else [max_nodes] * len(sessions)
    _require_one_for_each("draft_all", "max_nodes", numbers, len(sessions))
    options = [DraftOptions.from_arguments(number, costs, shape) for number in numbers]
    drafted = draft_step(sources, options, services=services)
    for session, own in zip(sessions, drafted, strict=True):
        session.statistics.add_step(own)
    return [own.tree for own in drafted]


def look_ahead_all(
    sessions: Sequence[DraftSession],
    verified: Sequence[IntSequence],
    max_nodes: int = 192,
    *,
    length: int,
    services: bool = True,
) -> list[TokenTree]:
    """Return the next draft of each session for all outcomes of the draft that is verified now.

    While the model verifies a draft, nobody knows how many of its tokens it will accept, nor the
    bonus token after them. The tree has the verified draft, the likely tokens after each of its
    tokens, and after each of those a chain: the draft for the text that ends there. The children of
    a node come after it, the likeliest one at once, so that the chain after each node is
    contiguous.

    Args:
        sessions: different ones, each as it was before its draft was verified.
        verified: for each session: the draft, 1-D integers; may be empty.
        max_nodes: most nodes of each tree, 0..1024; the likeliest outcomes have the longest chains.
        length: the most tokens of the next draft, 1..48.
        services: as in `DraftSession.draft`.

    Raises:
        ArgumentError: as `draft_all`; or `length` out of range.
        ContextTypeError, QueryError: a draft is not 1-D integers of 0 .. 2^31 - 1.
        SessionClosedError: a session is closed.

    A node's score is the probability that the text continues with the path to it; the score of a
    node of a chain divided by that of its outcome is the probability that it is accepted. Services
    return chains, which do not know the verified draft.
    """
    sources = _sources_of("look_ahead_all", sessions)
    _require_one_for_each("look_ahead_all", "verified drafts", verified, len(sessions))
    nodes = check_int("max_nodes", max_nodes, MAX_NODES, minimum=0, where="look_ahead_all")
    check_int("length", length, MAX_LENGTH, minimum=1, where="look_ahead_all")
    options = [
        DraftOptions(nodes, verified=parse_tokens("a verified draft", draft), length=length)
        for draft in verified
    ]
    drafted = draft_step(sources, options, services=services)
    for session, own in zip(sessions, drafted, strict=True):
        session.statistics.add_step(own)
    return [own.tree for own in drafted]


def accept_all(
    sessions: Sequence[DraftSession],
    tokens: Sequence[IntSequence],
    top_k: Sequence[npt.ArrayLike | None] | None = None,
    *,
    node_top_k: Sequence[npt.ArrayLike | None] | None = None,
) -> None:
    """Append the output of the target model to each session, as `DraftSession.accept`.

    Args:
        sessions: different ones.
        tokens: for each session: 1-D integers, at least one.
        top_k: for each session, as in `DraftSession.accept`, or None.
        node_top_k: the same.

    Raises:
        ArgumentError: a session occurs twice, an object is no session, or there are not as many
            `tokens` or top-k.
        ContextTypeError, QueryError: as in `DraftSession.accept`.
        SessionClosedError: a session is closed.

    If this raises, nothing was appended. A shared calibration learns from the sessions in their
    order, whatever the threads do.
    """
    sources = _sources_of("accept_all", sessions)
    count = len(sessions)
    top_k = [None] * count if top_k is None else top_k
    node_top_k = [None] * count if node_top_k is None else node_top_k
    _require_one_for_each("accept_all", "tokens", tokens, count)
    _require_one_for_each("accept_all", "top_k", top_k, count)
    _require_one_for_each("accept_all", "node_top_k", node_top_k, count)
    accepted = [
        Accepted.from_arguments("accept_all", *arguments)
        for arguments in zip(tokens, top_k, node_top_k, strict=True)
    ]
    accept_step("accept_all", sources, accepted)


def batch_width(trees: Sequence[TokenTree], costs: npt.NDArray[np.float64]) -> int:
    """Return how many nodes each tree of a batch may have for most tokens per second.

    All rows of the batch take the time of the longest one, so they share one width: a tree that
    chose its size by itself would make all others pay for it, or leave places that are free.

    Args:
        trees: of sessions, with scores, not cut by costs.
        costs: float64[n + 1], the time of a step whose widest tree has 0, 1, .. n nodes.
    """
    most = costs.size - 1
    expected = np.zeros(1 + most)  # tokens that the n-th nodes of all trees bring
    expected[0] = len(trees)
    for tree in trees:
        if tree.scores is not None:
            scores = np.sort(tree.scores.astype(np.float64))[::-1][:most]
            expected[1 : 1 + scores.size] += scores
    return int(np.argmax(expected.cumsum() / costs))


def best_nodes(tree: TokenTree, count: int) -> npt.NDArray[np.intp]:
    """Return the `count` nodes of a session's tree with the greatest scores, ascending.

    They are all nodes if there are no more. Each node's parent is among them.
    """
    if count >= len(tree) or tree.scores is None:
        return np.arange(len(tree))
    return np.sort(np.argsort(-tree.scores, kind="stable")[:count])


def _require_one_for_each(where: str, what: str, values: Sequence[object], count: int) -> None:
    if len(values) != count:
        expected = f"{count}, one for each session"
        raise ArgumentError(describe(where, f"number of {what}", len(values), expected))


def _sources_of(where: str, sessions: Sequence[DraftSession]) -> list[SessionSources]:
    """Return the sources of different, open sessions; raise if they are something else."""
    sources = []
    for session in sessions:
        if not isinstance(session, DraftSession):
            raise ArgumentError(
                describe(where, "session", f"a {type(session).__name__}", "a DraftSession")
            )
        session._sources.require_open(where)
        sources.append(session._sources)
    if len({id(session) for session in sessions}) < len(sessions):
        raise ArgumentError(f"{where}: a session occurs twice, expected different sessions")
    return sources
