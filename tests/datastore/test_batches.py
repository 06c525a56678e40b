"""Batches over many shards give the trees of single calls, of other shard layouts and of brute force."""

from __future__ import annotations

import copy
import pickle
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rest_store.datastore.datastore import Datastore
from rest_store.errors import EmptyContextError
from tests.shared.strategies import (
    Corpus,
    brute_draft,
    brute_match,
    contexts,
    corpora,
    open_datastore,
    paths,
    refused,
    zipf_corpus,
)

SHARDS = 12


@st.composite
def crowded_corpora(draw: st.DrawFn) -> Corpus:
    """Many shards over one or two ids, so that suffixes occur in some shards only and at the start of documents."""
    vocabulary_size = draw(st.sampled_from([3, 49_152, 2**24 - 1]))
    ids = draw(st.sampled_from([[0], [vocabulary_size - 1], [0, vocabulary_size - 1]]))
    document = st.lists(st.sampled_from(ids), min_size=1, max_size=24)
    return Corpus(
        vocabulary_size, draw(st.lists(st.lists(document, min_size=1, max_size=3), min_size=2, max_size=SHARDS))
    )


@given(data=st.data())
def test_batches_agree_with_brute_force(data: st.DataObject) -> None:
    corpus = data.draw(st.one_of(crowded_corpora(), corpora(max_shards=SHARDS)))
    limits = {
        "max_nodes": data.draw(st.sampled_from([1, 3, 64])),
        "max_suffix": data.draw(st.sampled_from([1, 3, 16, 64])),
        "max_depth": data.draw(st.sampled_from([1, 4, 32])),
    }
    queries = data.draw(st.lists(contexts(corpus), min_size=1, max_size=4))
    absent = [token for token in range(min(corpus.vocabulary_size, 5)) if all(token not in d for d in corpus.documents)]
    queries += [[token] for token in absent[:1]] + queries[:2]  # one that does not match, and some repeated
    with tempfile.TemporaryDirectory() as directory:
        store = open_datastore(Path(directory), corpus)
        trees = store.draft_batch(queries, **limits)
        assert trees == [store.draft(context, **limits) for context in queries]
        for context, tree in zip(queries, trees, strict=True):
            assert tree.match == brute_match(corpus, context, limits["max_suffix"])
            assert tree.match == store.longest_suffix_match(context, max_suffix=limits["max_suffix"])
            assert paths(tree) == brute_draft(corpus, context, **limits)


@pytest.fixture(scope="module")
def layouts(tmp_path_factory: pytest.TempPathFactory) -> tuple[Corpus, list[Datastore]]:
    """The same documents in one shard, in a few, and in many of unequal size."""
    whole = zipf_corpus(11, 60_000, 30, 49_152, 1)
    documents = whole.documents
    places = np.minimum(np.random.default_rng(0).zipf(1.5, len(documents)) - 1, SHARDS - 1)
    many = [[documents[i] for i in np.flatnonzero(places == shard)] or [documents[0][:1]] for shard in range(SHARDS)]
    extra = [documents[0][:1] for shard in range(SHARDS) if not np.any(places == shard)]
    stores = []
    for shards in ([documents + extra], [documents[::3] + extra, documents[1::3], documents[2::3]], many):
        directory = tmp_path_factory.mktemp("layout")
        stores.append(open_datastore(directory, Corpus(whole.vocabulary_size, shards)))
    return whole, stores


def cuts(corpus: Corpus, count: int, seed: int) -> list[list[int]]:
    """Contexts that end anywhere in documents, some with an early token changed, so that matches are of all lengths."""
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


@pytest.mark.parametrize("size", [1, 7, 64, 300])
def test_batches_of_any_size_and_layout_are_the_same(layouts: tuple[Corpus, list[Datastore]], size: int) -> None:
    corpus, stores = layouts
    queries = cuts(corpus, 600, size)
    queries[1::5] = queries[:-1:5]  # repeated within batches
    expected = [stores[0].draft(context) for context in queries]
    for store in stores:
        trees = [
            tree for start in range(0, len(queries), size) for tree in store.draft_batch(queries[start : start + size])
        ]
        assert trees == expected
    matches = [tree.match for tree in expected]
    assert len({match.length for match in matches}) > 5
    assert {match.count < 64 for match in matches} == {True, False}  # trees that the kernel caches, and others


def test_threads_whose_first_queries_coincide_get_equal_trees(layouts: tuple[Corpus, list[Datastore]]) -> None:
    """They fill the key tree and the tree cache while others read them."""
    corpus, stores = layouts
    queries = cuts(corpus, 200, 1)
    expected = [stores[0].draft(context) for context in queries]
    for _ in range(5):
        fresh = Datastore.open(stores[-1].path)
        barrier = threading.Barrier(4)
        answers: list[object] = []

        def ask(store: Datastore = fresh, together: threading.Barrier = barrier, out: list[object] = answers) -> None:
            together.wait()
            out.append(store.draft_batch(queries))

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == [expected] * 4


def test_an_empty_batch_and_an_empty_context(layouts: tuple[Corpus, list[Datastore]]) -> None:
    store = layouts[1][-1]
    assert store.draft_batch([]) == []
    refused(EmptyContextError, lambda: store.draft_batch([[1], [], [1]]), "context 1")


def test_trees_of_a_batch_copy_and_pickle_as_those_of_single_calls(layouts: tuple[Corpus, list[Datastore]]) -> None:
    corpus, stores = layouts
    queries = cuts(corpus, 130, 2)
    trees = stores[-1].draft_batch(queries, max_nodes=5)
    for context, tree in zip(queries, trees, strict=True):
        alone = stores[-1].draft(context, max_nodes=5)
        assert (tree.packed, hash(tree), repr(tree), len(tree)) == (alone.packed, hash(alone), repr(alone), len(alone))
        assert tree.scores is None
        assert tree.origins is None
        assert not tree.counts.flags.writeable
        assert copy.copy(tree) == alone
        stored = pickle.dumps(tree)
        assert pickle.loads(stored) == alone
        assert len(stored) < 400 + len(tree.packed)  # no more than the tree itself
