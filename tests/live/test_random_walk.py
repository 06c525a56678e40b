"""Random additions, deletions, merges and reopenings.

Every answer is that of a brute-force count.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from rest_store.datastore.datastore import Datastore
from rest_store.live.live_datastore import LiveDatastore
from tests.shared.live import new_live, refresh, require_answers, small_segments, some_document
from tests.shared.strategies import Corpus, Document, write_datastore

NAMESPACES = ("", "one", "other")


class Walk:
    """A live datastore, a reader of it, and the documents of each namespace, oldest first."""

    def __init__(self, directory: Path, chance: random.Random, vocabulary_size: int) -> None:
        self.directory = directory
        self.chance = chance
        self.vocabulary_size = vocabulary_size
        self.documents: dict[str, dict[str, Document]] = {namespace: {} for namespace in NAMESPACES}
        self.live = new_live(directory, vocabulary_size)
        self.reader = LiveDatastore.open(directory, read_only=True)

    def step(self) -> None:
        act = self.chance.choices(
            [self.add, self.delete, self.compact, self.reopen, self.reopen_reader], [10, 3, 1, 1, 1]
        )
        act[0]()
        self.require_answers(self.live)
        if self.chance.random() < 0.4:
            refresh(self.reader)
            self.require_answers(self.reader)

    def require_answers(self, store: LiveDatastore) -> None:
        require_answers(store, self.documents[""].values(), self.chance)
        for namespace in NAMESPACES[1:]:
            documents = self.documents[namespace].values()
            require_answers(store.namespace(namespace), documents, self.chance)
            stored = [
                document.tokens.tolist() for document in store.namespace(namespace).documents()
            ]
            assert stored == list(documents)

    def add(self) -> None:
        namespace = self.chance.choice(NAMESPACES)
        size = self.chance.choice([1, 1, 2, 5, 20])
        added = [some_document(self.chance, self.vocabulary_size) for _ in range(size)]
        if self.chance.random() < 0.3:
            new = list(self.live.namespace(namespace).add(added))
        else:
            new = [f"document {self.chance.randrange(100)}" for _ in added]
            assert self.live.namespace(namespace).add(added, new) == new
        for id, document in zip(new, added, strict=True):
            self.documents[namespace].setdefault(id, document)

    def delete(self) -> None:
        namespace = self.chance.choice(NAMESPACES)
        documents = self.documents[namespace]
        ids = self.chance.sample(
            list(documents), min(len(documents), self.chance.choice([1, 1, 3, 12]))
        )
        ids += ["absent", *ids[:1]]
        known = set(ids) & documents.keys()
        assert self.live.namespace(namespace).delete(ids) == len(known)
        for id in known:
            del documents[id]

    def compact(self) -> None:
        self.live.compact()

    def reopen(self) -> None:
        self.live.close()
        self.live = LiveDatastore.open(self.directory)

    def reopen_reader(self) -> None:
        self.reader.close()
        self.reader = LiveDatastore.open(self.directory, read_only=True)


@pytest.mark.parametrize(
    ("vocabulary_size", "seed"), [(300, 0), (65_535, 1), (70_000, 2), (2**24 - 1, 3)]
)
def test_every_answer_is_that_of_a_brute_force_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, vocabulary_size: int, seed: int
) -> None:
    small_segments(monkeypatch)
    chance = random.Random(seed)
    walk = Walk(tmp_path / "live", chance, vocabulary_size)
    for _ in range(40):
        walk.step()
    info = walk.live.info()
    assert info.failure is None
    everything = [
        document for documents in walk.documents.values() for document in documents.values()
    ]
    assert (info.document_count, info.token_count) == (len(everything), sum(map(len, everything)))
    (tmp_path / "frozen").mkdir()
    frozen = Datastore.open(
        write_datastore(
            tmp_path / "frozen", Corpus(vocabulary_size, [list(walk.documents[""].values())])
        )
    )
    for _ in range(8):
        context = some_document(chance, vocabulary_size)
        assert walk.live.draft(context) == frozen.draft(context)
        assert walk.live.longest_suffix_match(context) == frozen.longest_suffix_match(context)
    walk.live.close()
    walk.reader.close()
