"""The documents of a live datastore, in SQLite.

Everything else is derived from them: segments are sorted from the documents, and can be sorted
again. Until a document is in a segment, the file is its log.
"""

from __future__ import annotations

import heapq
import json
import operator
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from uuid import uuid4

from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.errors import ArgumentError, DatastoreFormatError, StorageError, describe
from rest_store.live.database import SCHEMA, Database
from rest_store.live.records import (
    Changes,
    DocumentRecord,
    Removal,
    SegmentRecord,
    is_segment_record,
    is_time,
)
from rest_store.live.retention import Retention, RetentionTable
from rest_store.live.sharing import MAX_SHARED_AFTER

_MAX_REMOVALS = 1 << 16  # rows of the table
_MAX_OPENINGS = 1 << 10  # rows of the table
_CHANGE_BYTES = 64  # an estimate for a change without its tokens
_MAX_NUMBER = 2**62


class Documents(Database):
    """An open file of documents, segment records and retention. Not thread-safe.

    Raises:
        StorageError: all methods raise it if SQLite cannot read or write, or if a row is damaged.
    """

    _has_changed = False  # by this opening

    def create(self, tokenizer: TokenizerIdentity, location: str = "") -> None:
        """Create the tables of a new file.

        Args:
            tokenizer: identity of the tokenizer of all tokens.
            location: the location of a replica's upstream; "": it is no replica.
        """
        with self._transaction("created"):
            for statement in SCHEMA.split(";"):
                self._database.execute(statement)
            properties = (uuid4().hex, location, json.dumps(tokenizer.to_manifest()), 0, 0, 0, 1)
            self._database.execute(
                "INSERT INTO properties VALUES (?, ?, ?, ?, ?, ?, ?)", properties
            )
        self.is_new = False

    # --- Reading properties -----------------------------------------------------------------------

    def tokenizer(self) -> TokenizerIdentity:
        """Return the identity of the tokenizer of all tokens."""
        (text,) = self._properties("tokenizer")
        try:
            return TokenizerIdentity.from_manifest(json.loads(str(text)), self.path)
        except (ValueError, DatastoreFormatError) as error:
            raise StorageError(
                describe(self.path, "tokenizer", f"unreadable ({error})", "its identity")
            ) from None

    def retention(self) -> RetentionTable:
        """Return how much each namespace keeps."""
        rows = self._rows("SELECT name, max_tokens, max_age, max_epochs FROM namespaces")
        try:
            return RetentionTable({name: Retention.parse(*bounds) for name, *bounds in rows})
        except ArgumentError as error:
            raise StorageError(f"{self.path}: the retention is damaged ({error})") from None

    def shared_after(self) -> int:
        """Return how many groups have to write a text before queries tell others of it."""
        (value,) = self._properties("shared_after")
        self._require("shared_after", isinstance(value, int) and 1 <= value <= MAX_SHARED_AFTER)
        return int(value)

    def datastore_id(self) -> str:
        """Return the id of the datastore. A replica has the id of its upstream.

        It changes with the first change of each opening.
        """
        return str(self._properties("id")[0])

    def require_location(self, location: str) -> None:
        """Raise DatastoreFormatError unless this is a replica of the upstream at `location`.

        Args:
            location: "": it must be no replica.
        """
        (stored,) = self._properties("location")
        if stored != location:
            raise DatastoreFormatError(
                "live",
                describe(
                    self.path.parent, "live datastore", _replica_of(stored), _replica_of(location)
                ),
            )

    def newest(self) -> int:
        """Return the number of the newest change; 0 if there is none."""
        (number,) = self._properties("newest")
        self._require("newest", isinstance(number, int))
        return int(number)

    def namespaces(self) -> list[str]:
        """Return the namespaces that have documents or a retention of their own."""
        return [str(name) for (name,) in self._rows("SELECT name FROM namespaces")]

    def segment_records(self) -> list[SegmentRecord]:
        """Return the records of the segments in files, oldest first."""
        records = []
        for row in self._rows("SELECT * FROM segments ORDER BY first"):
            self._require("a segment", is_segment_record(row))
            records.append(SegmentRecord(*row))
        return records

    # --- Reading documents ------------------------------------------------------------------------

    def read(
        self, first: int = 1, last: int = _MAX_NUMBER, *, namespace: str = ""
    ) -> Iterator[DocumentRecord]:
        """Yield the documents `first .. last` of a namespace, by number."""
        return self._read("namespace = ? AND number BETWEEN ? AND ?", namespace, first, last)

    def _read(self, condition: str, *arguments: object) -> Iterator[DocumentRecord]:
        query = f"SELECT * FROM documents WHERE {condition} ORDER BY number"
        with self._named_errors("read"):
            for *fields, checksum in self._database.execute(query, arguments):
                document = DocumentRecord(*fields)
                self._require(f"document {document.number}", _is_sound(document, checksum))
                yield document

    def latest_numbers(self, count: int | None, *, namespace: str, group: str) -> list[int]:
        """Return the numbers of the newest documents of a namespace, ascending.

        Args:
            count: how many; None: all.
            namespace: their namespace.
            group: only documents of this group; "": of any group, or none.
        """
        condition = "namespace = ?"
        arguments: list[object] = [namespace]
        if group:
            # SQLite uses the partial index on groups only for queries with its condition.
            condition += ' AND "group" = ? AND "group" != \'\''
            arguments.append(group)
        arguments.append(-1 if count is None else count)
        query = f"SELECT number FROM documents WHERE {condition} ORDER BY number DESC LIMIT ?"
        numbers = [int(number) for (number,) in self._rows(query, *arguments)]
        numbers.reverse()
        return numbers

    def extent(self, namespace: str, after: int) -> tuple[int, int | None]:
        """Return the count and the greatest number of a namespace's documents after `after`.

        The greatest number is None if there are none.
        """
        query = "SELECT count(*), max(number) FROM documents WHERE namespace = ? AND number > ?"
        [(count, last)] = self._rows(query, namespace, after)
        return count, last

    def groups(self, first: int, last: int, *, namespace: str) -> list[str]:
        """Return the group of each document `first .. last` of a namespace, by number."""
        query = (
            'SELECT "group" FROM documents WHERE namespace = ? AND number BETWEEN ? AND ?'
            " ORDER BY number"
        )
        return [str(group) for (group,) in self._rows(query, namespace, first, last)]

    def numbers(self, first: int, last: int, *, namespace: str) -> list[int]:
        """Return the numbers of the documents `first .. last` of a namespace, ascending."""
        query = (
            "SELECT number FROM documents WHERE namespace = ? AND number BETWEEN ? AND ?"
            " ORDER BY number"
        )
        return [int(number) for (number,) in self._rows(query, namespace, first, last)]

    def numbers_between(self, first: int, last: int) -> list[tuple[str, int]]:
        """Return namespace and number of each document `first .. last`, by number."""
        query = (
            "SELECT namespace, number FROM documents WHERE number BETWEEN ? AND ? ORDER BY number"
        )
        return [(namespace, number) for namespace, number in self._rows(query, first, last)]

    def numbers_by_digest(self, digests: Iterable[bytes]) -> dict[bytes, int]:
        """Return the number of each of `digests` that a document has."""
        query = "SELECT number FROM documents WHERE digest = ?"
        numbers: dict[bytes, int] = {}
        for digest in digests:
            for (number,) in self._rows(query, digest):
                numbers[digest] = number
        return numbers

    def outdated(self, max_epochs: int, namespace: str) -> list[int]:
        """Return the numbers of a namespace's documents of epochs before its last `max_epochs`."""
        greatest = "SELECT coalesce(max(epoch), 0) FROM documents WHERE namespace = ?"
        [(last_epoch,)] = self._rows(greatest, namespace)
        query = "SELECT number FROM documents WHERE namespace = ? AND epoch < ? ORDER BY number"
        rows = self._rows(query, namespace, last_epoch - max_epochs + 1)
        return [int(number) for (number,) in rows]

    def newest_time(self) -> float:
        """Return when the newest document was added, in seconds since 1970; 0.0 if none was."""
        rows = self._rows("SELECT number FROM documents ORDER BY number DESC LIMIT 1")
        return self.time(rows[0][0]) if rows else 0.0

    def time(self, number: int) -> float:
        """Return when a stored document was added, in seconds since 1970."""
        rows = self._rows("SELECT added FROM documents WHERE number = ?", number)
        self._require("the time of a document", len(rows) == 1 and is_time(rows[0][0]))
        return float(rows[0][0])

    # --- Reading changes --------------------------------------------------------------------------

    def changes(self, after: int, datastore_id: str, max_bytes: int) -> Changes:
        """Return the changes after number `after`, for a replica.

        They begin with the first change if this datastore had another change `after` under
        `datastore_id`, or if it has forgotten a removal since.

        Args:
            after: number of the newest change that the replica has.
            datastore_id: id of the datastore that made that change.
            max_bytes: the size of all changes, about. One change may be larger.
        """
        with self.one_state(), self._named_errors("read"):
            present_id, head, _ = self._properties("id, newest, forgotten")
            shared_after = self.shared_after()
            if not self._can_continue(after, datastore_id):
                after = 0
            added: list[DocumentRecord] = []
            removed: list[Removal] = []
            last = head
            size = 0
            for change in self._all_changes(after):
                size += _size(change)
                if size > max_bytes and (added or removed):
                    last = change.number - 1
                    break
                if isinstance(change, DocumentRecord):
                    added.append(change)
                else:
                    removed.append(change)
        return Changes(present_id, after + 1, last, head, added, removed, shared_after)

    def _can_continue(self, after: int, datastore_id: str) -> bool:
        """Return whether a replica with the changes up to `after` needs only later ones."""
        present_id, newest, forgotten = self._properties("id, newest, forgotten")
        if datastore_id != present_id:
            rows = self._rows("SELECT newest FROM openings WHERE id = ?", datastore_id)
            if not rows:
                return False
            [(newest,)] = rows
        return bool(forgotten <= after <= newest)

    def _all_changes(self, after: int) -> Iterator[DocumentRecord | Removal]:
        """Yield documents and removals after number `after`, by number."""
        streams: list[Iterator[DocumentRecord | Removal]] = [
            self._read("number > ?", after),
            self._removals(after),
        ]
        return heapq.merge(*streams, key=operator.attrgetter("number"))

    def _removals(self, after: int) -> Iterator[Removal]:
        query = "SELECT * FROM removals WHERE number > ? ORDER BY number"
        for number, first, last, deleted in self._database.execute(query, (after,)):
            yield Removal(number, first, last, bool(deleted))

    def plan_removals(
        self,
        removed: Iterable[int],
        evicted: Iterable[tuple[str, int, int]],
        newest: int,
        *,
        deleted: bool,
    ) -> list[Removal]:
        """Return removals of existing documents, numbered from `newest + 1` on.

        One removal spans several of the documents if no other document is between them.

        Args:
            removed: numbers of documents.
            evicted: spans of further documents: namespace, first and last number.
            newest: number of the change before.
            deleted: as in `Removal`.
        """
        numbers = set(removed)
        in_span = "SELECT number FROM documents WHERE namespace = ? AND number BETWEEN ? AND ?"
        for span in evicted:
            numbers.update(number for (number,) in self._rows(in_span, *span))
        between = "SELECT EXISTS (SELECT 1 FROM documents WHERE number > ? AND number < ?)"
        removals: list[Removal] = []
        for number in sorted(numbers):
            if removals and self._rows(between, removals[-1].last, number) == [(0,)]:
                removals[-1] = removals[-1]._replace(last=number)
            else:
                removals.append(Removal(newest + len(removals) + 1, number, number, deleted))
        return removals

    # --- Writing ----------------------------------------------------------------------------------

    def set_retention(self, namespace: str, retention: Retention) -> None:
        """Store how much a namespace keeps. Fields that are None stay as they are."""
        with self._transaction("written"):
            self._database.execute(
                "INSERT OR IGNORE INTO namespaces (name) VALUES (?)", (namespace,)
            )
            for column in ("max_tokens", "max_age", "max_epochs"):
                value = getattr(retention, column)
                if value is not None:
                    statement = f"UPDATE namespaces SET {column} = ? WHERE name = ?"
                    self._database.execute(statement, (value, namespace))

    def set_shared_after(self, shared_after: int) -> None:
        """Store how many groups have to write a text before queries tell others of it."""
        with self._transaction("written"):
            self._database.execute("UPDATE properties SET shared_after = ?", (shared_after,))

    def commit(
        self,
        changes: Changes,
        obsolete: Iterable[SegmentRecord],
        records: Iterable[SegmentRecord],
    ) -> None:
        """Store changes in one transaction.

        Args:
            changes: changes with numbers greater than all before. Those of an upstream begin with
                1 if they replace everything, and the replica takes over their id.
            obsolete: records of segments to remove.
            records: records of segments to insert.
        """
        has_own = bool(changes.added or changes.removed) and not changes.datastore_id
        with self._transaction("written"):
            if has_own and not self._has_changed:
                self._begin_id()
            if changes.first == 1:
                self._remove_everything(changes.head)
            self._remove_documents(changes.removed)
            self._insert_documents(changes.added)
            self._insert_removals(changes.removed)
            names = [(record.name,) for record in obsolete]
            self._database.executemany("DELETE FROM segments WHERE name = ?", names)
            self._database.executemany("INSERT INTO segments VALUES (?, ?, ?, ?, ?, ?, ?)", records)
            self._database.execute(
                "UPDATE properties SET newest = ?, id = coalesce(nullif(?, ''), id)",
                (changes.last, changes.datastore_id),
            )
        self._has_changed |= has_own

    def _begin_id(self) -> None:
        """Start a new datastore id, so that replicas notice when a backup was restored."""
        self._database.execute("INSERT INTO openings SELECT id, newest FROM properties")
        self._database.execute(
            "DELETE FROM openings WHERE rowid <= (SELECT max(rowid) FROM openings) - ?",
            (_MAX_OPENINGS,),
        )
        self._database.execute("UPDATE properties SET id = ?", (uuid4().hex,))

    def _remove_everything(self, head: int) -> None:
        """Remove all documents and removals of a replica; `head`: the upstream's newest change."""
        for table in ("documents", "removals", "namespaces"):
            self._database.execute(f"DELETE FROM {table}")
        self._database.execute(
            "UPDATE properties SET forgotten = ?, unclean = unclean OR newest", (head,)
        )

    def _remove_documents(self, removals: Iterable[Removal]) -> None:
        spans = [(removal.first, removal.last) for removal in removals]
        self._database.executemany("DELETE FROM documents WHERE number BETWEEN ? AND ?", spans)

    def _insert_documents(self, documents: Sequence[DocumentRecord]) -> None:
        names = {(document.namespace,) for document in documents}
        self._database.executemany("INSERT OR IGNORE INTO namespaces (name) VALUES (?)", names)
        rows = ((*document, zlib.crc32(document.symbols)) for document in documents)
        self._database.executemany("INSERT INTO documents VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows)

    def _insert_removals(self, removals: Sequence[Removal]) -> None:
        """Insert removals of documents that are gone; forget the oldest if there are too many."""
        if not removals:
            return
        self._database.executemany("INSERT INTO removals VALUES (?, ?, ?, ?)", removals)
        self._database.execute(
            "DELETE FROM namespaces WHERE coalesce(max_tokens, max_age, max_epochs) IS NULL"
            " AND NOT EXISTS (SELECT 1 FROM documents WHERE namespace = namespaces.name)"
        )
        query = "SELECT number FROM removals ORDER BY number DESC LIMIT 1 OFFSET ?"
        newest_forgotten = self._database.execute(query, (_MAX_REMOVALS,)).fetchone()
        if newest_forgotten is not None:
            self._database.execute("DELETE FROM removals WHERE number <= ?", newest_forgotten)
            self._database.execute("UPDATE properties SET forgotten = ?", newest_forgotten)
        if any(removal.deleted for removal in removals):
            self._database.execute("UPDATE properties SET unclean = 1")

    def clean(self) -> None:
        """Overwrite the remains of deleted documents: write the file again, and empty its log.

        SQLite overwrites the row of a deleted document. It may have moved the row before, and then
        a copy is in unused bytes.

        Raises:
            StorageError: there is no room, or readers of an older state have kept the log for
                seconds.
        """
        if self._properties("unclean") == (0,):
            return
        with self._named_errors("rewritten; deleted text may still be in unused bytes"):
            self._database.execute("VACUUM")
            is_busy = self._number("PRAGMA wal_checkpoint(TRUNCATE)")
        if is_busy:
            raise StorageError(
                f"{self.path}: deleted documents are still in the log, while another process reads"
                " an older state"
            )
        with self._transaction("written"):
            self._database.execute("UPDATE properties SET unclean = 0")

    # --- Checks -----------------------------------------------------------------------------------

    def _properties(self, columns: str) -> tuple[Any, ...]:
        rows = self._rows(f"SELECT {columns} FROM properties")
        if not rows:
            raise StorageError(
                describe(self.path, "the row of properties", "absent", "that of a live datastore")
            )
        return rows[0]

    def _require(self, what: str, holds: bool) -> None:
        if not holds:
            raise StorageError(f"{self.path}: {what} is damaged")


def _replica_of(location: str) -> str:
    return f"a replica of {location}" if location else "one that is no replica"


def _is_sound(document: DocumentRecord, checksum: object) -> bool:
    """Return whether the row of a document is as it was written."""
    symbols: object = document.symbols
    if not isinstance(symbols, bytes) or not symbols:
        return False
    return zlib.crc32(symbols) == checksum and is_time(document.added)


def _size(change: DocumentRecord | Removal) -> int:
    """Return about how many bytes a change takes in a message."""
    if isinstance(change, DocumentRecord):
        return _CHANGE_BYTES + len(change.symbols)
    return _CHANGE_BYTES
