"""Live datastores of the format before: read as they are, and changed to the present one when they are written."""

from __future__ import annotations

import json
import sqlite3
import zlib
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from rest_store.live.live_datastore import LiveDatastore
from tests.shared.live import file_bytes
from tests.shared.strategies import identity

WITH_IDS = """
CREATE TABLE properties (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE documents (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, added REAL NOT NULL, symbols BLOB NOT NULL,
    crc INTEGER NOT NULL);
CREATE TABLE segments (
    name TEXT PRIMARY KEY, first INTEGER NOT NULL, last INTEGER NOT NULL, oldest REAL NOT NULL, newest REAL NOT NULL,
    tokens_sha256 BLOB NOT NULL, suffixes_sha256 BLOB NOT NULL) WITHOUT ROWID;
PRAGMA application_id=0x52535430;
PRAGMA user_version=1;
"""
SECRET = list(range(200, 240))


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A directory with 50 documents and the last of 60 numbers, as it was written with ids."""
    directory = tmp_path / "live"
    directory.mkdir()
    with closing(sqlite3.connect(directory / "documents.sqlite")) as database:
        database.execute("PRAGMA journal_mode=WAL")
        database.execute("PRAGMA secure_delete=ON")
        database.executescript(WITH_IDS)
        properties = {"tokenizer": json.dumps(identity(300).to_manifest()), "first": 0, "deletions": 0}
        properties |= {"max_tokens": 5000, "max_age": None}
        database.executemany("INSERT INTO properties VALUES (?, ?)", list(properties.items()))
        for number in range(60):
            symbols = np.array([*SECRET, number], ">u2").tobytes()
            row = (f"the id of {number}", 1.7e9 + number, symbols, zlib.crc32(symbols))
            database.execute("INSERT INTO documents (id, added, symbols, crc) VALUES (?, ?, ?, ?)", row)
        database.execute("DELETE FROM documents WHERE number > 50")
        database.commit()
    return directory


def test_it_is_read_as_it_is(old: Path) -> None:
    with LiveDatastore.open(old, read_only=True) as live:
        assert (live.info().document_count, live.count(SECRET), live.count([7])) == (50, 50, 1)
    assert b"the id of 7" in file_bytes(old)


def test_it_is_written_in_the_present_format(old: Path) -> None:
    with LiveDatastore.open(old, read_only=True) as reader, LiveDatastore.open(old) as live:
        assert (live.info().document_count, live.info().max_tokens, live.count(SECRET)) == (50, 5000, 50)
        live.add([[1, 2]], ["the id of 7"])
        assert live.count([1, 2]) == 0, "an id stands for the document that it stood for"
        live.add([[1, 2]], ["new"])
        assert [document.number for document in live._backend._documents.read(50)] == [50, 61]
        assert live.delete([f"the id of {number}" for number in range(60)]) == 50
        reader.refresh()
        assert (live.count(SECRET), reader.count(SECRET), reader.count([1, 2])) == (0, 0, 1)
        stored = file_bytes(old)
    assert np.array(SECRET, ">u2").tobytes() not in stored
    assert b"the id of" not in stored
    with LiveDatastore.open(old) as live:
        assert live.info().document_count == 1
