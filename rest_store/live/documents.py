"""The documents of a live datastore, in SQLite: the truth that segments are sorted from.

A write-ahead log with `synchronous=FULL`: what a method has stored when it returns survives a kill and a loss of power.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rest_store.datastore.manifest import DOCUMENTS_FILE_NAME
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.errors import LiveFormatError, ManifestError, StorageError, describe

FILE_NAME = DOCUMENTS_FILE_NAME
_FORMAT_VERSION = 1
_APPLICATION = 0x52535430  # "RST0"
_IDS_AT_ONCE = 500  # variables of one statement
_SCHEMA = """
CREATE TABLE properties (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE documents (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, added REAL NOT NULL, symbols BLOB NOT NULL);
CREATE TABLE segments (
    name TEXT PRIMARY KEY, first INTEGER NOT NULL, last INTEGER NOT NULL, oldest REAL NOT NULL, newest REAL NOT NULL,
    tokens_sha256 BLOB NOT NULL, suffixes_sha256 BLOB NOT NULL) WITHOUT ROWID;
"""


class Document(NamedTuple):
    """One document.

    Attributes:
        number: ascending in the order of addition; never used again.
        id: the caller's.
        added: seconds since 1970.
        symbols: its tokens as a tokens file has them, without a separator.
    """

    number: int
    id: str
    added: float
    symbols: bytes


class SegmentRecord(NamedTuple):
    """A segment in files: those of the documents `first .. last` that are there.

    Attributes:
        name: of its files.
        oldest: when the first of them was added, in seconds since 1970; `newest`: the last.
    """

    name: str
    first: int
    last: int
    oldest: float
    newest: float
    tokens_sha256: bytes
    suffixes_sha256: bytes


class State(NamedTuple):
    """What changes besides documents that are added.

    Attributes:
        first: documents with smaller numbers were evicted, even if they are still stored.
        deletions: how often documents were deleted.
        records: the segments in files, oldest first.
    """

    first: int
    deletions: int
    records: tuple[SegmentRecord, ...]


class Documents:
    """An open file of documents. One thread at a time; a writer's other threads open it again.

    Args:
        directory: of the live datastore.
        read_only: whether another process writes it.

    Raises:
        LiveFormatError: the file is something else, or of another release.
        StorageError: here and in all methods, if SQLite cannot read or write.
    """

    def __init__(self, directory: Path, *, read_only: bool = False) -> None:
        self.path = directory / FILE_NAME
        with self._named_errors("opened"):
            uri = f"{self.path.absolute().as_uri()}?mode={'ro' if read_only else 'rwc'}"
            self._database = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)
            try:
                self._database.execute("PRAGMA busy_timeout=10000")
                if not read_only:
                    self._database.execute("PRAGMA journal_mode=WAL")
                    self._database.execute("PRAGMA synchronous=FULL")
                    self._database.execute("PRAGMA secure_delete=ON")
                    self._database.execute("PRAGMA wal_autocheckpoint=0")  # `checkpoint` does that, beside adding
                self._version = self._pragma("user_version"), self._pragma("application_id")
            except BaseException:
                self._database.close()
                raise
        if self._version not in ((0, 0), (_FORMAT_VERSION, _APPLICATION)):
            self._database.close()
            found, expected = (
                f"{self._version[0]} (of {self._version[1]:#x})",
                f"{_FORMAT_VERSION} (of {_APPLICATION:#x})",
            )
            raise LiveFormatError(describe(self.path, "format version", found, expected))

    @property
    def is_new(self) -> bool:
        """Whether the file has not been given its tables yet."""
        return self._version == (0, 0)

    def create(self, tokenizer: TokenizerIdentity) -> None:
        """Make the tables of a new file, for the tokens of `tokenizer`."""
        with self._transaction("created"):
            for statement in _SCHEMA.split(";"):
                self._database.execute(statement)
            properties = {"tokenizer": json.dumps(tokenizer.to_manifest()), "first": 0, "deletions": 0}
            properties |= {"max_tokens": None, "max_age": None}
            self._database.executemany("INSERT INTO properties VALUES (?, ?)", list(properties.items()))
            self._database.execute(f"PRAGMA application_id={_APPLICATION}")
            self._database.execute(f"PRAGMA user_version={_FORMAT_VERSION}")
        self._version = (_FORMAT_VERSION, _APPLICATION)

    def close(self) -> None:
        """Close the file; may be called again."""
        with self._named_errors("closed"):
            self._database.close()

    def tokenizer(self) -> TokenizerIdentity:
        """Return the identity of the tokenizer that the tokens are from."""
        try:
            fields = json.loads(str(self._property("tokenizer")))
            return TokenizerIdentity.from_manifest(fields, self.path)
        except (ValueError, ManifestError) as error:
            raise StorageError(describe(self.path, "tokenizer", f"unreadable ({error})", "its identity")) from None

    def limits(self) -> tuple[int | None, float | None]:
        """Return the most tokens, and the most seconds, that documents are kept; None: no limit."""
        tokens, age = self._property("max_tokens"), self._property("max_age")
        return None if tokens is None else int(tokens), None if age is None else float(age)

    def set_limits(self, max_tokens: int | None, max_age: float | None) -> None:
        """Store these limits from now on; None: as before."""
        with self._transaction("written"):
            for name, value in (("max_tokens", max_tokens), ("max_age", max_age)):
                if value is not None:
                    self._database.execute("UPDATE properties SET value = ? WHERE name = ?", (value, name))

    def state(self) -> State:
        """Return the present state."""
        with self._named_errors("read"):
            rows = self._database.execute("SELECT * FROM segments ORDER BY first").fetchall()
        records = tuple(SegmentRecord(*row) for row in rows)
        return State(int(self._property("first")), int(self._property("deletions")), records)

    def version(self) -> int:
        """Return a number that changes whenever another connection has written."""
        with self._named_errors("read"):
            return self._pragma("data_version")

    def last(self) -> tuple[int, float]:
        """Return the greatest number ever used, 0 if none was, and when the newest document was added."""
        with self._named_errors("read"):
            number = self._database.execute("SELECT seq FROM sqlite_sequence WHERE name = 'documents'").fetchone()
            added = self._database.execute("SELECT added FROM documents ORDER BY number DESC LIMIT 1").fetchone()
        return (0 if number is None else int(number[0])), (0.0 if added is None else float(added[0]))

    def read(self, first: int, last: int | None = None) -> Iterator[Document]:
        """Yield the documents `first .. last`, all from `first` on without `last`, in the order of their numbers."""
        with self._named_errors("read"):
            query = "SELECT number, id, added, symbols FROM documents WHERE number BETWEEN ? AND ? ORDER BY number"
            for row in self._database.execute(query, (first, 2**62 if last is None else last)):
                yield Document(*row)

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

    def numbers(self, ids: Sequence[str]) -> dict[str, int]:
        """Return the numbers of those of `ids` that are stored, evicted ones included."""
        found: dict[str, int] = {}
        with self._named_errors("read"):
            for start in range(0, len(ids), _IDS_AT_ONCE):
                some = ids[start : start + _IDS_AT_ONCE]
                marks = ",".join("?" * len(some))
                found |= self._database.execute(f"SELECT id, number FROM documents WHERE id IN ({marks})", some)
        return found

    def add(self, documents: Sequence[Document], *, replaced: Sequence[int] = (), first: int | None = None) -> None:
        """Store `documents` in one transaction.

        Args:
            documents: with numbers greater than any before.
            replaced: numbers of evicted documents whose ids are used again.
            first: if given, evict the documents with smaller numbers.
        """
        with self._transaction("written"):
            self._delete_numbers(replaced)
            self._database.executemany("INSERT INTO documents VALUES (?, ?, ?, ?)", documents)
            if first is not None:
                self._evict(first)

    def delete(self, numbers: Sequence[int], removed: Sequence[str], records: Sequence[SegmentRecord]) -> None:
        """Delete documents, and replace the records of segments that held them, in one transaction."""
        with self._transaction("written"):
            self._delete_numbers(numbers)
            self._replace(removed, records)
            self._database.execute("UPDATE properties SET value = value + 1 WHERE name = 'deletions'")

    def evict(self, first: int) -> None:
        """Evict the documents with smaller numbers than `first`, and the records of their segments."""
        with self._transaction("written"):
            self._evict(first)

    def replace(self, removed: Sequence[str], records: Sequence[SegmentRecord]) -> None:
        """Replace the records of the segments named `removed` by `records`."""
        with self._transaction("written"):
            self._replace(removed, records)

    def purge(self, most: int) -> int:
        """Remove up to `most` evicted documents from the file; return how many were there."""
        with self._transaction("written"):
            query = "DELETE FROM documents WHERE number IN (SELECT number FROM documents WHERE number < ? LIMIT ?)"
            return self._database.execute(query, (int(self._property("first")), most)).rowcount

    def checkpoint(self, *, wait: bool = False) -> None:
        """Write the log into the file.

        Args:
            wait: also wait for readers of older states, so that nothing deleted is left in the log.
        """
        with self._named_errors("written"):
            self._database.execute(f"PRAGMA wal_checkpoint({'TRUNCATE' if wait else 'PASSIVE'})")

    def _delete_numbers(self, numbers: Sequence[int]) -> None:
        self._database.executemany("DELETE FROM documents WHERE number = ?", [(number,) for number in numbers])

    def _replace(self, removed: Sequence[str], records: Sequence[SegmentRecord]) -> None:
        self._database.executemany("DELETE FROM segments WHERE name = ?", [(name,) for name in removed])
        self._database.executemany("INSERT INTO segments VALUES (?, ?, ?, ?, ?, ?, ?)", records)

    def _evict(self, first: int) -> None:
        self._database.execute("DELETE FROM segments WHERE last < ?", (first,))
        self._database.execute("UPDATE properties SET value = ? WHERE name = 'first'", (first,))

    def _property(self, name: str) -> Any:
        with self._named_errors("read"):
            row = self._database.execute("SELECT value FROM properties WHERE name = ?", (name,)).fetchone()
        if row is None:
            raise StorageError(describe(self.path, f"the property {name!r}", "absent", "one of a live datastore"))
        return row[0]

    def _pragma(self, name: str) -> int:
        return int(self._database.execute(f"PRAGMA {name}").fetchone()[0])

    @contextmanager
    def _transaction(self, done: str) -> Iterator[None]:
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
        try:
            yield
        except sqlite3.Error as error:
            raise StorageError(f"{self.path}: documents cannot be {done} ({error})") from error
