"""The SQLite file of a live datastore: its format, its write-ahead log, transactions, and errors by name."""

from __future__ import annotations

import os
import reprlib
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rest_store.datastore.manifest import DOCUMENTS_FILE_NAME
from rest_store.errors import LiveFormatError, StorageError, describe
from rest_store.live.schema import FORMAT, FORMAT_WITH_IDS, create, upgrade

FILE_NAME = DOCUMENTS_FILE_NAME
_PATIENCE = 10_000  # milliseconds to wait for a lock of SQLite
_LOG_BYTES = 1 << 24  # of the write-ahead log that are kept once it begins anew


class Database:
    """An open SQLite file. One thread at a time; other threads and processes open it again.

    It has a write-ahead log with `synchronous=FULL`: what a method has stored when it returns survives a kill and a
    loss of power. A file of the format before is read as it is, and changed to this one when it is opened for writing.

    Args:
        directory: of the live datastore.
        read_only: whether another process writes it.

    Raises:
        LiveFormatError: the file is something else, or of another release.
        StorageError: here and in all methods, if SQLite cannot read or write.
    """

    def __init__(self, directory: Path, *, read_only: bool = False) -> None:
        self.path = directory / FILE_NAME
        if read_only:
            self._require_log(directory)
        with self._named_errors("opened"):
            uri = f"{self.path.absolute().as_uri()}?mode={'ro' if read_only else 'rwc'}"
            self._database = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
            try:
                self._database.execute(f"PRAGMA busy_timeout={_PATIENCE}")
                self._database.execute("PRAGMA cell_size_check=ON")
                self._format = self._pragma("user_version"), self._pragma("application_id")
                self._require_format()
                if not read_only:
                    self._database.execute("PRAGMA journal_mode=WAL")
                    self._database.execute("PRAGMA synchronous=FULL")
                    self._database.execute("PRAGMA secure_delete=ON")
                    self._database.execute("PRAGMA wal_autocheckpoint=0")  # `checkpoint` does that, beside adding
                    self._database.execute(f"PRAGMA journal_size_limit={_LOG_BYTES}")
                    if self._format == FORMAT_WITH_IDS:
                        with self._transaction("written"):
                            upgrade(self._database)
            except BaseException:
                self._database.close()
                raise

    def _require_log(self, directory: Path) -> None:
        """Raise StorageError where there is no log, which the last to close the file removes, and none can be made."""
        if not os.access(directory, os.W_OK) and not self.path.with_name(f"{FILE_NAME}-shm").exists():
            expected = "a directory that may be written, or a process that writes it"
            raise StorageError(describe(self.path, "the log for readers", "absent, and cannot be made", expected))

    def _require_format(self) -> None:
        if self._format in (FORMAT, FORMAT_WITH_IDS):
            return
        tables = self._database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if self._format != (0, 0) or tables:
            found, expected = (f"{version} (of {application:#x})" for version, application in (self._format, FORMAT))
            raise LiveFormatError(describe(self.path, "format version", found, expected))

    @property
    def is_new(self) -> bool:
        """Whether the file has not been given its tables yet."""
        return self._format == (0, 0)

    def close(self) -> None:
        """Close the file; may be called again."""
        with self._named_errors("closed"):
            self._database.close()

    def version(self) -> int:
        """Return a number that changes whenever another connection has written."""
        with self._named_errors("read"):
            return self._pragma("data_version")

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

    def checkpoint(self) -> None:
        """Write the log into the file; it begins anew if nothing was added meanwhile."""
        with self._named_errors("written"):
            self._database.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def clear_log(self) -> bool:
        """Write the log into the file and empty it, so that nothing deleted is left; return False if readers keep it.

        Waits for none of them.
        """
        with self._named_errors("written"):
            self._database.execute("PRAGMA busy_timeout=0")
            try:
                return not self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
            finally:
                self._database.execute(f"PRAGMA busy_timeout={_PATIENCE}")

    def _create(self, properties: Mapping[str, object]) -> None:
        """Make the tables of a new file, with these properties."""
        with self._transaction("created"):
            create(self._database)
            self._database.executemany("INSERT INTO properties VALUES (?, ?)", list(properties.items()))
        self._format = FORMAT

    def _property(self, name: str) -> Any:
        with self._named_errors("read"):
            row = self._database.execute("SELECT value FROM properties WHERE name = ?", (name,)).fetchone()
        if row is None:
            raise StorageError(describe(self.path, f"the property {name!r}", "absent", "one of a live datastore"))
        return row[0]

    def _set_property(self, name: str, value: object) -> None:
        self._database.execute("UPDATE properties SET value = ? WHERE name = ?", (value, name))

    def _require(self, what: str, found: object, holds: bool) -> None:
        """Raise StorageError unless `holds`: the file is damaged."""
        if not holds:
            raise StorageError(describe(self.path, what, reprlib.repr(found), "as it was written"))

    def _pragma(self, name: str) -> int:
        return int(self._database.execute(f"PRAGMA {name}").fetchone()[0])

    @contextmanager
    def _transaction(self, done: str) -> Iterator[None]:
        """Change the file within the block, as a whole or not at all; `done` as in `_named_errors`."""
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
        """Raise StorageError for an error of SQLite within the block: documents cannot be `done`."""
        try:
            yield
        except sqlite3.Error as error:
            raise StorageError(f"{self.path}: documents cannot be {done} ({error})") from error
