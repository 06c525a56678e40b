"""Batches: each session's draft is what it would be alone, whatever the others do."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rest_store import accept_all, draft_all
from rest_store.datastore.datastore import Datastore
from rest_store.datastore.tree import TokenTree
from rest_store.drafting.batch import batch_width, best_nodes
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.merge import subtree
from rest_store.drafting.session import DraftSession, SessionStatistics
from rest_store.drafting.sources import PromptLookup, RecycledLogits
from rest_store.errors import ArgumentError, ContextTypeError, QueryError, SessionClosedError
from rest_store.live.live_datastore import LiveDatastore
from tests.shared.strategies import (
    ONE_TO_NINE,
    contexts,
    corpora,
    identity,
    open_datastore,
    refused,
)


@pytest.fixture
def store(tmp_path: Path) -> Datastore:
    return open_datastore(tmp_path, ONE_TO_NINE)


@settings(max_examples=25)
@given(data=st.data())
def test_a_batch_drafts_and_learns_what_its_sessions_do_alone(data: st.DataObject) -> None:
    """Two equal sets of sessions each share a calibration and recycled logits."""
    corpus = data.draw(corpora())
    texts = [data.draw(contexts(corpus)) for _ in range(data.draw(st.integers(0, 11)))]
    shape = data.draw(st.sampled_from(["tree", "chain"]))
    nodes = [data.draw(st.sampled_from([0, 1, 8, 16, 64])) for _ in texts]
    with tempfile.TemporaryDirectory() as directory:
        store = open_datastore(Path(directory), corpus)
        together = Calibration.default()
        alone = Calibration.default()

        def opened(calibration: Calibration) -> list[DraftSession]:
            shared = [PromptLookup(), RecycledLogits(), store]
            return [
                DraftSession(shared[i % 2 :], text, calibration=calibration)
                for i, text in enumerate(texts)
            ]

        batch = opened(together)
        others = opened(alone)
        for step in range(3):
            trees = draft_all(batch, nodes, shape=shape)
            alike = [one.draft(most, shape=shape) for one, most in zip(others, nodes, strict=True)]
            assert trees == alike
            for tree, other in zip(trees, others, strict=True):
                assert tree.scores is not None
                assert len(tree) == 0 or other.statistics.steps == step + 1
            tokens = [
                [*tree.tokens[: step + 1].tolist(), text[0]]
                for tree, text in zip(trees, texts, strict=True)
            ]
            likely = [
                _likely(new, corpus.vocabulary_size, number + step)
                for number, new in enumerate(tokens)
            ]
            of_nodes = [
                _likely(tree.tokens.tolist(), corpus.vocabulary_size, i)
                for i, tree in enumerate(trees)
            ]
            accept_all(
                batch, tokens, likely if step else None, node_top_k=of_nodes if step < 2 else None
            )
            for other, new, rows, node_rows in zip(others, tokens, likely, of_nodes, strict=True):
                other.accept(
                    new, rows if step else None, node_top_k=node_rows if step < 2 else None
                )
            assert together.weights == alone.weights
        assert [one.statistics for one in batch] == [one.statistics for one in others]
        assert [len(one) for one in batch] == [len(one) for one in others]


def _likely(tokens: list[int], vocabulary: int, kind: int) -> list[list[int]] | None:
    """Rows for `accept` of these tokens, or nodes, and what is before them.

    None for every third kind.
    """
    return [[token % vocabulary, kind % vocabulary] for token in [0, *tokens]] if kind % 3 else None


def test_a_batch_that_cannot_be_asked_is_refused_before_anything_happens(store: Datastore) -> None:
    one, other, closed = (DraftSession([store], [1, 2]) for _ in range(3))
    closed.close()
    for both in ([one, other, one], [one, None], [one, store]):
        refused(ArgumentError, lambda both=both: draft_all(both), "draft_all: ", "session")
        refused(
            ArgumentError,
            lambda both=both: accept_all(both, [[3]] * len(both)),
            "accept_all: ",
            "session",
        )  # type: ignore[misc]
    refused(SessionClosedError, lambda: draft_all([one, closed]), "closed")
    refused(SessionClosedError, lambda: accept_all([one, closed], [[3], [3]]), "closed")
    refused(ArgumentError, lambda: draft_all([one, other], [8]), "max_nodes", "1", "2")
    refused(ArgumentError, lambda: accept_all([one, other], [[3]]), "tokens", "1", "2")
    refused(ArgumentError, lambda: draft_all([one, other], [8, 1025]), "max_nodes")
    refused(ArgumentError, lambda: draft_all([one, other], 1.5), "max_nodes")
    refused(ArgumentError, lambda: draft_all([one, other], shape="path"), "shape")
    refused(QueryError, lambda: accept_all([one, other], [[3], []]), "tokens")
    refused(ContextTypeError, lambda: accept_all([one, other], [[3], [[4]]]), "tokens")
    refused(QueryError, lambda: accept_all([one, other], [[3], [-1]]), "-1")
    refused(ArgumentError, lambda: accept_all([one, other], [[3], [3]], [None]), "top_k", "1", "2")
    refused(ContextTypeError, lambda: accept_all([one, other], [[3], [3]], [None, [1]]), "top_k")
    refused(
        ContextTypeError,
        lambda: accept_all([one, other], [[3], [3, 4]], [None, [[1]]]),
        "accept_all: top_k",
        "[1, 1]",
    )
    refused(
        ContextTypeError,
        lambda: accept_all([one], [[3]], node_top_k=[[[1], [2]]]),
        "accept_all: node_top_k",
        "[2, 1]",
    )
    for session in (one, other):
        assert session.statistics == SessionStatistics()
        assert len(session) == 2


def test_datastores_that_change_or_close_are_seen_by_every_session(
    tmp_path: Path, store: Datastore
) -> None:
    with LiveDatastore.open(tmp_path / "live", tokenizer=identity(300)) as live:
        sessions = [DraftSession([live, store], [1, 2]) for _ in range(6)]
        assert not any(250 in tree.tokens for tree in draft_all(sessions))
        live.add([[1, 2, 250, 251]])
        assert all(250 in tree.tokens for tree in draft_all(sessions))
        store.close()
        trees = draft_all(sessions)
        assert trees == [DraftSession([live], [1, 2]).draft()] * 6
        assert all(
            session.statistics.omissions == {(str(store.path), "error"): 1} for session in sessions
        )


@settings(max_examples=50)
@given(data=st.data())
def test_a_batch_has_the_width_of_most_tokens_per_second(data: st.DataObject) -> None:
    trees = []
    for _ in range(data.draw(st.integers(1, 4))):
        parents = [
            data.draw(st.integers(-1, node - 1)) for node in range(data.draw(st.integers(0, 8)))
        ]
        scores: list[float] = []
        for parent in parents:
            above = scores[parent] if parent >= 0 else 1.0
            scores.append(above * data.draw(st.sampled_from([0.0, 0.3, 0.9, 1.0])))
        size = len(parents)
        trees.append(TokenTree([*range(size)], parents, [1] * size, scores=scores))
    most = data.draw(st.integers(0, 9))
    costs = np.cumsum([data.draw(st.sampled_from([0.05, 0.5, 2.0])) for _ in range(1 + most)])
    speeds = []
    for width in range(1 + most):
        cut = [subtree(tree, best_nodes(tree, width)) for tree in trees]
        assert all(len(tree) <= width for tree in cut)
        tokens = float(len(cut))
        for tree in cut:
            assert tree.scores is not None
            tokens += float(tree.scores.sum())
        speeds.append(tokens / costs[width])
    assert speeds[batch_width(trees, costs)] == pytest.approx(max(speeds))
