"""The cache of trees of heavy matches in the native kernel: it changes no answer."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from rest_store.datastore.reference import ReferenceKernel

from rest_store.datastore.datastore import Datastore
from rest_store.datastore.kernel import native_kernel, shard_view
from rest_store.datastore.tree import TokenTree
from tests.shared.strategies import write_datastore, zipf_corpus

pytestmark = pytest.mark.skipif(native_kernel() is None, reason="the reference has no cache")

CORPUS = zipf_corpus(5, 60_000, 250, 300, 2)
HEAVY = 64  # occurrences from which on a tree is cached


def reference_of(store: Datastore) -> ReferenceKernel:
    return ReferenceKernel([shard_view(shard) for shard in store.shards], store.vocabulary_size)


@pytest.fixture
def store(tmp_path: Path) -> Datastore:
    return Datastore.open(write_datastore(tmp_path, CORPUS))


def heavy_tokens(store: Datastore) -> list[int]:
    counts = {token: store.count([token]) for token in range(store.vocabulary_size)}
    return sorted((token for token, count in counts.items() if count >= HEAVY), key=counts.__getitem__)


def test_repeated_queries_give_equal_trees(store: Datastore) -> None:
    token = heavy_tokens(store)[0]
    expected = reference_of(store).draft([token], 64, 10)
    for _ in range(3):
        assert store.draft([token]) == TokenTree.from_packed(*expected)
    assert all(tree == store.draft([token]) for tree in store.draft_batch([[token]] * 70))
    assert store.draft([token], max_nodes=63) != store.draft([token])
    assert store.draft([token], max_depth=1) != store.draft([token])


def test_more_trees_than_there_is_room_for(store: Datastore) -> None:
    """Trees that were evicted are drafted again: 40 matches with 599 limits each do not fit."""
    tokens = heavy_tokens(store)[-40:]
    reference = reference_of(store)
    trees = []
    for size in range(1, 600):
        trees += store.draft_batch([[token] for token in tokens], max_nodes=size, max_depth=2)
    for place in range(0, len(trees), 997):
        size, token = place // len(tokens) + 1, tokens[place % len(tokens)]
        expected = TokenTree.from_packed(*reference.draft([token], size, 2))
        assert trees[place] == expected == store.draft([token], max_nodes=size, max_depth=2)


def test_threads_share_the_cache(store: Datastore) -> None:
    tokens = heavy_tokens(store)[-40:]
    expected = {size: store.draft_batch([[token] for token in tokens], max_nodes=size) for size in range(1, 120)}
    wrong: list[int] = []

    def ask(first: int) -> None:
        for turn in range(3):
            for size in range(1 + (first + turn) % 4, 120):
                answers = store.draft_batch([[token] for token in tokens], max_nodes=size)
                singles = [store.draft([token], max_nodes=1 + (size * 37 + turn) % 600) for token in tokens[:3]]
                if answers != expected[size] or any(len(tree) == 0 for tree in singles):
                    wrong.append(size)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(ask, range(4)))
    assert not wrong


def test_a_finalizer_may_query_while_trees_are_made(store: Datastore) -> None:
    """Making objects may start a garbage collection, which may run code that queries the same datastore."""
    asked: list[list[TokenTree]] = []
    contexts = [[token] for token in range(60, 200)]

    class Asks:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            asked.append(store.draft_batch(contexts[: 1 + len(asked) % 90], max_nodes=3))
            if len(asked) % 50 > 0:
                Asks()

    expected = store.draft_batch(contexts)
    few = store.draft_batch(contexts, max_nodes=3)
    before = gc.get_threshold()
    gc.freeze()  # else each collection goes over all that other tests have imported
    gc.set_threshold(1)
    try:
        for _ in range(40):
            Asks()
            assert store.draft_batch(contexts) == expected
            assert [store.draft(context) for context in contexts[:5]] == expected[:5]
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
    gc.collect()
    assert len(asked) >= 40
    assert all(answers == few[: len(answers)] for answers in asked)
