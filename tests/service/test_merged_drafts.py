"""The trees of several parts make that of the whole: node for node, count for count, whatever the parts have."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rest_store.datastore.datastore import Datastore
from rest_store.errors import ProtocolError
from rest_store.service.client import merged_drafts as rooms
from rest_store.service.client.merged_drafts import Drafts, merged_drafts
from tests.shared.strategies import Corpus, contexts, corpora, write_datastore, zipf_corpus

Bounds = tuple[int, int, int]


class Local:
    """The requests of a part that is in this process: each is answered by a call."""

    def __init__(self, store: Datastore) -> None:
        self._store = store
        self.codec = SimpleNamespace(names=("served",), max_contexts=7, max_message_bytes=1 << 22)
        self.asked: Counter[str] = Counter()

    def trees(self, contexts: Sequence[Any], labels: Sequence[str], bounds: Bounds) -> Callable[[], Any]:
        assert len(contexts) == len(labels)
        self.asked["trees"] += 1
        return lambda: [{"served": tree} for tree in self._store.continuations(contexts, *bounds)]

    def counts(self, sequences: Sequence[Any]) -> Callable[[], Any]:
        assert 0 < len(sequences) <= self.codec.max_contexts
        self.asked["counts"] += 1
        return lambda: {"served": [self._store.count(tokens) for tokens in sequences]}


def asked(
    parts: Mapping[int, Local], texts: Sequence[Sequence[int]], bounds: Bounds, lost: Mapping[int, int] | None = None
) -> tuple[Drafts | None, int]:
    """Answer all rounds; from round `lost[place]` on, a part is silent. Returns the drafts, and the rounds."""
    rounds: Any = merged_drafts(parts, texts, ["context"] * len(texts), bounds)  # type: ignore[arg-type]
    answers: Any = None
    for number in range(100):
        try:
            wanted = next(rounds) if number == 0 else rounds.send(answers)
        except StopIteration as done:
            return done.value, number
        answers = {
            place: [request() for request in requests]
            for place, requests in wanted.items()
            if lost is None or number < lost.get(place, 100)
        }
    raise AssertionError("no end")


def parts_of(directory: Path, number: int) -> dict[int, Local]:
    return {place: Local(Datastore.open(directory, part=f"{place + 1}/{number}")) for place in range(number)}


@settings(max_examples=60)
@given(data=st.data())
def test_the_tree_of_the_parts_is_that_of_the_whole(data: st.DataObject) -> None:
    corpus = data.draw(corpora())
    number = data.draw(st.integers(1, len(corpus.shards)))
    texts = data.draw(st.lists(contexts(corpus), min_size=1, max_size=3))
    bounds = (data.draw(st.integers(1, 30)), data.draw(st.sampled_from([1, 3, 64])), data.draw(st.sampled_from([1, 5])))
    with tempfile.TemporaryDirectory() as folder:
        whole = Datastore.open(write_datastore(Path(folder), corpus))
        found, _ = asked(parts_of(Path(folder), number), texts, bounds)
        assert found is not None
        assert found.trees == whole.continuations(texts, *bounds)
        assert found.unproved == 0


@pytest.fixture(scope="module")
def zipf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Much of what there is occurs about as often in each part, so that lists end among equals."""
    return write_datastore(tmp_path_factory.mktemp("zipf"), zipf_corpus(5, 30_000, 60, 300, 8))


@pytest.mark.parametrize("number", [2, 4, 8])
def test_many_nodes_of_frequent_matches(zipf: Path, number: int) -> None:
    """Several rounds are needed at times; few, as a rule."""
    whole, parts, chance = Datastore.open(zipf), parts_of(zipf, number), random.Random(number)
    texts = [[chance.randrange(300) for _ in range(2)] for _ in range(40)]
    rounds = Counter[int]()
    for text in texts:
        for nodes in (1, 20, 300):
            found, taken = asked(parts, [text], (nodes, 16, 10))
            assert found is not None
            assert (found.trees, found.unproved) == ([whole.draft(text, max_nodes=nodes)], 0)
            rounds[taken] += 1
    assert max(rounds) <= 6


def test_a_part_that_is_lost_between_rounds_is_left_out_of_all(zipf: Path) -> None:
    """What it has said before is forgotten: the tree is that of the others."""
    texts = [[token] for token in range(0, 300, 7)]
    others = {place: local for place, local in parts_of(zipf, 4).items() if place != 2}
    expected, _ = asked(others, texts, (20, 16, 10))
    for lost in (0, 1, 2):
        found, rounds = asked(parts_of(zipf, 4), texts, (20, 16, 10), {2: lost})
        assert rounds >= 2
        if lost < rounds - 1:
            assert found == expected


class Lying(Local):
    """A part whose counts are not those of any text."""

    def counts(self, sequences: Sequence[Any]) -> Callable[[], Any]:
        return lambda: {"served": [(1 << 62) + len(tokens) for tokens in sequences]}


def test_counts_that_cannot_be_are_refused(zipf: Path) -> None:
    number, refusals = 4, 0
    parts = {place: Lying(Datastore.open(zipf, part=f"{place + 1}/{number}")) for place in range(number)}
    for token in range(0, 300, 5):
        try:
            asked(parts, [[token]], (20, 16, 10))
        except ProtocolError:
            refusals += 1
    assert refusals > 0


def test_without_answers_there_is_no_tree(zipf: Path) -> None:
    assert asked(parts_of(zipf, 2), [[1]], (4, 16, 10), {0: 0, 1: 0})[0] is None


def test_a_list_that_may_not_become_longer_is_not_called_proved(zipf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "MAX_LISTED", 2)
    monkeypatch.setattr(rooms, "_FIRST", 1)
    found, _ = asked(parts_of(zipf, 8), [[token] for token in range(300)], (2, 16, 10))
    assert found is not None
    assert found.unproved > 0


def test_the_heaviest_nodes_are_not_missed_where_no_part_lists_them() -> None:
    """A node that is second in each part, and would be in no list of one node, is the heaviest of the whole."""
    shards = [[[9, first]] * 3 + [[9, 5]] * 2 for first in (1, 2, 3)]
    with tempfile.TemporaryDirectory() as folder:
        directory = write_datastore(Path(folder), Corpus(300, shards))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rooms, "_FIRST", 1)
            found, rounds = asked(parts_of(directory, 3), [[9]], (1, 16, 10))
        assert found is not None
        assert (found.trees[0].tokens.tolist(), found.trees[0].counts.tolist(), rounds) == ([5], [6], 3)
