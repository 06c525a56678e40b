"""SQLite databases: a document a row of each table that has a known column, or the chosen one."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from build_index.documents import MAX_DOCUMENT_BYTES, Document
from build_index.readers.record_reader import CONVERSATION_FIELDS, TEXT_FIELDS, RecordReader
from build_index.readers.table_rows import record_documents
from rest_store.errors import CorpusFormatError, describe, first_line

SQLITE_MAGIC = b"SQLite format 3\0"
NO_TABLE = "table without a known column"
_NAMES = (*CONVERSATION_FIELDS, *TEXT_FIELDS)


def read_sqlite(path: str, where: str, records: RecordReader) -> Iterator[Document]:
    """Yield the documents of the tables in a database, by the names of tables.

    The `origin` of a document names table and row. Nothing is written, and nothing that the
    database defines (views, virtual tables, triggers) is run.

    Args:
        path: path of the file, on this machine.
        where: its name in messages.
        records: extracts the document of each row.

    Raises:
        CorpusFormatError: it is damaged, or no table has a known column.
        CorpusError: see `RecordReader.too_large`.
    """
    with _opened(path, where) as connection:
        tables = [name for (name,) in connection.execute(_TABLES)]
        columns_by_table = {}
        for table in tables:
            columns = _columns(connection, table, records.field)
            if columns:
                columns_by_table[table] = columns
        if not columns_by_table:
            names = ", ".join(f"'{name}'" for name in tables) or "none"
            if records.field is None:
                known = ", ".join(f"'{name}'" for name in _NAMES)
                expected = f"one of {known}; --field names another"
            else:
                expected = f"'{records.field}' in one"
            problem = f"without a known one ({names})"
            raise CorpusFormatError(describe(where, "the columns of all tables", problem, expected))
        for table, columns in columns_by_table.items():
            yield from _table_documents(connection, table, columns, where, records)


_TABLES = (
    "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    " AND sql NOT LIKE 'CREATE VIRTUAL%' ORDER BY name"
)


@contextmanager
def _opened(path: str, where: str) -> Iterator[sqlite3.Connection]:
    try:
        with closing(
            sqlite3.connect(f"{Path(path).absolute().as_uri()}?mode=ro", uri=True)
        ) as connection:
            connection.text_factory = _text
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.execute("PRAGMA cell_size_check = ON")
            yield connection
    except sqlite3.Error as error:
        problem = f"damaged, or in use ({first_line(error)})"
        raise CorpusFormatError(describe(where, "SQLite database", problem, "intact")) from error


def _columns(connection: sqlite3.Connection, table: str, field: str | None) -> list[str]:
    """Return the columns of a table that may hold documents."""
    names = [name for _, name, *_ in connection.execute(f"PRAGMA table_info({_quoted(table)})")]
    if field is None:
        return [name for name in _NAMES if name in names]
    return [name for name in (field, field.partition(".")[0]) if name in names][:1]


def _table_documents(
    connection: sqlite3.Connection,
    table: str,
    columns: list[str],
    where: str,
    records: RecordReader,
) -> Iterator[Document]:
    """Yield the documents of a table; rows that are too large are not read."""
    names = [_quoted(name) for name in columns]
    size = " + ".join(f"coalesce(length({name}), 0)" for name in names)
    values = ", ".join(
        f"CASE WHEN {size} <= {MAX_DOCUMENT_BYTES} THEN {name} END" for name in names
    )
    table_rows = connection.execute(f"SELECT {size}, {values} FROM {_quoted(table)}")
    for number, (length, *row) in enumerate(table_rows, 1):
        origin = f"{where}:{table}, row {number}"
        if length > MAX_DOCUMENT_BYTES:
            records.too_large(origin)
        else:
            texts = (_text(value) if isinstance(value, bytes) else value for value in row)
            yield from record_documents(records, dict(zip(columns, texts, strict=True)), origin)


def _text(data: bytes) -> str | bytes:
    """Return a text, or bytes if it is not UTF-8, which SQLite does not check."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
