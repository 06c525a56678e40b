"""Deletion: what is forgotten, when, and that no file holds it."""

from __future__ import annotations

import random
import shutil
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rest_store.errors import StorageError
from rest_store.live import housekeeping, segment_files
from rest_store.live.documents import Documents
from rest_store.live.housekeeping import Housekeeping
from rest_store.live.live_datastore import LiveDatastore
from tests.shared.live import SECRET, SECRET_BYTES, file_bytes, new_live, until


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("size", [1, 300])
def test_no_file_holds_what_was_deleted(tmp_path: Path, compacted: bool, size: int) -> None:
    """Not the log either, nor free pages, whether it takes a part of a page or several."""
    with new_live(tmp_path / "live") as live, LiveDatastore.open(tmp_path / "live", read_only=True) as reader:
        live.add([[1, 2, 3] * 50] * 20)
        live.add([SECRET * size, [1, 2]], ["a secret id", "b"])
        live.add([[1, 2, 3] * 50] * 20)
        if compacted:
            live.compact()
            live.add([SECRET], ["later"])
        reader.refresh()
        assert SECRET_BYTES in file_bytes(tmp_path / "live")
        assert live.delete(["a secret id", "later"]) == 1 + compacted
        assert SECRET_BYTES not in file_bytes(tmp_path / "live")
        assert b"a secret id" not in file_bytes(tmp_path / "live")
        assert (live.count(SECRET), live.count([1, 2])) == (0, 2001)
        reader.refresh()
        assert reader.count(SECRET) == 0
    assert SECRET_BYTES not in file_bytes(tmp_path / "live")


@pytest.mark.parametrize("seed", range(4))
def test_no_page_of_the_database_holds_what_was_deleted(tmp_path: Path, seed: int) -> None:
    """Rows move between pages as others come and go."""
    chance = random.Random(seed)
    ids = []
    with new_live(tmp_path / "live", 65_535) as live:
        for first in range(0, 250, 25):
            some = [[256 + place] * chance.choice([8, 40, 400]) for place in range(first, first + 25)]
            ids += live.add(some)
            if chance.random() < 0.5:
                live.delete(chance.sample(ids, 10))
        kept = set(chance.sample(range(250), 30))
        live.delete([id for place, id in enumerate(ids) if place not in kept])
        stored = file_bytes(tmp_path / "live")
    left = {place for place in range(250) if np.array([256 + place] * 4, ">u2").tobytes() in stored}
    assert left <= kept


@pytest.mark.parametrize("seed", range(4))
def test_nor_where_the_oldest_were_evicted_before(tmp_path: Path, seed: int) -> None:
    """Purging has rows moved that are deleted later."""
    chance = random.Random(seed)
    with new_live(tmp_path / "live", 65_535, max_tokens=20_000) as live:
        ids: list[str] = []
        for first in range(0, 600, 25):
            some = [[token_of(place)] * chance.choice([8, 40, 400]) for place in range(first, first + 25)]
            ids += live.add(some)
            if chance.random() < 0.5:
                live.delete(chance.sample(ids, 10))
        until(lambda: not live._backend.housekeeping.purge())
        there = [place for place in range(600) if live.count([token_of(place)])]
        assert there[0] > 100, "some were evicted"
        kept = set(chance.sample(there, 30))
        live.delete([id for place, id in enumerate(ids) if place not in kept])
        stored = file_bytes(tmp_path / "live")
    left = {place for place in range(600) if np.array([token_of(place)] * 4, ">u2").tobytes() in stored}
    assert left <= kept


def token_of(place: int) -> int:
    """A token of two bytes that are not those of another one in their other order."""
    return 256 * (1 + place // 200) + 50 + place % 200


def counted_rewrites(patch: pytest.MonkeyPatch) -> list[Documents]:
    rewritten: list[Documents] = []
    rewrite = Documents.rewrite
    patch.setattr(Documents, "rewrite", lambda documents: (rewritten.append(documents), rewrite(documents)))
    return rewritten


def test_only_what_eviction_may_have_moved_has_the_file_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rewritten = counted_rewrites(monkeypatch)
    with new_live(tmp_path / "live", max_tokens=100_000) as live:
        ids = live.add([[1, 2, 3] * 50] * 600)
        live.delete(ids[::7])
        assert len(rewritten) == 0
        ids = live.add([[1, 2, 3] * 50] * 600)
        until(lambda: not live._backend.housekeeping.purge())
        live.delete(ids[200:300])
        assert len(rewritten) == 0
        ids = live.add([SECRET] * 4000)
        until(lambda: not live._backend.housekeeping.purge())
        there = live.info().document_count
        live.delete(ids[: 4000 - there + 20])
        assert len(rewritten) == 1
        assert live.info().failure is None


def test_compacting_gives_back_the_room_of_what_was_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rewritten = counted_rewrites(monkeypatch)
    with new_live(tmp_path / "live") as live:
        ids = live.add([[1, 2, 3] * 400] * 100)
        live.add([SECRET])
        live.compact()
        live._backend.housekeeping.clear_log()
        size = (tmp_path / "live" / "documents.sqlite").stat().st_size
        live.delete(ids)
        assert len(rewritten) == 0
        live.compact()
        live.compact()
        assert len(rewritten) == 1
        live._backend.housekeeping.clear_log()
        assert (tmp_path / "live" / "documents.sqlite").stat().st_size < size / 4
        assert (live.count([1]), live.count(SECRET)) == (0, 1)
    with LiveDatastore.open(tmp_path / "live") as live:
        assert (live.info().document_count, live.count(SECRET)) == (1, 1)


def test_deleting_again_and_again_does_not_make_the_file_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "_MOST_EMPTY", 50)
    rewritten = counted_rewrites(monkeypatch)
    sizes = []
    with new_live(tmp_path / "live") as live:
        live.add([SECRET])
        for _ in range(12):
            live.delete(live.add([[1, 2, 3] * 400] * 40))
            live._backend.housekeeping.clear_log()
            sizes.append((tmp_path / "live" / "documents.sqlite").stat().st_size)
        assert 3 <= len(rewritten) <= 6, "once for each 50 deleted documents or so"
        assert max(sizes) < 4 * sizes[0]
        assert (live.info().document_count, live.count([1]), live.count(SECRET)) == (1, 0, 1)


