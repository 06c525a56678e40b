"""The kernel gives the answers of the oracle, whatever the layout and the number of threads."""

from __future__ import annotations

import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rest_store.datastore.datastore import Datastore
from rest_store.datastore.tree import TokenTree
from tests.shared.oracle import Oracle
from tests.shared.strategies import (
    Corpus,
    contexts,
    corpora,
    open_datastore,
    zipf_corpus,
)

SHARDS = 12


@st.composite
def crowded_corpora(draw: st.DrawFn) -> Corpus:
    """Many shards over one or two ids: suffixes occur in some shards only."""
    vocabulary_size = draw(st.sampled_from([3, 49_152, 2**24 - 1]))
    ids = draw(st.sampled_from([[0], [vocabulary_size - 1], [0, vocabulary_size - 1]]))
    document = st.lists(st.sampled_from(ids), min_size=1, max_size=24)
    return Corpus(
        vocabulary_size,
        draw(st.lists(st.lists(document, min_size=1, max_size=3), min_size=2, max_size=SHARDS)),
    )


@given(data=st.data())
def test_answers_are_those_of_the_oracle(data: st.DataObject) -> None:
    corpus = data.draw(st.one_of(crowded_corpora(), corpora(max_shards=SHARDS)))
    limits = {
        "max_nodes": data.draw(st.sampled_from([1, 2, 5, 16, 64, 1024])),
        "max_suffix": data.draw(st.sampled_from([1, 2, 4, 16, 64])),
        "max_depth": data.draw(st.sampled_from([1, 2, 3, 10, 32])),
    }
    queries = data.draw(st.lists(contexts(corpus), min_size=1, max_size=4))
    absent = [
        token
        for token in range(min(corpus.vocabulary_size, 5))
        if all(token not in d for d in corpus.documents)
    ]
    # One that does not match, and some repeated.
    queries += [[token] for token in absent[:1]] + queries[:2]
    with tempfile.TemporaryDirectory() as directory:
        store = open_datastore(Path(directory), corpus)
        oracle = Oracle(corpus)
        trees = store.draft_batch(queries, **limits)
        for context, tree in zip(queries, trees, strict=True):
            assert tree == store.draft(context, **limits) == oracle.draft(context, **limits)
            assert (
                store.longest_suffix_match(context, max_suffix=limits["max_suffix"]) == tree.match
            )
            assert tree == TokenTree(tree.tokens, tree.parents, tree.counts, match=tree.match)
            assert store.count(context[:64]) == oracle.count(context[:64])


