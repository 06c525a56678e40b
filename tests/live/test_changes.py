"""What replicas are told: every change in its order, and what was removed."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from rest_store.errors import DatastoreClosedError
from rest_store.live import documents
from rest_store.live.live_datastore import LiveDatastore
from tests.shared.live import new_live, small_segments, until


@pytest.fixture
def live(tmp_path: Path) -> Iterator[LiveDatastore]:
    with new_live(tmp_path / "live") as opened:
        yield opened


def test_additions_and_removals_share_one_count(live: LiveDatastore) -> None:
    live.namespace("one").add([[1, 2], [1, 3]], ["a", "b"], group="first", epoch=7)
    live.add([[1, 4]], ["c"])
    assert live.namespace("one").delete(["a", "b"]) == 2
    live.namespace("one").add([[1, 5]], ["a"])
    changes = live.changes(0, "")
    assert (
        (changes.first, changes.last, changes.head)
        == (1, 5, 5)
        == (1, live.newest_change, live.newest_change)
    )
    assert [
        (document.number, document.namespace, document.symbols) for document in changes.added
    ] == [
        (3, "", b"\0\1\0\4"),
        (5, "one", b"\0\1\0\5"),
    ]
    assert changes.removed == [(4, 1, 2, True)]
    later = live.changes(3, changes.datastore_id)
    assert later.first == 4
    assert [document.number for document in later.added] == [5]
    assert later.removed == changes.removed
    assert live.changes(5, changes.datastore_id) == (changes.datastore_id, 6, 5, 5, [], [], 1)
    assert live.changes(3, "another") == live.changes(6, changes.datastore_id) == changes, (
        "they begin with the first"
    )


def test_a_number_is_never_used_again(live: LiveDatastore) -> None:
    live.delete(live.add([[1, 2], [1, 3]]))
    assert live.newest_change == 3
    live.close()
    with LiveDatastore.open(live.path) as again:
        again.add([[1, 4]])
        assert [document.number for document in again.changes(0, "").added] == [4]


def test_changes_go_on_after_a_restart_but_not_from_those_that_a_backup_lacks(
    live: LiveDatastore,
) -> None:
    live.add([[1, 2], [1, 3]])
    before = live.changes(0, "")
    for _ in range(3):
        live.close()
        live = LiveDatastore.open(live.path)
        assert live.changes(2, before.datastore_id).first == 3
    live.add([[1, 4], [1, 5]])
    assert live.changes(0, "").datastore_id != before.datastore_id
    assert [live.changes(after, before.datastore_id).first for after in range(5)] == [1, 2, 3, 1, 1]
    live.close()


def test_changes_come_in_pieces(live: LiveDatastore) -> None:
    ids = live.add([[1, 2] * 50 for _ in range(40)])
    live.delete(ids[:30:2])
    datastore_id = ""
    after = 0
    numbers = []
    while True:
        changes = live.changes(after, datastore_id, max_bytes=2000)
        assert (changes.first, changes.head) == (after + 1, live.newest_change)
        if changes.last < changes.first:
            break
        assert len(changes.added) + len(changes.removed) <= 2000 // 64
        numbers += [change.number for change in (*changes.added, *changes.removed)]
        datastore_id = changes.datastore_id
        after = changes.last
    assert numbers == [*range(2, 30, 2), *range(30, 41), *range(41, 56)]
    assert len(live.changes(0, "", max_bytes=1).added) == 1, "at least one"


def test_what_is_evicted_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_segments(monkeypatch)
    with new_live(tmp_path / "live", 65_535, max_tokens=240) as live:
        for token in range(200):
            live.namespace(random.Random(token).choice(["one", "other"])).add(
                [[1000 + token, 1, 2]]
            )
        changes = live.changes(0, "")
        gone = {
            number
            for removal in changes.removed
            for number in range(removal.first, removal.last + 1)
        }
        assert not any(removal.deleted for removal in changes.removed)
        assert gone.isdisjoint(document.number for document in changes.added)
        assert gone | {change.number for change in (*changes.added, *changes.removed)} == set(
            range(1, changes.head + 1)
        )
        assert len(changes.added) == live.info().document_count


def test_a_replica_from_before_what_was_forgotten_begins_anew(
    live: LiveDatastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "_MAX_REMOVALS", 2)
    ids = live.add([[1, number] for number in range(2, 12)])
    datastore_id = live.changes(0, "").datastore_id
    for id in ids[:8:2]:
        live.delete([id])
    assert [live.changes(after, datastore_id).first for after in (10, 11, 12, 13)] == [1, 1, 13, 14]
    assert len(live.changes(0, datastore_id).removed) == 2


def test_changes_are_waited_for(live: LiveDatastore) -> None:
    assert not live.wait_for_change(0, 0)
    waited: list[bool] = []

    def wait() -> None:
        with suppress(DatastoreClosedError):
            while True:
                waited.append(live.wait_for_change(len(waited), 600))

    thread = threading.Thread(target=wait)
    thread.start()
    with LiveDatastore.open(live.path, read_only=True) as reader:
        for number in range(2):
            live.add([[1, 2]])
            assert reader.wait_for_change(number, 600)
        assert reader.changes(0, "") == live.changes(0, "")
    until(lambda: len(waited) == 2)
    live.close()
    thread.join()
    assert waited == [True, True]
