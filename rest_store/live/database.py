"""The file of a live datastore's documents as SQLite has it: its
tables, its opening, and its errors.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rest_store.datastore.manifest import DOCUMENTS_FILE_NAME
from rest_store.errors import DatastoreFormatError, StorageError, describe

_FORMAT = (1, 0x52535430)  # version and program ("RST0"), as the file says them
_PATIENCE = 5_000  # milliseconds to wait for a lock of SQLite, and for readers of older states
# Changes are made under the `id` of `properties`, and those up to `newest` of an earlier opening
# under another one. `newest` is the number of the newest change, `forgotten` that of the newest
# removal that is not stored any more. While `unclean`, unused bytes of the file or its log may hold
# what was deleted.
SCHEMA = f"""
CREATE TABLE openings (id TEXT PRIMARY KEY, newest INTEGER NOT NULL);
CREATE TABLE properties (
    id TEXT NOT NULL, location TEXT NOT NULL, tokenizer TEXT NOT NULL,
    newest INTEGER NOT NULL, forgotten INTEGER NOT NULL, unclean INTEGER NOT NULL);
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
PRAGMA application_id={_FORMAT[1]};
PRAGMA user_version={_FORMAT[0]}"""


class Database:
    """An open file, which has a write-ahead log with `synchronous=FULL`.

    What a transaction has stored when it ends survives a kill and a loss of power. Other threads
    and processes open the file again.

    Args:
        directory: of the live datastore.
        read_only: whether another connection writes it.
        is_replica: whether what a loss of power undoes may be stored again (`synchronous=NORMAL`).

    Raises:
        DatastoreFormatError: the file is something else, or of another release.
        StorageError: SQLite cannot open it.
    """

    def __init__(
        self, directory: Path, *, read_only: bool = False, is_replica: bool = False
    ) -> None:
        self.path = directory / DOCUMENTS_FILE_NAME
        with self._named_errors("opened"):
            uri = f"{self.path.absolute().as_uri()}?mode={'ro' if read_only else 'rwc'}"
            self._database = sqlite3.connect(
                uri, uri=True, isolation_level=None, check_same_thread=False
            )
            try:
                self._database.execute(f"PRAGMA busy_timeout={_PATIENCE}")
                self.is_new = self._has_no_tables()
                if not read_only:
                    self._database.execute("PRAGMA journal_mode=WAL")
                    self._database.execute(
                        f"PRAGMA synchronous={'NORMAL' if is_replica else 'FULL'}"
                    )
                    self._database.execute("PRAGMA secure_delete=ON")
            except BaseException:
                self._database.close()
                raise

    def _has_no_tables(self) -> bool:
        """Return whether the file is still empty.

        Raise DatastoreFormatError unless it is that or in this format.
        """
        found = self._number("PRAGMA user_version"), self._number("PRAGMA application_id")
        if found == _FORMAT:
            return False
        if found != (0, 0) or self._number("SELECT count(*) FROM sqlite_master"):
            words = [
                f"{version} (of {application:#x})" for version, application in (found, _FORMAT)
            ]
            raise DatastoreFormatError("live", describe(self.path, "format version", *words))
        return True

    def close(self) -> None:
        """Close the file; may be called again."""
        with self._named_errors("closed"):
            self._database.close()

    @contextmanager
    def one_state(self) -> Iterator[None]:
        """Read one state of the file within the block, whatever others write meanwhile."""
        with self._named_errors("read"):
            self._database.execute("BEGIN")
        try:
            yield
        finally:
            with self._named_errors("read"):
                self._database.execute("COMMIT")

    def version(self) -> int:
        """Return a number that changes whenever another connection has written."""
        return int(self._rows("PRAGMA data_version")[0][0])

    def _rows(self, query: str, *arguments: object) -> list[tuple[Any, ...]]:
        with self._named_errors("read"):
            return self._database.execute(query, arguments).fetchall()

    def _number(self, statement: str, *arguments: object) -> int:
        return int(self._database.execute(statement, arguments).fetchone()[0])

    @contextmanager
    def _transaction(self, done: str) -> Iterator[None]:
        """Change the file within the block, as a whole or not at all.

        `done` as in `_named_errors`.
        """
        with self._named_errors(done):
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._database.execute("COMMIT")
            except BaseException:
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
                raise

    @contextmanager
    def _named_errors(self, done: str) -> Iterator[None]:
        """Raise StorageError for an error of SQLite or a damaged text
        within the block: documents cannot be `done`.
        """
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise StorageError(f"{self.path}: documents cannot be {done} ({error})") from error
