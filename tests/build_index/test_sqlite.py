"""SQLite databases: a document a row of the tables that have one."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from build_index.documents import Document
from build_index.readers import record_reader, sqlite
from rest_store.errors import CorpusError, CorpusFormatError
from tests.shared.corpora import documents_of, read_corpus


def database(path: Path, *statements: str, rows: dict[str, list[tuple]] | None = None) -> Path:
    with closing(sqlite3.connect(path)) as connection:
        for statement in statements:
            connection.execute(statement)
        for table, values in (rows or {}).items():
            marks = ", ".join("?" * len(values[0]))
            connection.executemany(f"INSERT INTO {table} VALUES ({marks})", values)
        connection.commit()
    return path


TABLES = (
    "CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT)",
    'CREATE TABLE "a b" (content BLOB, n)',
    "CREATE TABLE z (n)",
)
ROWS = {"notes": [(7, "one"), (9, "two")], '"a b"': [(b"bytes", 1), ("text", 2)], "z": [(1,)]}


def test_each_row_of_each_table_with_a_known_column_is_a_document(tmp_path):
    path = database(tmp_path / "a.db", *TABLES, rows=ROWS)
    corpus, documents = read_corpus(path)
    assert [document.text for document in documents] == ["bytes", "text", "one", "two"]
    assert [document.origin for document in documents[1:3]] == [
        f"{path}:a b, row 2",
        f"{path}:notes, row 1",
    ]
    assert corpus.reader == "sqlite"
    assert corpus.counts.bytes_read == corpus.size


def test_any_column_can_be_read(tmp_path):
    turns = json.dumps([{"role": "user", "content": "Hi"}])
    path = database(
        tmp_path / "a.db", "CREATE TABLE log (response, messages)", rows={"log": [("x", turns)]}
    )
    assert documents_of(path, field="response") == [Document(text="x")]
    assert documents_of(path) == [Document(messages=(("user", "Hi"),))]
    with pytest.raises(
        CorpusFormatError,
        match=r"the columns of all tables is without a known one \('log'\), .* 'body'",
    ):
        documents_of(path, field="body")


def test_a_database_in_a_directory_is_read_if_a_glob_names_it(tmp_path):
    path = database(tmp_path / "a.db", *TABLES, rows=ROWS)
    corpus, documents = read_corpus(tmp_path)
    assert documents == []
    assert corpus.counts.skipped == {"SQLite database": 1}
    assert corpus.counts.largest == {"SQLite database": (path.stat().st_size, str(path))}
    assert len(documents_of(tmp_path, include=("*.db",))) == 4


def test_what_a_database_defines_is_not_run(tmp_path):
    """Neither views nor virtual tables of a database are run."""
    view = "CREATE VIEW v AS SELECT 'of a view' AS text"
    path = database(tmp_path / "a.db", TABLES[0], view, rows={"notes": [(1, "x")]})
    with closing(sqlite3.connect(path)) as connection:
        if ("ENABLE_FTS5",) in connection.execute("PRAGMA compile_options").fetchall():
            connection.execute("CREATE VIRTUAL TABLE search USING fts5(text)")
    assert documents_of(path) == [Document(text="x")]


def test_rows_that_are_empty_or_not_utf8_are_counted(tmp_path):
    rows = [(1, "x"), (2, None), (3, ""), (4, b"\xff"), (5, 6)]
    path = database(tmp_path / "a.db", TABLES[0].replace("TEXT", ""), rows={"notes": rows})
    with pytest.raises(CorpusFormatError, match=f"{path}:notes, row 5: "):
        documents_of(path)
    corpus, documents = read_corpus(tmp_path, include=("*.db",))
    assert documents == [Document(text="x")]
    assert corpus.counts.skipped == {"empty": 2, "not UTF-8": 1, "malformed record": 1}


def test_a_row_that_is_too_large_is_an_error_or_counted_in_a_directory(tmp_path, monkeypatch):
    for module in (record_reader, sqlite):
        monkeypatch.setattr(module, "MAX_DOCUMENT_BYTES", 1000)
    path = database(
        tmp_path / "a.db", TABLES[0], rows={"notes": [(1, "x"), (2, "y" * 1001), (3, "z")]}
    )
    with pytest.raises(
        CorpusError, match=r"a.db:notes, row 2: the size of the record is above 1000 bytes"
    ):
        documents_of(path)
    corpus, documents = read_corpus(tmp_path, include=("*.db",))
    assert documents == [Document(text="x"), Document(text="z")]
    assert corpus.counts.skipped == {"too large": 1}


def test_a_damaged_database_is_an_error_or_counted_in_a_directory(tmp_path):
    path = database(
        tmp_path / "a.db", TABLES[0], rows={"notes": [(number, "x" * 999) for number in range(99)]}
    )
    data = path.read_bytes()
    path.write_bytes(data[:4096] + b"\xff" * 4096 + data[8192:])
    with pytest.raises(CorpusFormatError, match=r"a.db: SQLite database is damaged, or in use"):
        documents_of(path)
    corpus, _ = read_corpus(tmp_path, include=("*.db",))
    assert corpus.counts.skipped == {"damaged": 1}


def test_a_database_that_is_being_written_is_read_as_it_was_committed(tmp_path):
    path = database(
        tmp_path / "a.db", "PRAGMA journal_mode = WAL", TABLES[0], rows={"notes": [(1, "x")]}
    )
    with closing(sqlite3.connect(path)) as writer:
        writer.execute("INSERT INTO notes VALUES (2, 'committed')")
        writer.commit()
        writer.execute("INSERT INTO notes VALUES (3, 'not yet')")
        assert [document.text for document in documents_of(path)] == ["x", "committed"]
