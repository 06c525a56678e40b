"""Draft sessions: trees are valid, deterministic and within budget; sources may fail.

What is learnt stays bounded.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rest_store.datastore.datastore import Datastore
from rest_store.datastore.tree import TokenTree
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.session import DraftSession, SessionStatistics
from rest_store.drafting.sources import PromptLookup, RecycledLogits
from rest_store.errors import (
    ArgumentError,
    ContextTypeError,
    DataFileError,
    QueryError,
    SessionClosedError,
    SourceError,
)
from rest_store.generation.draft_counts import DraftCounts
from tests.shared.strategies import (
    ONE_TO_NINE,
    Corpus,
    brute_count,
    contexts,
    corpora,
    identity,
    open_datastore,
    refused,
)


@pytest.fixture
def store(tmp_path: Path) -> Datastore:
    return open_datastore(tmp_path, ONE_TO_NINE)


def require_valid(tree: TokenTree, max_nodes: int, sources: int) -> None:
    parents, tokens, scores, origins = (
        tree.parents.tolist(),
        tree.tokens.tolist(),
        tree.scores,
        tree.origins,
    )
    assert scores is not None
    assert origins is not None
    assert len(tree) <= max_nodes
    # Parents first.
    assert tree == TokenTree(tree.tokens, tree.parents, tree.counts, scores=scores, origins=origins)
    assert len(set(zip(parents, tokens, strict=True))) == len(tree)
    assert ((origins > 0) & (origins < 2**sources)).all()
    for node, parent in enumerate(parents):
        assert 0 < scores[node] <= (scores[parent] if parent >= 0 else 1)
    for parent in {-1, *parents}:
        children = tree.children(parent)
        assert scores[children].sum() <= (scores[parent] if parent >= 0 else 1) * 1.0001
    # The most probable path is nodes 0, 1, 2 ..; the others follow by descending score.
    last, length = -1, 0
    while tree.children(last).size:
        children = tree.children(last)
        last = int(children[np.argmax(scores[children])])
        assert last == length
        length += 1
    assert (np.diff(scores[length:]) <= 0).all()


def generation(
    sources: Sequence[object], text: list[int], start: int, calibration: Calibration, nodes: int
) -> list[TokenTree]:
    """Draft along `text` from `start` on and accept its tokens."""
    trees = []
    with DraftSession(sources, text[:start], calibration=calibration, learn=False) as session:
        while start < len(text):
            trees.append(session.draft(nodes))
            end = min(start + len(trees[-1].longest_path(text[start:])) + 1, len(text))
            session.accept(text[start:end])
            start = end
        assert len(session) == len(text)
        assert session.statistics.steps == len(trees)
    return trees


@settings(max_examples=25)
@given(data=st.data())
def test_trees_are_valid_and_deterministic(data: st.DataObject) -> None:
    calibration = Calibration.default()
    corpus = data.draw(corpora())
    text = [token for _ in range(2) for token in data.draw(contexts(corpus))][-60:]
    start = data.draw(st.integers(0, len(text) - 1))
    nodes = data.draw(st.sampled_from([0, 1, 2, 16, 64]))
    with tempfile.TemporaryDirectory() as directory:
        store = open_datastore(Path(directory), corpus)
        everything = [PromptLookup(), store]
        for sources in (everything, [store], [PromptLookup()]):
            trees = generation(sources, text, start, calibration, nodes)
            assert trees == generation(sources, text, start, calibration, nodes)
            for tree in trees:
                require_valid(tree, nodes, len(sources))


@settings(max_examples=25)
@given(data=st.data())
def test_a_datastore_proposes_what_followed_and_all_that_followed_the_longest_match(
    data: st.DataObject,
) -> None:
    corpus = data.draw(corpora())
    context = data.draw(contexts(corpus))
    with tempfile.TemporaryDirectory() as directory:
        store = open_datastore(Path(directory), corpus)
        with DraftSession([store], context) as session:
            tree = session.draft(1024)
        paths: list[list[int]] = []
        for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
            paths.append([*(paths[parent] if parent >= 0 else context[-1:]), token])
            assert brute_count(corpus, paths[-1][-2:]) > 0
        whole = store.draft(context, max_nodes=1024, max_depth=1)
        assert set(whole.tokens.tolist()) <= set(tree.tokens[tree.depths == 1].tolist())


@given(
    references=st.lists(st.lists(st.integers(0, 3), max_size=8), max_size=4),
    text=st.lists(st.integers(0, 3), min_size=1, max_size=8),
)
def test_drafts_follow_references_and_text_but_cross_no_end(
    references: list[list[int]], text: list[int]
) -> None:
    pairs = {pair for known in (*references, text) for pair in pairwise(known)}
    with DraftSession([PromptLookup()], text, references=references) as session:
        tree = session.draft(1024)
        assert len(session) == len(text), "references are no part of it"
        if references == []:
            assert tree == DraftSession([PromptLookup()], text).draft(1024)
    require_valid(tree, 1024, 1)
    tokens = [*tree.tokens.tolist(), text[-1]]
    assert all(
        (tokens[parent], token) in pairs
        for token, parent in zip(tokens, tree.parents.tolist(), strict=False)
    )
    assert {
        token for token, parent in zip(tokens, tree.parents.tolist(), strict=False) if parent < 0
    } == {after for before, after in pairs if before == text[-1]}


@pytest.mark.parametrize(
    ("references", "error", "words"),
    [
        (7, ContextTypeError, "references are of the type int"),
        ("def f", ContextTypeError, "references are of the type str"),
        ([1, 2, 3], ContextTypeError, "references[0] is 0-D"),
        ([[1], [[2]]], ContextTypeError, "references[1] is 2-D"),
        ([["def"]], ContextTypeError, "references[0] is 1-D"),
        ([[1, -1]], QueryError, "references[0] is -1"),
        ([[1, 2]], SourceError, "without a PromptLookup"),
    ],
)
def test_bad_references_are_refused_by_name(
    store: Datastore, references: Any, error: type[Exception], words: str
) -> None:
    sources = [store] if error is SourceError else [store, PromptLookup()]
    refused(error, lambda: DraftSession(sources, [1, 2], references=references), words)


def test_paths_cross_from_the_prompt_to_the_datastore(
    store: Datastore, calibration: Calibration
) -> None:
    """Only the prompt has 1 after 50, and only the datastore has tokens after 1."""
    with DraftSession(
        [PromptLookup(), store], [50, 1, 60, 70, 50], calibration=calibration
    ) as session:
        tree = session.draft(64)
    path = tree.longest_path([1, 2, 3])
    assert len(path) == 3
    assert tree.origins is not None
    assert [int(tree.origins[node]) & 3 for node in path] == [1, 2, 2]


@given(text=st.lists(st.integers(0, 4), min_size=2, max_size=150), cut=st.integers(1, 80))
def test_tokens_taken_in_together_or_one_by_one_draft_the_same(text: list[int], cut: int) -> None:
    with (
        DraftSession([PromptLookup()], text[:1]) as together,
        DraftSession([PromptLookup()], text[:1]) as one_by_one,
    ):
        for tokens in (text[1:cut], text[cut:]):
            if tokens:
                together.accept(tokens)
            for token in tokens:
                one_by_one.accept([token])
        assert together.draft(16) == one_by_one.draft(16)


def test_a_session_without_text_or_without_sources_drafts_nothing(
    store: Datastore, calibration: Calibration
) -> None:
    with DraftSession([store], calibration=calibration) as session:
        assert len(session.draft()) == 0
        session.accept([1])
        assert len(session.draft()) > 0
    with DraftSession([], [1, 2], calibration=calibration) as session:
        assert len(session.draft()) == 0


def test_accepting_what_was_never_drafted_is_normal(
    store: Datastore, calibration: Calibration
) -> None:
    with DraftSession([PromptLookup(), store], [1], calibration=calibration) as session:
        session.accept([2, 3])  # before any draft
        session.draft()
        # Two of them outside the datastore's vocabulary.
        session.accept([299, 70_000, 2**31 - 1, 1, 2, 3])
        assert 4 in session.draft().tokens.tolist()


@pytest.mark.parametrize("shape", ["tree", "chain"])
def test_costs_cut_a_draft_to_the_best_rate(
    store: Datastore, calibration: Calibration, shape: str
) -> None:
    with DraftSession([store], [1, 2], calibration=calibration) as session:
        whole = session.draft(16, shape=shape)
        assert whole.scores is not None
        best = np.sort(whole.scores)[::-1]
        for slope in (0.0, 0.01, 0.03, 0.1, 0.3, 1000.0):
            costs = 1 + slope * np.arange(17)
            rates = (1 + np.concatenate([[0], np.cumsum(best, dtype=np.float64)])) / costs[
                : len(whole) + 1
            ]
            assert len(session.draft(16, costs, shape=shape)) == int(np.argmax(rates))
        assert len(session.draft(16, [1.0, 1.0, 1.0], shape=shape)) == 2
        assert len(session.draft(16, [1.0], shape=shape)) == 0


def test_recycled_logits_come_back(calibration: Calibration) -> None:
    recycled = RecycledLogits()
    with DraftSession([recycled], calibration=calibration) as session:
        session.accept([1, 2], [[2, 9], [-1, -1]])
        assert len(session.draft()) == 0  # nothing is known of what follows 2
        session.accept([3, 1], top_k=[[1, 8], [-1, -1]])
        tree = session.draft(16)
        assert set(tree.tokens[tree.depths == 1].tolist()) == {2, 9}
        # A pass over that tree: after the context and after each node.
        rows = [[4, 40], *([token + 50, token + 60] for token in tree.tokens.tolist())]
        session.accept([4], node_top_k=rows)
        session.accept([9])
        assert 59 in session.draft().tokens.tolist()
    copied = recycled.copy()
    DraftSession([copied]).accept([1, 2], [[33, 34], [-1, -1]])
    for other, known in ((recycled, False), (copied, True)):  # shared with the next generation
        with DraftSession([other], [7, 1], calibration=calibration) as session:
            tokens = session.draft().tokens.tolist()
            assert (4 in tokens, 33 in tokens) == (True, known), "a copy learns on its own"


@pytest.mark.parametrize("outside", [-1, -(2**32) + 7, 2**31, 2**63 - 1])
def test_a_number_beyond_tokens_ends_a_row(calibration: Calibration, outside: int) -> None:
    with DraftSession([RecycledLogits()], [1], calibration=calibration) as session:
        session.accept([2], top_k=[[5, outside, 6]])
        assert session.draft().tokens.tolist() == [5]


def test_node_top_k_belongs_to_the_last_tree(store: Datastore) -> None:
    """After an accept there is no tree: only the row of the context is valid."""
    recycled = RecycledLogits()
    with DraftSession([recycled, store], [1, 2]) as session:
        rows = [[100 + i, 200 + i] for i in range(len(session.draft()) + 1)]
        session.accept([9])
        refused(
            ContextTypeError, lambda: session.accept([9], node_top_k=rows), "node_top_k", "[1, k]"
        )
        session.accept([8], node_top_k=[[77, 78]])
        assert len(session) == 4
    with DraftSession([recycled], [9]) as session:
        assert {77, 78} <= set(session.draft().tokens.tolist())


def test_a_source_of_another_tokenizer_is_left_out_and_counted(
    tmp_path: Path, calibration: Calibration
) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    one = open_datastore(tmp_path / "a", ONE_TO_NINE)
    other = open_datastore(tmp_path / "b", Corpus(301, [[[1, 2, 200]]]))
    with DraftSession([one, other], [1, 2], calibration=calibration) as session:
        assert 200 not in session.draft().tokens.tolist()
        assert session.statistics.omissions == {(str(other.path), "tokenizer"): 1}
    with DraftSession(
        [one, other], [1, 2], calibration=calibration, tokenizer=identity(301)
    ) as session:
        assert set(session.draft().tokens.tolist()) == {200}
        assert session.statistics.omissions == {(str(one.path), "tokenizer"): 1}


@pytest.mark.parametrize("kind", [SessionStatistics, DraftCounts])
def test_the_former_name_of_omissions(kind: type[SessionStatistics] | type[DraftCounts]) -> None:
    statistics = kind(omissions={("code", "late"): 2})
    with pytest.warns(FutureWarning, match="dropped is now called omissions"):
        assert statistics.dropped == {("code", "late"): 2}


def test_what_is_learnt_in_use_is_shared_bounded_saved_and_loaded(
    store: Datastore, tmp_path: Path
) -> None:
    calibration = Calibration.default()
    with DraftSession([store], [1, 2], calibration=calibration) as session:
        before = session.draft().scores
        for _ in range(2_000):
            session.accept([250, 1, 2])  # never what the datastore says
            session.draft()
        after = session.draft().scores
    assert before is not None
    assert after is not None
    assert after.sum() < before.sum()
    assert min(calibration.weights) < 0
    assert all(abs(weight) <= 1 for weight in calibration.weights)
    calibration.save(tmp_path / "learnt")
    assert Calibration.load(tmp_path / "learnt").weights == calibration.weights
    assert Calibration.default().weights == [0] * 5


def test_one_calibration_may_serve_sessions_of_many_threads(store: Datastore) -> None:
    calibration, recycled = Calibration.default(), RecycledLogits()
    lookup, failures = PromptLookup(), []

    def generate(seed: int) -> None:
        try:
            rng = np.random.default_rng(seed)
            with DraftSession(
                [lookup, store, recycled], [1, 2], calibration=calibration
            ) as session:
                for _ in range(200):
                    require_valid(session.draft(16), 16, 3)
                    new = rng.integers(0, 10, 3)
                    session.accept(new, top_k=rng.integers(0, 10, (3, 8)))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=generate, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_bad_input_is_refused_by_name(store: Datastore, calibration: Calibration) -> None:
    def opened(*sources: object, prompt: Any = (1, 2), **options: Any) -> DraftSession:
        return DraftSession(sources, prompt, calibration=calibration, **options)

    other: Any = "mine.calibration"
    refused(
        DataFileError,
        lambda: DraftSession([store], calibration=other),
        "type str",
        "Calibration.load(path)",
    )
    refused(ContextTypeError, lambda: opened(store, prompt=[[1], [2]]), "prompt")
    refused(ContextTypeError, lambda: opened(store, prompt=[1.5]), "prompt")
    refused(ContextTypeError, lambda: opened(store, prompt=[[1], [2, 3]]), "prompt")
    refused(QueryError, lambda: opened(store, prompt=[1, -1]), "-1")
    refused(QueryError, lambda: opened(store, prompt=[2**31]), str(2**31))
    session = opened(store)
    for limit in (-1, 1025, 1.5, None):
        refused(ArgumentError, lambda limit=limit: session.draft(limit), "max_nodes")
    numbers = ([], [[1.0]], [0.0], [1.0, -1.0], [float("nan")], [10**400], 3.0)
    for costs in (*numbers, "fast"):
        refused(ArgumentError, lambda costs=costs: session.draft(4, costs), "costs")
    for shape in ("Chain", None, ["chain"]):
        refused(ArgumentError, lambda shape=shape: session.draft(4, shape=shape), "shape")
    refused(QueryError, lambda: session.accept([]), "tokens")
    refused(QueryError, lambda: session.accept([-5]), "-5")
    refused(ContextTypeError, lambda: session.accept([3], top_k=[[1]] * 4), "top_k")
    refused(ContextTypeError, lambda: session.accept([3], node_top_k=[1, 2]), "node_top_k")
    size = len(session.draft())
    for rows in (0, size, size + 2):
        wrong = np.zeros((rows, 2), int)
        refused(
            ContextTypeError,
            lambda wrong=wrong: session.accept([3], node_top_k=wrong),
            "node_top_k",
        )  # type: ignore[misc]
    assert len(session) == 2  # nothing of that was taken in
    session.close()
    session.close()
    refused(SessionClosedError, lambda: session.draft(), "closed")
    refused(SessionClosedError, lambda: session.accept([1]), "closed")


def test_recycled_logits_are_bounded() -> None:
    recycled = RecycledLogits()
    chance = np.random.default_rng(1)
    with DraftSession([recycled], prompt=[1]) as session:
        session.accept(chance.integers(0, 2**20, 80_000), chance.integers(0, 2**20, (80_000, 8)))
        assert 100_000 < len(recycled) <= 131_072
        session.draft()
