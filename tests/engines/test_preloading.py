"""Datastores are read before the first request, within a time."""

from __future__ import annotations

from pathlib import Path

from rest_store.engines.preloading import preload
from tests.shared.strategies import ONE_TO_NINE, Corpus, open_datastore


def test_all_of_a_datastore_is_read(tmp_path: Path) -> None:
    store = open_datastore(tmp_path, ONE_TO_NINE)
    assert preload([store]) == sum(
        view.keys.size + view.entries.size + view.symbols.size for view in store.snapshot.views
    )


def test_it_ends_in_time(tmp_path: Path) -> None:
    store = open_datastore(tmp_path, Corpus(300, [[[1, 2, 3]]] * 3))
    ticks = iter(range(100))
    assert 0 < preload([store], 3, clock=lambda: float(next(ticks))) < preload([store])
    assert preload([], 3) == 0
