"""Small segments, random documents, and expected answers, for tests of live datastores."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from rest_store.datastore.store import Store
from rest_store.live import backend, retention
from rest_store.live.live_datastore import LiveDatastore
from tests.shared.oracle import Oracle
from tests.shared.strategies import Corpus, Document, identity

SECRET = list(range(200, 240))  # a document that files must not hold any more
SECRET_BYTES = np.array(SECRET, ">u2").tobytes()


def small_segments(patch: pytest.MonkeyPatch, memtable: int = 16, largest: int = 400) -> None:
    """Have a few hundred tokens go through all that a billion would."""
    for name, value in (
        ("_MAX_MEMTABLE_POSITIONS", memtable),
        ("_MAX_SEGMENT_POSITIONS", largest),
        ("_MAX_COMMIT_POSITIONS", largest),
    ):
        patch.setattr(retention, name, value)


class Idle:
    """Stands for `Background`, and does nothing."""

    failure = None

    def __init__(self, owner: object, work: object, abandoned: object, idle_seconds: float) -> None:
        pass

    def stop(self) -> None:
        pass


def refresh(reader: LiveDatastore) -> None:
    """Have a reader look now at what was written, which it does by itself a moment later."""
    reader.backend.role.work()


def no_background(patch: pytest.MonkeyPatch) -> None:
    """Have nothing merged beside what the test does."""
    patch.setattr(backend, "Background", Idle)


def new_live(directory: Path, vocabulary_size: int = 300, **options) -> LiveDatastore:
    return LiveDatastore.open(directory, tokenizer=identity(vocabulary_size), **options)


def some_document(chance: random.Random, vocabulary_size: int, most: int = 30) -> Document:
    """A document with repeats over few ids, the vocabulary's first and last among them."""
    ids = [0, 1, 2, vocabulary_size // 2, vocabulary_size - 1]
    return [ids[min(int(chance.expovariate(0.8)), 4)] for _ in range(chance.randint(1, most))]


def require_answers(
    store: Store, documents: Iterable[Document], chance: random.Random, number: int = 2
) -> None:
    """Compare some answers of `store` with those of the oracle over `documents`."""
    corpus = Corpus(store.vocabulary_size, [list(documents)])
    oracle = Oracle(corpus)
    alphabet = [0, 1, 2, store.vocabulary_size // 2, store.vocabulary_size - 1]
    for _ in range(number):
        context = [chance.choice(alphabet) for _ in range(chance.randint(1, 3))]
        if corpus.documents and chance.random() < 0.7:
            document = chance.choice(corpus.documents)
            end = chance.randint(1, len(document))
            context += document[max(0, end - chance.randint(1, 6)) : end]
        assert store.count(context[-2:]) == oracle.count(context[-2:])
        limits = {"max_nodes": 12, "max_suffix": 8, "max_depth": 4}
        assert store.draft(context, **limits) == oracle.draft(context, **limits)


def file_bytes(directory: Path) -> bytes:
    """All that the files of a directory hold; files that threads remove meanwhile are left out."""
    content = []
    for path in sorted(directory.rglob("*")):
        with suppress(FileNotFoundError, IsADirectoryError):
            content.append(path.read_bytes())
    return b"".join(content)


def until(condition: Callable[[], object]) -> None:
    """Return once a condition holds that other threads bring about."""
    while not condition():
        time.sleep(0.001)
