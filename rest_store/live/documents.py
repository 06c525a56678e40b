"""The documents of a live datastore, in SQLite: the truth that segments are sorted from.

A write-ahead log with `synchronous=FULL`: what a method has stored when it returns survives a kill and a loss of power.
"""

from __future__ import annotations

import json
import math
import re
import reprlib
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rest_store.datastore.manifest import DOCUMENTS_FILE_NAME
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.errors import LiveFormatError, ManifestError, StorageError, describe

FILE_NAME = DOCUMENTS_FILE_NAME
_FORMAT_VERSION = 1
_PATIENCE = 10_000  # milliseconds to wait for a lock of SQLite
_APPLICATION = 0x52535430  # "RST0"
_IDS_AT_ONCE = 500  # variables of one statement
_LOG_BYTES = 1 << 24  # of the write-ahead log that are kept once it begins anew
_SEGMENT = re.compile("segment-[0-9a-f]{32}")  # names of segments
_SCHEMA = """
CREATE TABLE properties (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE documents (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, added REAL NOT NULL, symbols BLOB NOT NULL,
    crc INTEGER NOT NULL);
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
                self._database.execute(f"PRAGMA busy_timeout={_PATIENCE}")
                self._database.execute("PRAGMA cell_size_check=ON")
                self._version = self._pragma("user_version"), self._pragma("application_id")
                self._require_version()
                if not read_only:
                    self._database.execute("PRAGMA journal_mode=WAL")
                    self._database.execute("PRAGMA synchronous=FULL")
                    self._database.execute("PRAGMA secure_delete=ON")
                    self._database.execute("PRAGMA wal_autocheckpoint=0")  # `checkpoint` does that, beside adding
                    self._database.execute(f"PRAGMA journal_size_limit={_LOG_BYTES}")
            except BaseException:
                self._database.close()
                raise

    def _require_version(self) -> None:
        if self._version == (_FORMAT_VERSION, _APPLICATION):
            return
        tables = self._database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if self._version != (0, 0) or tables:
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
        self._require("max_tokens", tokens, tokens is None or (isinstance(tokens, int) and tokens > 0))
        self._require("max_age", age, age is None or (isinstance(age, int | float) and 0 < age < math.inf))
        return tokens, None if age is None else float(age)

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
        for row in rows:
            self._require("a segment", row, _is_record(row))
        first, deletions = self._property("first"), self._property("deletions")
        for name, value in (("first", first), ("deletions", deletions)):
            self._require(name, value, isinstance(value, int) and value >= 0)
        return State(first, deletions, tuple(SegmentRecord(*row) for row in rows))

    def version(self) -> int:
        """Return a number that changes whenever another connection has written."""
        with self._named_errors("read"):
            return self._pragma("data_version")

    def last(self) -> tuple[int, float]:
        """Return the greatest number ever used, 0 if none was, and when the newest document was added."""
        with self._named_errors("read"):
            number = self._database.execute("SELECT seq FROM sqlite_sequence WHERE name = 'documents'").fetchone()
            added = self._database.execute("SELECT added FROM documents ORDER BY number DESC LIMIT 1").fetchone()
        last, newest = 0 if number is None else number[0], 0.0 if added is None else added[0]
        self._require("the last number", last, isinstance(last, int) and last >= 0)
        self._require("the last time", newest, _is_time(newest))
        return last, newest

    def read(self, first: int, last: int | None = None) -> Iterator[Document]:
        """Yield the documents `first .. last`, all from `first` on without `last`, in the order of their numbers."""
        with self._named_errors("read"):
            query = "SELECT * FROM documents WHERE number BETWEEN ? AND ? ORDER BY number"
            for number, id, added, symbols, crc in self._database.execute(
                query, (first, 2**62 if last is None else last)
            ):
                sound = _is_time(added) and isinstance(symbols, bytes) and len(symbols) and zlib.crc32(symbols) == crc
                self._require(f"document {number}", "damaged", bool(sound))
                yield Document(number, id, added, symbols)

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

    def add(
        self, documents: Sequence[Document], *, replaced: Sequence[int] = (), first: int | None = None, purged: int = 0
    ) -> int:
        """Store `documents` in one transaction.

        Args:
            documents: with numbers greater than any before.
            replaced: numbers of evicted documents whose ids are used again.
            first: if given, evict the documents with smaller numbers.
            purged: remove up to so many evicted documents from the file.

        Returns:
            How many were there to remove.
        """
        with self._transaction("written"):
            removed = self._purge(purged) if purged else 0
            self._delete_numbers(replaced)
            rows = ((*document, zlib.crc32(document.symbols)) for document in documents)
            self._database.executemany("INSERT INTO documents VALUES (?, ?, ?, ?, ?)", rows)
            if first is not None:
                self._evict(first)
        return removed

    def delete(
        self, numbers: Sequence[int], removed: Sequence[SegmentRecord], records: Sequence[SegmentRecord]
    ) -> None:
        """Delete documents, and replace the records of segments that held them, in one transaction."""
        with self._transaction("written"):
            self._delete_numbers(numbers)
            self._replace(removed, records)
            self._database.execute("UPDATE properties SET value = value + 1 WHERE name = 'deletions'")

    def evict(self, first: int) -> None:
        """Evict the documents with smaller numbers than `first`, and the records of their segments."""
        with self._transaction("written"):
            self._evict(first)

    def replace(self, removed: Sequence[SegmentRecord], records: Sequence[SegmentRecord]) -> None:
        """Replace the records `removed` of segments by `records`."""
        with self._transaction("written"):
            self._replace(removed, records)

    def purge(self, most: int) -> int:
        """Remove up to `most` evicted documents from the file; return how many were there."""
        with self._transaction("written"):
            return self._purge(most)

    def rewrite(self) -> None:
        """Write the whole file anew: rows that SQLite has moved leave copies of themselves in unused bytes of pages."""
        with self._named_errors("rewritten; what was deleted may still be in unused bytes"):
            self._database.execute("VACUUM")

    def checkpoint(self) -> None:
        """Write the log into the file; it begins anew if nothing was added meanwhile."""
        with self._named_errors("written"):
            self._database.execute("PRAGMA wal_checkpoint(PASSIVE)")

    def clear_log(self, patience: float) -> bool:
        """Write the log into the file and empty it, so that nothing deleted is left in it.

        Args:
            patience: seconds to wait for readers of older states.

        Returns:
            False if there still were some.
        """
        with self._named_errors("written"):
            self._database.execute(f"PRAGMA busy_timeout={round(1000 * patience)}")
            try:
                return not self._database.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
            finally:
                self._database.execute(f"PRAGMA busy_timeout={_PATIENCE}")

    def _delete_numbers(self, numbers: Sequence[int]) -> None:
        self._database.executemany("DELETE FROM documents WHERE number = ?", [(number,) for number in numbers])

    def _replace(self, removed: Sequence[SegmentRecord], records: Sequence[SegmentRecord]) -> None:
        self._database.executemany("DELETE FROM segments WHERE name = ?", [(record.name,) for record in removed])
        self._database.executemany("INSERT INTO segments VALUES (?, ?, ?, ?, ?, ?, ?)", records)

    def _purge(self, most: int) -> int:
        query = "DELETE FROM documents WHERE number IN (SELECT number FROM documents WHERE number < ? LIMIT ?)"
        return self._database.execute(query, (self._property("first"), most)).rowcount

    def _evict(self, first: int) -> None:
        self._database.execute("DELETE FROM segments WHERE last < ?", (first,))
        self._database.execute("UPDATE properties SET value = ? WHERE name = 'first'", (first,))

    def _property(self, name: str) -> Any:
        with self._named_errors("read"):
            row = self._database.execute("SELECT value FROM properties WHERE name = ?", (name,)).fetchone()
        if row is None:
            raise StorageError(describe(self.path, f"the property {name!r}", "absent", "one of a live datastore"))
        return row[0]

    def _require(self, what: str, found: object, holds: bool) -> None:
        """Raise StorageError unless `holds`: the file is damaged."""
        if not holds:
            raise StorageError(describe(self.path, what, reprlib.repr(found), "as it was written"))

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


def _is_time(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value)


def _is_record(row: Sequence[object]) -> bool:
    """Return whether `row` may be a SegmentRecord."""
    name, first, last, oldest, newest, *digests = row
    numbers = isinstance(first, int) and isinstance(last, int) and first <= last
    checksums = all(isinstance(digest, bytes) and len(digest) == 32 for digest in digests)
    named = isinstance(name, str) and _SEGMENT.fullmatch(name) is not None
    return named and numbers and _is_time(oldest) and _is_time(newest) and checksums
