"""Deletion: what is forgotten, when, and that no file holds it."""

from __future__ import annotations

import random
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rest_store.errors import StorageError
from rest_store.live import database, segment_builder
from rest_store.live.documents import Documents
from rest_store.live.live_datastore import LiveDatastore
from rest_store.live.segment import Segment
from tests.shared.live import SECRET, SECRET_BYTES, file_bytes, new_live, no_background, refresh


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("size", [1, 300])
def test_no_file_holds_what_was_deleted(tmp_path: Path, compacted: bool, size: int) -> None:
    """Neither the log nor free pages hold a document of a part of a page or of several."""
    with (
        new_live(tmp_path / "live") as live,
        LiveDatastore.open(tmp_path / "live", read_only=True) as reader,
    ):
        live.add([[1, 2, 3] * 50] * 20)
        live.add([SECRET * size, [1, 2]], ["a secret id", "b"])
        live.add([[1, 2, 3] * 50] * 20)
        if compacted:
            live.compact()
            live.add([SECRET], ["later"])
        refresh(reader)
        assert SECRET_BYTES in file_bytes(tmp_path / "live")
        assert live.delete(["a secret id", "later"]) == 1 + compacted
        assert SECRET_BYTES not in file_bytes(tmp_path / "live")
        assert b"a secret id" not in file_bytes(tmp_path / "live")
        assert (live.count(SECRET), live.count([1, 2])) == (0, 2001)
        refresh(reader)
        assert reader.count(SECRET) == 0
    assert SECRET_BYTES not in file_bytes(tmp_path / "live")


@pytest.mark.parametrize("max_tokens", [None, 20_000])
@pytest.mark.parametrize("seed", range(4))
def test_no_page_of_the_database_holds_what_was_deleted(
    tmp_path: Path, seed: int, max_tokens: int | None
) -> None:
    """Rows move between pages as others come and go, and as the oldest are evicted."""
    chance = random.Random(seed)
    with new_live(tmp_path / "live", 65_535, max_tokens=max_tokens) as live:
        ids: list[str] = []
        for first in range(0, 600, 25):
            some = [
                [token_of(place)] * chance.choice([8, 40, 400])
                for place in range(first, first + 25)
            ]
            ids += live.add(some)
            if chance.random() < 0.5:
                live.delete(chance.sample(ids, 10))
        there = [place for place in range(600) if live.count([token_of(place)])]
        assert (there[0] > 100) == (max_tokens is not None)
        kept = set(chance.sample(there, 30))
        live.delete([id for place, id in enumerate(ids) if place not in kept])
        stored = file_bytes(tmp_path / "live")
    left = {
        place for place in range(600) if np.array([token_of(place)] * 4, ">u2").tobytes() in stored
    }
    assert left <= kept


def token_of(place: int) -> int:
    """A token of two bytes that are not those of another one in their other order."""
    return 256 * (1 + place // 200) + 50 + place % 200


@pytest.mark.parametrize("compacted", [False, True])
def test_a_deletion_says_when_a_reader_keeps_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compacted: bool
) -> None:
    monkeypatch.setattr(database, "_PATIENCE_MS", 10)
    with new_live(tmp_path / "live") as live:
        live.add([SECRET], ["a"])
        if compacted:
            live.compact()
        reader = sqlite3.connect(tmp_path / "live" / "documents.sqlite", isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM documents").fetchall()
        with pytest.raises(
            StorageError, match="still in the log, while another process reads an older state"
        ):
            live.delete(["a"])
        assert live.count(SECRET) == 0
        live.add([[1, 2]])
        reader.execute("COMMIT")
        reader.close()
        assert live.delete(["a"]) == 0
        assert SECRET_BYTES not in file_bytes(tmp_path / "live")
        assert (live.count([1, 2]), live.info().failure) == (1, None)


def test_no_file_of_a_change_that_failed_holds_what_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full after the first of two segments, or before the new segments are stored."""
    no_background(monkeypatch)
    write = segment_builder.write_segment

    def full(segment: Segment, *arguments: Any) -> Segment:
        if segment.namespace:
            raise StorageError("full")
        return write(segment, *arguments)

    with new_live(tmp_path / "live") as live:
        live.add([SECRET], ["a"])
        live.namespace("other").add([[1, 2]])
        with monkeypatch.context() as patch:
            patch.setattr(segment_builder, "write_segment", full)
            with pytest.raises(StorageError, match="full"):
                live.compact()
        assert [*live.path.glob("segment-*")] == []
        live.compact()
        live.add([[3, 4]], ["b"])
        live.compact()
        with monkeypatch.context() as patch:
            patch.setattr(Documents, "plan_removals", full_disk)
            with pytest.raises(StorageError, match="full"):
                live.delete(["b"])
        assert live.delete(["a"]) == 1
        assert SECRET_BYTES not in file_bytes(live.path)


def full_disk(*arguments: object, **options: object) -> None:
    raise StorageError("full")


@pytest.mark.parametrize("evicted", [False, True])
def test_what_a_kill_leaves_of_a_deletion_is_removed_when_it_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evicted: bool
) -> None:
    """The kill comes between the commit and the end of a deletion, while another process reads."""
    killed = tmp_path / "killed"

    def kill(opened: Documents) -> None:
        shutil.copytree(tmp_path / "live", killed)
        raise StorageError("killed")

    with new_live(tmp_path / "live", max_tokens=20_000 if evicted else None) as live:
        ids = live.add([[*SECRET, 1, 2]] * 200)
        if evicted:
            ids += live.add([[*SECRET, 1, 2]] * 400)
        monkeypatch.setattr(Documents, "clean", kill)
        with pytest.raises(StorageError, match="killed"):
            live.delete(ids)
        monkeypatch.undo()
    with LiveDatastore.open(killed, read_only=True), LiveDatastore.open(killed):
        assert SECRET_BYTES not in file_bytes(killed)
