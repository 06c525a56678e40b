"""Trees of heavy matches are cached while documents come and go: answers are those of the present documents."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from rest_store.datastore.store import Store
from rest_store.live.live_datastore import LiveDatastore
from tests.shared.live import new_live, small_segments
from tests.shared.strategies import Corpus, Document, brute_draft, paths

MANY = 80  # more occurrences than a match needs to be cached
OLD: list[Document] = [[1, 2 + number % 5] for number in range(MANY)]


@pytest.fixture
def live(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LiveDatastore:
    small_segments(monkeypatch)
    opened = new_live(tmp_path / "live")
    opened.add(OLD, [str(number) for number in range(MANY)])
    return opened


def require_tree(store: Store, documents: list[Document]) -> None:
    corpus = Corpus(store.vocabulary_size, [documents])
    for _ in range(2):  # then it is cached
        assert paths(store.draft([1], max_nodes=12, max_depth=4)) == brute_draft(corpus, [1], 12, 16, 4)


def test_trees_of_a_growing_datastore(live: LiveDatastore) -> None:
    with live:
        require_tree(live, OLD)
        live.add([[3, 4]])
        require_tree(live, [*OLD, [3, 4]])
        live.add([[1, 2, 9]])
        require_tree(live, [*OLD, [3, 4], [1, 2, 9]])
        live.compact()
        require_tree(live, [*OLD, [3, 4], [1, 2, 9]])


def test_trees_of_samples_begin_where_those_before_ended(tmp_path: Path) -> None:
    """There are many more occurrences than are read, and the nodes with the most of them change."""
    chance = random.Random(0)

    def some(count: int, mean: int) -> list[Document]:
        return [[1, *(2 + int(chance.expovariate(1 / mean)) for _ in range(3))] for _ in range(count)]

    documents = some(1_500, 4)
    corpus = Corpus(300, [documents])
    with new_live(tmp_path / "live") as live:
        live.add(documents)
        for _ in range(15):
            for nodes in (2, 5, 12):
                assert paths(live.draft([1], max_nodes=nodes, max_depth=3)) == brute_draft(corpus, [1], nodes, 16, 3)
            more = [*some(3, 4), *([[1, chance.randrange(2, 30)]] * chance.randrange(40))]
            documents += more
            live.add(more)


def test_trees_after_as_much_came_as_went(live: LiveDatastore) -> None:
    """The match occurs as often as before, but elsewhere."""
    with live, LiveDatastore.open(live.path, read_only=True) as reader:
        for store in (live, reader):
            require_tree(store, OLD)
        live.delete(["0"])
        live.add([[1, 9, 9]])
        reader.refresh()
        for store in (live, reader):
            require_tree(store, [*OLD[1:], [1, 9, 9]])


def test_trees_after_eviction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_segments(monkeypatch)
    with new_live(tmp_path / "live", max_tokens=2 * MANY) as live:
        live.add(OLD)
        documents = list(OLD)
        with LiveDatastore.open(live.path, read_only=True) as reader:
            for token in range(9, 9 + MANY):
                documents.append([1, token])
                live.add(documents[-1:])
                reader.refresh()
                for store in (live, reader):
                    require_tree(store, documents[-live.info().document_count :])
            assert live.info().document_count < len(documents)