@pytest.mark.parametrize(
    "again", [LiveDatastore.compact, lambda live: live.delete(["none"])], ids=["compact", "delete"]
)
def test_what_compacting_has_moved_and_could_not_rewrite_is_rewritten_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, again: Callable[[LiveDatastore], object]
) -> None:
    def full(documents: Documents) -> None:
        raise StorageError("no room")

    with new_live(tmp_path / "live") as live:
        ids = live.add([[1, 2, 3]] * 3)
        live.delete(ids[:1])
        with monkeypatch.context() as patch:
            patch.setattr(Documents, "rewrite", full)
            with pytest.raises(StorageError, match="no room"):
                live.compact()
    rewritten = counted_rewrites(monkeypatch)
    with LiveDatastore.open(tmp_path / "live") as live:
        again(live)
        live.delete(ids[1:])
        assert len(rewritten) == 1


def test_additions_go_on_while_a_deletion_waits_for_a_reader(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "_LOG_PATIENCE", 60.0)
    with new_live(tmp_path / "live") as live:
        live.add([SECRET], ["a"])
        reader = sqlite3.connect(tmp_path / "live" / "documents.sqlite", isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM documents").fetchall()
        deletion = threading.Thread(target=live.delete, args=(["a"],))
        deletion.start()
        until(lambda: live.count(SECRET) == 0)
        for _ in range(3):
            live.add([[1, 2]])
        assert deletion.is_alive()
        reader.execute("COMMIT")
        reader.close()
        deletion.join()
        assert SECRET_BYTES not in file_bytes(tmp_path / "live")
        assert live.count([1, 2]) == 3


def test_a_deletion_says_when_a_reader_keeps_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(housekeeping, "_LOG_PATIENCE", 0.01)
    with new_live(tmp_path / "live") as live:
        live.add([SECRET], ["a"])
        reader = sqlite3.connect(tmp_path / "live" / "documents.sqlite", isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM documents").fetchall()
        with pytest.raises(StorageError, match="still in the log, while another process reads an older state"):
            live.delete(["a"])
        assert live.count(SECRET) == 0
        live.add([[1, 2]])
        reader.execute("COMMIT")
        reader.close()
        until(lambda: SECRET_BYTES not in file_bytes(tmp_path / "live"))
        assert live.info().failure is None


def test_a_deletion_says_when_a_file_cannot_be_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError("not permitted")

    with new_live(tmp_path / "live") as live:
        live.add([SECRET], ["a"])
        live.compact()
        with monkeypatch.context() as patch:
            patch.setattr(segment_files, "remove_files", refuse)
            with pytest.raises(StorageError, match="what was deleted is still in segment-"):
                live.delete(["a"])
        assert live.count(SECRET) == 0
        until(lambda: SECRET_BYTES not in file_bytes(tmp_path / "live"))


def test_a_deletion_that_could_not_rewrite_the_documents_is_completed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(documents: Documents) -> None:
        raise StorageError("no room")

    with new_live(tmp_path / "live", max_tokens=400) as live:
        live.add([[1, 2] * 20] * 40)
        live.add([SECRET], ["a"])
        with monkeypatch.context() as patch:
            patch.setattr(Documents, "rewrite", full)
            with pytest.raises(StorageError, match="no room"):
                live.delete(["a"])
        assert SECRET_BYTES not in file_bytes(tmp_path / "live"), "the log is emptied nevertheless"
        rewritten = counted_rewrites(monkeypatch)
        assert live.delete(["a"]) == 0
        assert live.delete(["a"]) == 0
    assert len(rewritten) == 1


def test_nothing_to_delete_has_nobody_sort_anew(tmp_path: Path) -> None:
    with new_live(tmp_path / "live") as live, LiveDatastore.open(tmp_path / "live", read_only=True) as reader:
        live.add([SECRET])
        reader.refresh()
        before = reader.snapshot.views
        assert live.delete(["absent"]) == 0
        live.add([[1, 2]])
        reader.refresh()
        assert before[0] is reader.snapshot.views[0]


@pytest.mark.parametrize("evicted", [False, True])
def test_what_a_kill_leaves_of_a_deletion_is_removed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evicted: bool
) -> None:
    """A kill between the commit of a deletion and the end of it, while another process reads."""
    killed = tmp_path / "killed"

    def kill(opened: Housekeeping) -> None:
        shutil.copytree(tmp_path / "live", killed)
        raise StorageError("killed")

    with new_live(tmp_path / "live", max_tokens=20_000 if evicted else None) as live:
        ids = live.add([[*SECRET, 1, 2]] * 200)
        if evicted:
            ids += live.add([[*SECRET, 1, 2]] * 400)
            until(lambda: not live._backend.housekeeping.purge())
        monkeypatch.setattr(Housekeeping, "clear", kill)
        with pytest.raises(StorageError, match="killed"):
            live.delete(ids)
        monkeypatch.undo()
    with LiveDatastore.open(killed, read_only=True), LiveDatastore.open(killed) as live:
        assert live.delete(ids) == 0
        assert SECRET_BYTES not in file_bytes(killed)