@pytest.mark.parametrize("shards", [1, 2, 7])
@pytest.mark.parametrize(
    ("alphabet", "vocabulary_size"), [(3, 300), (40, 49_152), (1_000, 131_072)]
)
def test_heavy_matches_are_exact(
    tmp_path: Path, shards: int, alphabet: int, vocabulary_size: int
) -> None:
    """Matches have many more occurrences than are read, so that some ranks are left out."""
    corpus = zipf_corpus(shards + alphabet, 40_000, alphabet, vocabulary_size, shards)
    store = open_datastore(tmp_path, corpus)
    oracle = Oracle(corpus)
    rng = np.random.default_rng(0)
    large_matches = 0
    for document in corpus.documents[:: max(1, len(corpus.documents) // 6)]:
        end = int(rng.integers(1, len(document) + 1))
        for max_suffix in (1, 2, 16):
            for max_nodes, max_depth in ((1, 1), (4, 10), (64, 10), (300, 3)):
                limits = {"max_nodes": max_nodes, "max_suffix": max_suffix, "max_depth": max_depth}
                tree = store.draft(document[:end], **limits)
                assert tree == oracle.draft(document[:end], **limits)
                large_matches += tree.match.count > 45 * max_nodes
    assert large_matches > 15  # the test reached matches that are not read as a whole


@pytest.mark.parametrize("length", [1, 2, 40])
def test_a_run_of_one_token_is_answered_exactly(tmp_path: Path, length: int) -> None:
    """Rare continuations are not missed where nearly all continuations are equal."""
    corpus = Corpus(300, [[[7] * 30_000], [[7] * 5_000 + [8], [7, 9], [200] + [7] * 100]])
    store = open_datastore(tmp_path, corpus)
    limits = {"max_suffix": 64, "max_depth": 3}
    assert store.draft([7] * length, **limits) == Oracle(corpus).draft([7] * length, **limits)


@pytest.fixture(scope="module")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Corpus, list[Datastore]]:
    """The same documents in one shard, in a few, and in many of unequal size."""
    whole = zipf_corpus(11, 60_000, 30, 49_152, 1)
    documents = whole.documents
    of_shards = np.minimum(np.random.default_rng(0).zipf(1.5, len(documents)) - 1, SHARDS - 1)
    many = [
        [documents[i] for i in np.flatnonzero(of_shards == shard)] or [documents[0][:1]]
        for shard in range(SHARDS)
    ]
    extra = [documents[0][:1] for shard in range(SHARDS) if not np.any(of_shards == shard)]
    stores = []
    for shards in (
        [documents + extra],
        [documents[::3] + extra, documents[1::3], documents[2::3]],
        many,
    ):
        directory = tmp_path_factory.mktemp("layout")
        stores.append(open_datastore(directory, Corpus(whole.vocabulary_size, shards)))
    return whole, stores


def cuts(corpus: Corpus, count: int, seed: int) -> list[list[int]]:
    """Contexts that end anywhere in documents, some with a changed token."""
    rng = np.random.default_rng(seed)
    out: list[list[int]] = []
    while len(out) < count:
        document = corpus.documents[int(rng.integers(len(corpus.documents)))]
        end = int(rng.integers(1, len(document) + 1))
        context = document[max(0, end - 20) : end]
        if rng.random() < 0.7:
            context[int(rng.integers(len(context)))] = document[int(rng.integers(len(document)))]
        out.append(context)
    return out


def test_answers_do_not_depend_on_the_layout(layouts: tuple[Corpus, list[Datastore]]) -> None:
    corpus, stores = layouts
    queries = cuts(corpus, 600, 7)
    queries[1::5] = queries[:-1:5]  # repeated, so that trees are kept
    expected = [stores[0].draft(context) for context in queries]
    for store in stores:
        assert store.draft_batch(queries) == expected
    matches = [tree.match for tree in expected]
    assert len({match.length for match in matches}) > 5
    # Trees that the kernel keeps, and others.
    assert {match.count < 64 for match in matches} == {True, False}


def test_trees_that_are_kept_are_those_of_their_limits(tmp_path: Path) -> None:
    """There is no room for all trees: those that were dropped are drafted again."""
    corpus = zipf_corpus(5, 60_000, 250, 300, 2)
    store = open_datastore(tmp_path, corpus)
    counts = {token: store.count([token]) for token in range(300)}
    tokens = sorted(counts, key=counts.__getitem__)[-60:]
    trees = [
        store.draft([token], max_nodes=size, max_depth=2)
        for size in range(1, 600)
        for token in tokens
    ]
    assert sum(len(tree.packed) for tree in trees) > 16 << 20
    oracle = Oracle(corpus)
    for number in range(0, len(trees), 997):
        limits = {"max_nodes": number // len(tokens) + 1, "max_depth": 2}
        context = [tokens[number % len(tokens)]]
        assert trees[number] == oracle.draft(context, **limits) == store.draft(context, **limits)


def test_threads_whose_first_queries_coincide_get_equal_trees(
    layouts: tuple[Corpus, list[Datastore]],
) -> None:
    """Threads fill the key tree and store trees while others read them."""
    corpus, stores = layouts
    queries = cuts(corpus, 200, 1)
    expected = [stores[0].draft(context) for context in queries]

    def ask(store: Datastore, together: threading.Barrier) -> list[TokenTree]:
        together.wait()
        return store.draft_batch(queries)

    with ThreadPoolExecutor(4) as threads:
        for _ in range(5):
            fresh = Datastore.open(stores[-1].path)
            together = threading.Barrier(4)
            assert list(threads.map(ask, [fresh] * 4, [together] * 4)) == [expected] * 4
