"""The SQLite file of a live datastore: its tables, its opening, and its errors."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rest_store.datastore.manifest import DOCUMENTS_FILE_NAME
from rest_store.errors import DatastoreFormatError, StorageError, describe

_VERSION = 2
_PROGRAM = 0x52535430  # "RST0"
_PATIENCE_MS = 5_000  # for a lock of SQLite, and for readers of an older state
# properties: `id` is the present id of the datastore, `newest` the number of the newest change, and
#   `forgotten` the number of the newest removal that is not stored any more. While `unclean` is not
#   0, unused bytes of the file or its log may hold deleted documents. `shared_after` groups have to
#   write a text before queries tell others of it.
# openings: maps each earlier id to the number of the last change that was made under it.
SCHEMA = f"""
CREATE TABLE openings (id TEXT PRIMARY KEY, newest INTEGER NOT NULL);
CREATE TABLE properties (
    id TEXT NOT NULL, location TEXT NOT NULL, tokenizer TEXT NOT NULL,
    newest INTEGER NOT NULL, forgotten INTEGER NOT NULL, unclean INTEGER NOT NULL,
    shared_after INTEGER NOT NULL);
CREATE TABLE namespaces (
  name TEXT PRIMARY KEY, max_tokens INTEGER, max_age REAL, max_epochs INTEGER) WITHOUT ROWID;
CREATE TABLE documents (
    number INTEGER PRIMARY KEY, namespace TEXT NOT NULL, digest BLOB NOT NULL UNIQUE,
    added REAL NOT NULL, "group" TEXT NOT NULL, epoch INTEGER NOT NULL,
    symbols BLOB NOT NULL, crc INTEGER NOT NULL);
CREATE INDEX in_namespace ON documents (namespace, number);
CREATE INDEX in_group ON documents (namespace, "group") WHERE "group" != '';
CREATE INDEX in_epoch ON documents (namespace, epoch);
CREATE TABLE removals (
    number INTEGER PRIMARY KEY, first INTEGER NOT NULL, last INTEGER NOT NULL,
    deleted INTEGER NOT NULL);
CREATE TABLE segments (
    name TEXT PRIMARY KEY, namespace TEXT NOT NULL, first INTEGER NOT NULL, last INTEGER NOT NULL,
    oldest REAL NOT NULL, newest REAL NOT NULL, sha256 BLOB NOT NULL) WITHOUT ROWID;
PRAGMA application_id={_PROGRAM};
PRAGMA user_version={_VERSION}"""


@contextmanager
def transaction(database: sqlite3.Connection) -> Iterator[None]:
    """Within the block, change a database as a whole or not at all."""
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        if database.in_transaction:
            database.execute("ROLLBACK")
        raise


class Database:
    """An open SQLite file with a write-ahead log.

    A transaction that has ended survives a kill and a loss of power (`synchronous=FULL`). Each
    thread and process opens the file for itself.

    Args:
        directory: the directory of the live datastore.
        read_only: whether only another connection writes the file.
        is_replica: whether a loss of power may undo transactions, because the upstream sends their
            changes again (`synchronous=NORMAL`).

    Raises:
        DatastoreFormatError: the file has another format, or another release wrote it.
        StorageError: SQLite cannot open the file.

    Attributes:
        path: the file.
        is_new: whether the file has no tables yet.
    """

    def __init__(
        self, directory: Path, *, read_only: bool = False, is_replica: bool = False
    ) -> None:
        self.path = directory / DOCUMENTS_FILE_NAME
        with self._named_errors("opened"):
            mode = "ro" if read_only else "rwc"
            uri = f"{self.path.absolute().as_uri()}?mode={mode}"
            self._database = sqlite3.connect(
                uri, uri=True, isolation_level=None, check_same_thread=False
            )
            try:
                self._database.execute(f"PRAGMA busy_timeout={_PATIENCE_MS}")
                if not read_only:
                    self._upgrade()
                self.is_new = self._has_no_tables()
                if not read_only:
                    synchronous = "NORMAL" if is_replica else "FULL"
                    self._database.execute("PRAGMA journal_mode=WAL")
                    self._database.execute(f"PRAGMA synchronous={synchronous}")
                    self._database.execute("PRAGMA secure_delete=ON")
            except BaseException:
                self._database.close()
                raise

    def _upgrade(self) -> None:
        """Make a file of version 1 one of version 2, which has one property more."""
        if self._number("PRAGMA application_id") != _PROGRAM:
            return
        with transaction(self._database):
            if self._number("PRAGMA user_version") == 1:
                self._database.execute(
                    "ALTER TABLE properties ADD COLUMN shared_after INTEGER NOT NULL DEFAULT 1"
                )
                self._database.execute(f"PRAGMA user_version={_VERSION}")

    def _has_no_tables(self) -> bool:
        """Return whether the file is still empty.

        Raises:
            DatastoreFormatError: it is neither empty nor in this format.
        """
        version = self._number("PRAGMA user_version")
        program = self._number("PRAGMA application_id")
        if (version, program) == (_VERSION, _PROGRAM):
            return False
        is_empty = self._number("SELECT count(*) FROM sqlite_master") == 0
        if (version, program) == (0, 0) and is_empty:
            return True
        raise DatastoreFormatError(
            "live",
            describe(
                self.path,
                "format version",
                f"{version} (of {program:#x})",
                f"{_VERSION} (of {_PROGRAM:#x}); a writer makes version 1 one of version 2",
            ),
        )

    def close(self) -> None:
        """Close the file. It may be called again."""
        with self._named_errors("closed"):
            self._database.close()

    @contextmanager
    def one_state(self) -> Iterator[None]:
        """Within the block, read one state of the file, whatever others write meanwhile."""
        with self._named_errors("read"):
            self._database.execute("BEGIN")
        try:
            yield
        finally:
            with self._named_errors("read"):
                self._database.execute("COMMIT")

    def version(self) -> int:
        """Return a number that changes with each write of another connection."""
        return int(self._rows("PRAGMA data_version")[0][0])

    def _rows(self, query: str, *arguments: object) -> list[tuple[Any, ...]]:
        with self._named_errors("read"):
            return self._database.execute(query, arguments).fetchall()

    def _number(self, statement: str, *arguments: object) -> int:
        return int(self._database.execute(statement, arguments).fetchone()[0])

    @contextmanager
    def _transaction(self, operation: str) -> Iterator[None]:
        """Within the block, change the file as a whole or not at all.

        Args:
            operation: as in `_named_errors`.
        """
        with self._named_errors(operation), transaction(self._database):
            yield

    @contextmanager
    def _named_errors(self, operation: str) -> Iterator[None]:
        """Within the block, raise StorageError for errors of SQLite and for damaged text.

        Args:
            operation: a participle for the message: documents cannot be `operation`.
        """
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise StorageError(f"{self.path}: documents cannot be {operation} ({error})") from error
