"""The tables of a live datastore in SQLite, and how those of the format before become these."""

from __future__ import annotations

import hashlib
import sqlite3

_APPLICATION = 0x52535430  # "RST0"
FORMAT = (2, _APPLICATION)  # version and program, as the file says them
FORMAT_WITH_IDS = (1, _APPLICATION)  # with the ids of documents in place of their digests
DIGEST = 16  # bytes

# `digest` is of the caller's id. New rows of the table come after all others, for which SQLite moves none; an index is
# split in the middle, which leaves copies of what it moves in unused bytes.
_DOCUMENTS = """
CREATE TABLE documents (
    number INTEGER PRIMARY KEY AUTOINCREMENT, digest BLOB NOT NULL UNIQUE, added REAL NOT NULL, symbols BLOB NOT NULL,
    crc INTEGER NOT NULL)"""
_SCHEMA = f"""
CREATE TABLE properties (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
{_DOCUMENTS};
CREATE TABLE segments (
    name TEXT PRIMARY KEY, first INTEGER NOT NULL, last INTEGER NOT NULL, oldest REAL NOT NULL, newest REAL NOT NULL,
    tokens_sha256 BLOB NOT NULL, suffixes_sha256 BLOB NOT NULL) WITHOUT ROWID;
PRAGMA application_id={_APPLICATION};
PRAGMA user_version={FORMAT[0]}"""
_UPGRADE = f"""
ALTER TABLE documents RENAME TO documents_with_ids;
{_DOCUMENTS};
INSERT INTO documents SELECT number, digest(id), added, symbols, crc FROM documents_with_ids ORDER BY number;
DELETE FROM sqlite_sequence WHERE name = 'documents';
INSERT INTO sqlite_sequence SELECT 'documents', seq FROM sqlite_sequence WHERE name = 'documents_with_ids';
DROP TABLE documents_with_ids;
INSERT INTO properties VALUES ('moved', 0);
PRAGMA user_version={FORMAT[0]}"""


def create(database: sqlite3.Connection) -> None:
    """Make the tables of a new file, within a transaction of the caller."""
    _run(database, _SCHEMA)


def upgrade(database: sqlite3.Connection) -> None:
    """Make these tables of those of `FORMAT_WITH_IDS`, within a transaction of the caller.

    With `secure_delete`, nothing is left of ids: the pages of the table that held them are overwritten.
    """
    database.create_function("digest", 1, digest_of, deterministic=True)
    _run(database, _UPGRADE)


def digest_of(id: str) -> bytes:
    """Return what stands for an id in the file; the first half of none is zero."""
    return hashlib.blake2b(id.encode(), digest_size=DIGEST).digest()


def _run(database: sqlite3.Connection, statements: str) -> None:
    for statement in statements.split(";"):
        database.execute(statement)
