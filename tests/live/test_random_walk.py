"""Random additions, deletions, merges and reopenings: every answer is that of a brute-force count."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from rest_store.datastore.datastore import Datastore
from rest_store.live.live_datastore import LiveDatastore
from tests.shared.live import new_live, require_answers, small_segments, some_document
from tests.shared.strategies import Corpus, Document, write_datastore


class Walk:
    """A live datastore, a reader of it, and the documents that they hold, in the order of their addition."""

    def __init__(self, directory: Path, chance: random.Random, vocabulary_size: int) -> None:
        self.directory = directory
        self.chance = chance
        self.vocabulary_size = vocabulary_size
        self.documents: dict[str, Document] = {}
        self.numbers = 0
        self.live = new_live(directory, vocabulary_size)
        self.reader = LiveDatastore.open(directory, read_only=True)

    def step(self) -> None:
        act = self.chance.choices(
            [self.add, self.delete, self.compact, self.reopen, self.reopen_reader], [10, 3, 1, 1, 1]
        )
        act[0]()
        require_answers(self.live, self.documents.values(), self.chance)
        if self.chance.random() < 0.4:
            self.reader.refresh()
            require_answers(self.reader, self.documents.values(), self.chance)

    def add(self) -> None:
        size = self.chance.choice([1, 1, 2, 5, 20])
        added = [some_document(self.chance, self.vocabulary_size) for _ in range(size)]
        if self.chance.random() < 0.3:
            new = self.live.add(added)
        else:
            new = [f"document {self.chance.randrange(300)}" for _ in added]
            assert self.live.add(added, new) == new
        for id, document in zip(new, added, strict=True):
            self.documents.setdefault(id, document)

    def delete(self) -> None:
        ids = self.chance.sample(list(self.documents), min(len(self.documents), self.chance.choice([1, 1, 3, 12])))
        ids += ["absent", *ids[:1]]
        known = set(ids) & self.documents.keys()
        assert self.live.delete(ids) == len(known)
        for id in known:
            del self.documents[id]

    def compact(self) -> None:
        self.live.compact()
        assert self.live.info().memory_token_count == 0

    def reopen(self) -> None:
        self.live.close()
        self.live = LiveDatastore.open(self.directory)

    def reopen_reader(self) -> None:
        self.reader.close()
        self.reader = LiveDatastore.open(self.directory, read_only=True)


@pytest.mark.parametrize(("vocabulary_size", "seed"), [(300, 0), (65_535, 1), (70_000, 2), (2**24 - 1, 3)])
def test_every_answer_is_that_of_a_brute_force_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vocabulary_size: int, seed: int
) -> None:
    small_segments(monkeypatch)
    chance = random.Random(seed)
    walk = Walk(tmp_path / "live", chance, vocabulary_size)
    for _ in range(30):
        walk.step()
    info = walk.live.info()
    assert info.failure is None
    assert (info.document_count, info.token_count) == (len(walk.documents), sum(map(len, walk.documents.values())))
    (tmp_path / "frozen").mkdir()
    frozen = Datastore.open(
        write_datastore(tmp_path / "frozen", Corpus(vocabulary_size, [list(walk.documents.values())]))
    )
    for _ in range(8):
        context = some_document(chance, vocabulary_size)
        assert walk.live.draft(context) == frozen.draft(context)
        assert walk.live.longest_suffix_match(context) == frozen.longest_suffix_match(context)
    walk.live.close()
    walk.reader.close()
