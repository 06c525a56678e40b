"""The documents of a live datastore, in SQLite: the truth that segments are sorted from."""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.errors import ManifestError, StorageError, describe
from rest_store.live.database import Database
from rest_store.live.schema import DIGEST, digest_of

_IDS_AT_ONCE = 500  # variables of one statement
_ROWS_AT_ONCE = 100  # likewise
_SEGMENT = re.compile("segment-[0-9a-f]{32}")  # names of segments
_LEAST_DIGEST = (1 << 64).to_bytes(DIGEST, "big")  # below it are those of what was deleted
_LEAST_LOCAL = 489  # bytes that SQLite keeps at least in a page of rows, of a row that is larger than that
_MOVED = 4 << 12  # bytes: more than three pages hold


class Document(NamedTuple):
    """One document.

    Attributes:
        number: ascending in the order of addition; never used again.
        added: seconds since 1970.
        symbols: its tokens as a tokens file has them, without a separator.
    """

    number: int
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


class Documents(Database):
    """The documents in an open file, the segments that hold them, and the limits; arguments and errors of `Database`.

    A document that is evicted is still stored, until it is purged. The row of one that is deleted stays, empty.
    """

    def create(self, tokenizer: TokenizerIdentity) -> None:
        """Make the tables of a new file, for the tokens of `tokenizer`."""
        properties = {"tokenizer": json.dumps(tokenizer.to_manifest()), "first": 0, "deletions": 0}
        self._create({**properties, "max_tokens": None, "max_age": None, "moved": 0})

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
                    self._set_property(name, value)

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
            query = "SELECT number, added, symbols, crc FROM documents WHERE number BETWEEN ? AND ? ORDER BY number"
            for number, added, symbols, crc in self._database.execute(query, (first, 2**62 if last is None else last)):
                if symbols == b"" and crc == 0:
                    continue  # deleted
                sound = _is_time(added) and isinstance(symbols, bytes) and len(symbols) and zlib.crc32(symbols) == crc
                self._require(f"document {number}", "damaged", bool(sound))
                yield Document(number, added, symbols)

    def numbers(self, ids: Sequence[str]) -> dict[str, int]:
        """Return the numbers of those of `ids` that are stored, evicted ones included."""
        numbers: dict[str, int] = {}
        with self._named_errors("read"):
            for start in range(0, len(ids), _IDS_AT_ONCE):
                some = {digest_of(id): id for id in ids[start : start + _IDS_AT_ONCE]}
                query = f"SELECT digest, number FROM documents WHERE digest IN ({','.join('?' * len(some))})"
                rows = self._database.execute(query, list(some))
                numbers |= {some[digest]: number for digest, number in rows}
        return numbers

    def add(
        self,
        documents: Sequence[Document],
        ids: Sequence[str],
        *,
        replaced: Sequence[int] = (),
        first: int | None = None,
        purged: int = 0,
    ) -> int:
        """Store `documents` in one transaction.

        Args:
            documents: with numbers greater than any before.
            ids: of each.
            replaced: numbers of evicted documents whose ids are used again.
            first: if given, evict the documents with smaller numbers.
            purged: remove up to so many evicted documents from the file.

        Returns:
            How many were there to remove.
        """
        rows = [
            (number, digest_of(id), added, symbols, zlib.crc32(symbols))
            for (number, added, symbols), id in zip(documents, ids, strict=True)
        ]
        if len(rows) <= _ROWS_AT_ONCE and not replaced and first is None and not purged:
            with self._named_errors("written"):
                self._insert(rows)  # a transaction of its own
            return 0
        with self._transaction("written"):
            removed = self._purge(purged) if purged else 0
            self._database.executemany("DELETE FROM documents WHERE number = ?", [(number,) for number in replaced])
            for start in range(0, len(rows), _ROWS_AT_ONCE):
                self._insert(rows[start : start + _ROWS_AT_ONCE])
            if first is not None:
                self._evict(first)
        return removed

    def delete(
        self, numbers: Sequence[int], removed: Sequence[SegmentRecord], records: Sequence[SegmentRecord]
    ) -> None:
        """Delete documents, and replace the records of segments that held them, in one transaction.

        Their rows stay, empty, until they are purged or the file is rewritten: to remove rows would have SQLite move
        others, which leaves copies of them in unused bytes. The bytes that a row gives up are overwritten. Rows that
        may have been moved before have left copies: then the file is marked as one that `is_to_be_rewritten`.
        """
        with self._transaction("written"):
            if numbers and min(numbers) <= self._last_moved():
                self._set_to_be_rewritten(True)
            rows = [(number.to_bytes(DIGEST, "big"), number) for number in numbers]
            self._database.executemany("UPDATE documents SET digest = ?, symbols = x'', crc = 0 WHERE number = ?", rows)
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

    @property
    def is_to_be_rewritten(self) -> bool:
        """Whether unused bytes may hold what was deleted, or much room is unused."""
        return bool(self._property("moved"))

    def rewrite(self) -> None:
        """Write the whole file anew, with nothing in unused bytes."""
        with self._named_errors("rewritten; what was deleted may still be in unused bytes"):
            self._database.execute("VACUUM")
            self._set_to_be_rewritten(False)

    def deleted_rows(self) -> int:
        """Return how many rows of deleted documents are in the file; they keep their room."""
        with self._named_errors("read"):
            query = "SELECT count(*) FROM documents WHERE digest < ?"
            return int(self._database.execute(query, (_LEAST_DIGEST,)).fetchone()[0])

    def remove_deleted(self) -> None:
        """Remove the rows of what was deleted; then the file is to be rewritten, if there were any."""
        with self._transaction("written"):
            if self._database.execute("DELETE FROM documents WHERE digest < ?", (_LEAST_DIGEST,)).rowcount:
                self._set_to_be_rewritten(True)

    def _insert(self, rows: Sequence[tuple[object, ...]]) -> None:
        """Store rows in one statement: each passes the GIL on several times, and has to wait for it again."""
        statement = f"INSERT INTO documents VALUES {','.join(['(?, ?, ?, ?, ?)'] * len(rows))}"
        self._database.execute(statement, [value for row in rows for value in row])

    def _replace(self, removed: Sequence[SegmentRecord], records: Sequence[SegmentRecord]) -> None:
        self._database.executemany("DELETE FROM segments WHERE name = ?", [(record.name,) for record in removed])
        self._database.executemany("INSERT INTO segments VALUES (?, ?, ?, ?, ?, ?, ?)", records)

    def _last_moved(self) -> int:
        """Return the last document that may have been moved between pages, which leaves copies in unused bytes.

        Additions move none. When a row is removed, up to three pages of rows are, its own among them: those that follow
        what was evicted.
        """
        first, size = self._property("first"), 0
        if first == 0:
            return 0
        with self._named_errors("read"):
            query = "SELECT number, length(symbols) FROM documents WHERE number >= ? ORDER BY number"
            for number, length in self._database.execute(query, (first,)):
                size += min(DIGEST + length, _LEAST_LOCAL)
                if size > _MOVED:
                    return int(number)
        return 2**62

    def _set_to_be_rewritten(self, value: bool) -> None:
        self._set_property("moved", int(value))

    def _purge(self, most: int) -> int:
        query = "DELETE FROM documents WHERE number IN (SELECT number FROM documents WHERE number < ? LIMIT ?)"
        return self._database.execute(query, (self._property("first"), most)).rowcount

    def _evict(self, first: int) -> None:
        self._database.execute("DELETE FROM segments WHERE last < ?", (first,))
        self._set_property("first", first)


def _is_time(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value)


def _is_record(row: Sequence[object]) -> bool:
    """Return whether `row` may be a SegmentRecord."""
    name, first, last, oldest, newest, *digests = row
    numbers = isinstance(first, int) and isinstance(last, int) and first <= last
    checksums = all(isinstance(digest, bytes) and len(digest) == 32 for digest in digests)
    named = isinstance(name, str) and _SEGMENT.fullmatch(name) is not None
    return named and numbers and _is_time(oldest) and _is_time(newest) and checksums
