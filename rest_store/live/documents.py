"""The documents of a live datastore, in SQLite: the truth that
segments are sorted from, and their log until then.
"""

from __future__ import annotations

import heapq
import json
import operator
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from uuid import uuid4

from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.errors import ArgumentError, DatastoreFormatError, StorageError, describe
from rest_store.live.database import SCHEMA, Database
from rest_store.live.retention import Limits, Retention
from rest_store.live.upstream import Changes, DocumentRecord, Removal, is_time

_MAX_REMOVALS = 1 << 16  # that are stored
_MAX_OPENINGS = 1 << 10  # likewise
_OVERHEAD = 64  # bytes of a change besides its tokens, about
_SEGMENT_NAME = re.compile("segment-[0-9a-f]{32}")


class SegmentRecord(NamedTuple):
    """A segment in files: those of the documents `first .. last` that are there.

    Attributes:
        name: of its files.
        namespace: of its documents.
        oldest: when the first of them was added, in seconds since 1970; `newest`: the last.
        sha256: of its tokens; the file of its suffixes names them by that, too.
    """

    name: str
    namespace: str
    first: int
    last: int
    oldest: float
    newest: float
    sha256: bytes


class Documents(Database):
    """An open file of documents, with the records of segments and the limits. One thread at a time.

    Raises:
        StorageError: in all methods, if SQLite cannot read or write, or what it reads is damaged.
    """

    _has_changed = False  # since it was opened

    def create(self, tokenizer: TokenizerIdentity, location: str = "") -> None:
        """Make the tables of a new file, for tokens of `tokenizer`.

        A replica has the `location` of its upstream.
        """
        with self._transaction("created"):
            for statement in SCHEMA.split(";"):
                self._database.execute(statement)
            properties = (uuid4().hex, location, json.dumps(tokenizer.to_manifest()), 0, 0, 0)
            self._database.execute("INSERT INTO properties VALUES (?, ?, ?, ?, ?, ?)", properties)
        self.is_new = False

    # --- Reading ----------------------------------------------------------------------------------

    def tokenizer(self) -> TokenizerIdentity:
        """Return the identity of the tokenizer that the tokens are from."""
        (text,) = self._properties("tokenizer")
        try:
            return TokenizerIdentity.from_manifest(json.loads(str(text)), self.path)
        except (ValueError, DatastoreFormatError) as error:
            raise StorageError(
                describe(self.path, "tokenizer", f"unreadable ({error})", "its identity")
            ) from None

    def limits(self) -> Limits:
        """Return how much each namespace keeps."""
        rows = self._rows("SELECT * FROM namespaces")
        try:
            return Limits({name: Retention.checked(*limits) for name, *limits in rows})
        except ArgumentError as error:
            raise StorageError(
                describe(self.path, "limits", f"damaged ({error})", "as they were set")
            ) from None

    def datastore_id(self) -> str:
        """Return what this is known by since the first change of the latest opening.

        A replica, as its upstream is.
        """
        return str(self._properties("id")[0])

    def require_location(self, location: str) -> None:
        """Raise DatastoreFormatError unless this is a replica of the upstream at `location`.

        "": of none.
        """
        (found,) = self._properties("location")
        if found != location:
            words = (
                f"a replica of {name}" if name else "one that is no replica"
                for name in (found, location)
            )
            raise DatastoreFormatError("live", describe(self.path.parent, "live datastore", *words))

    def records(self) -> list[SegmentRecord]:
        """Return the records of the segments in files, oldest first."""
        rows = self._rows("SELECT * FROM segments ORDER BY first")
        for row in rows:
            self._require("a segment", _is_record(row))
        return [SegmentRecord(*row) for row in rows]

    def newest(self) -> int:
        """Return the number of the newest change; 0 if there is none."""
        (number,) = self._properties("newest")
        self._require("newest", isinstance(number, int))
        return int(number)

    def changes(self, after: int, datastore_id: str, max_bytes: int) -> Changes:
        """Return the changes after number `after`, as many as
        `max_bytes` hold, and at least one if there are any.

        They begin with the first unless this had change `after` when it was known by
        `datastore_id`, and if what was removed since has been forgotten.
        """
        added: list[DocumentRecord] = []
        removed: list[Removal] = []
        size = 0
        with self.one_state(), self._named_errors("read"):
            id, head, forgotten = self._properties("id, newest, forgotten")
            known = [(head,)] if id == datastore_id else None
            known = known or self._rows("SELECT newest FROM openings WHERE id = ?", datastore_id)
            if not known or not forgotten <= after <= known[0][0]:
                after = 0
            last = head
            rows = self._database.execute(
                "SELECT * FROM removals WHERE number > ? ORDER BY number", (after,)
            )
            removals = (
                Removal(number, first, last, bool(deleted)) for number, first, last, deleted in rows
            )
            both: list[Iterator[DocumentRecord | Removal]] = [
                self._read("number > ?", after),
                removals,
            ]
            for change in heapq.merge(*both, key=operator.attrgetter("number")):
                size += _OVERHEAD + (
                    len(change.symbols) if isinstance(change, DocumentRecord) else 0
                )
                if size > max_bytes and (added or removed):
                    last = change.number - 1
                    break
                if isinstance(change, DocumentRecord):
                    added.append(change)
                else:
                    removed.append(change)
        return Changes(id, after + 1, last, head, added, removed)

    def namespaces(self) -> list[str]:
        """Return the namespaces that have documents or limits."""
        return [str(row[0]) for row in self._rows("SELECT name FROM namespaces")]

    def read(
        self, first: int = 1, last: int = 2**62, *, namespace: str = ""
    ) -> Iterator[DocumentRecord]:
        """Yield the documents `first .. last` of a namespace, in their order."""
        return self._read("namespace = ? AND number BETWEEN ? AND ?", namespace, first, last)

    def latest(self, count: int | None, *, namespace: str, group: str) -> list[int]:
        """Return the numbers of the `count` newest documents of a namespace, or of a group of it.

        None: of all.
        """
        where, arguments = "namespace = ?", [namespace]
        if group:
            where += ' AND "group" = ? AND "group" != \'\''  # the latter as the index has it
            arguments.append(group)
        query = f"SELECT number FROM documents WHERE {where} ORDER BY number DESC LIMIT ?"
        return [
            int(number)
            for (number,) in self._rows(query, *arguments, -1 if count is None else count)
        ][::-1]

    def _read(self, where: str, *arguments: object) -> Iterator[DocumentRecord]:
        with self._named_errors("read"):
            for *fields, crc in self._database.execute(
                f"SELECT * FROM documents WHERE {where} ORDER BY number", arguments
            ):
                document = DocumentRecord(*fields)
                symbols, added = document.symbols, document.added
                is_sound = (
                    isinstance(symbols, bytes) and len(symbols) > 0 and zlib.crc32(symbols) == crc
                )
                self._require(f"document {document.number}", is_sound and is_time(added))
                yield document

    def extent(self, namespace: str, after: int) -> tuple[int, int | None]:
        """Return how many documents of a namespace have numbers greater
        than `after`, and the greatest of these.
        """
        query = "SELECT count(*), max(number) FROM documents WHERE namespace = ? AND number > ?"
        [(count, last)] = self._rows(query, namespace, after)
        return count, last

    def removals(
        self,
        removed: Iterable[int],
        evicted: Iterable[tuple[str, int, int]],
        newest: int,
        *,
        deleted: bool,
    ) -> list[Removal]:
        """Return what removes documents that are there, numbered from `newest + 1` on.

        Args:
            removed: their numbers.
            evicted: namespace, first and last number of others.
            newest: number of the change before.
            deleted: as in `Removal`.

        A removal spans as many of them as there is no other document in between.
        """
        numbers = set(removed)
        between = "SELECT EXISTS (SELECT 1 FROM documents WHERE number > ? AND number < ?)"
        removals: list[Removal] = []
        for span in evicted:
            query = "SELECT number FROM documents WHERE namespace = ? AND number BETWEEN ? AND ?"
            numbers.update(number for (number,) in self._rows(query, *span))
        for number in sorted(numbers):
            if removals and self._rows(between, removals[-1].last, number) == [(0,)]:
                removals[-1] = removals[-1]._replace(last=number)
            else:
                removals.append(Removal(newest + len(removals) + 1, number, number, deleted))
        return removals

    def between(self, first: int, last: int) -> list[tuple[str, int]]:
        """Return namespace and number of each document `first .. last`, in their order."""
        query = (
            "SELECT namespace, number FROM documents WHERE number BETWEEN ? AND ? ORDER BY number"
        )
        return [(namespace, number) for namespace, number in self._rows(query, first, last)]

    def outdated(self, max_epochs: int, namespace: str) -> list[int]:
        """Return the numbers of the documents of a namespace that
        are of an epoch before the last `max_epochs`.
        """
        query = "SELECT number FROM documents WHERE namespace = ? AND epoch < ? ORDER BY number"
        [(last,)] = self._rows(
            "SELECT coalesce(max(epoch), 0) FROM documents WHERE namespace = ?", namespace
        )
        return [int(number) for (number,) in self._rows(query, namespace, last - max_epochs + 1)]

    def last_time(self) -> float:
        """Return when the newest document was added, in seconds since 1970.

        0.0 if there is none.
        """
        rows = self._rows("SELECT added FROM documents ORDER BY number DESC LIMIT 1")
        time = rows[0][0] if rows else 0.0
        self._require("the time of a document", is_time(time))
        return float(time)

    def numbers(self, digests: Iterable[bytes]) -> dict[bytes, int]:
        """Return the numbers of the documents that have one of `digests`."""
        query = "SELECT number FROM documents WHERE digest = ?"
        return {digest: number for digest in digests for (number,) in self._rows(query, digest)}

    # --- Writing ----------------------------------------------------------------------------------

    def set_limits(self, namespace: str, limits: Retention) -> None:
        """Store limits of a namespace from now on; None in them: as before."""
        columns = [
            name
            for name in ("max_tokens", "max_age", "max_epochs")
            if getattr(limits, name) is not None
        ]
        with self._transaction("written"):
            self._database.execute(
                "INSERT OR IGNORE INTO namespaces (name) VALUES (?)", (namespace,)
            )
            for name in columns:
                query = f"UPDATE namespaces SET {name} = ? WHERE name = ?"
                self._database.execute(query, (getattr(limits, name), namespace))

    def commit(
        self,
        changes: Changes,
        obsolete: Iterable[SegmentRecord],
        records: Iterable[SegmentRecord],
    ) -> None:
        """Store changes in one transaction.

        Args:
            changes: their numbers are greater than that of any change before. A replica takes over
                their id, and nothing that it had stays if they begin with the first.
            obsolete: records of segments that are gone.
            records: of those in their place.
        """
        has_own = bool(changes.added or changes.removed) and not changes.datastore_id
        with self._transaction("written"):
            if has_own and not self._has_changed:
                self._note_opening()
            if changes.first == 1:
                for table in ("documents", "removals", "namespaces"):
                    self._database.execute(f"DELETE FROM {table}")
                properties = "forgotten = ?, unclean = unclean OR newest"
                self._database.execute(f"UPDATE properties SET {properties}", (changes.head,))
            spans = [(removal.first, removal.last) for removal in changes.removed]
            self._database.executemany("DELETE FROM documents WHERE number BETWEEN ? AND ?", spans)
            names = {(document.namespace,) for document in changes.added}
            self._database.executemany("INSERT OR IGNORE INTO namespaces (name) VALUES (?)", names)
            rows = ((*document, zlib.crc32(document.symbols)) for document in changes.added)
            self._database.executemany(
                "INSERT INTO documents VALUES (?, ?, ?, ?, ?, ?, ?, ?)", rows
            )
            self._store_removals(changes.removed)
            self._database.executemany(
                "DELETE FROM segments WHERE name = ?", [(record.name,) for record in obsolete]
            )
            self._database.executemany("INSERT INTO segments VALUES (?, ?, ?, ?, ?, ?, ?)", records)
            properties = "newest = ?, id = coalesce(nullif(?, ''), id)"
            self._database.execute(
                f"UPDATE properties SET {properties}", (changes.last, changes.datastore_id)
            )
        self._has_changed |= has_own

    def _note_opening(self) -> None:
        """Have the datastore known by another id from now on, so that
        no replica takes a backup for what it was.
        """
        self._database.execute("INSERT INTO openings SELECT id, newest FROM properties")
        oldest = "(SELECT max(rowid) FROM openings) - ?"
        self._database.execute(f"DELETE FROM openings WHERE rowid <= {oldest}", (_MAX_OPENINGS,))
        self._database.execute("UPDATE properties SET id = ?", (uuid4().hex,))

    def _store_removals(self, removals: Sequence[Removal]) -> None:
        """Store removals of documents that are gone, without the
        oldest of too many, and what is yet to be cleaned.
        """
        if not removals:
            return
        self._database.executemany("INSERT INTO removals VALUES (?, ?, ?, ?)", removals)
        is_unused = "coalesce(max_tokens, max_age, max_epochs) IS NULL"
        is_empty = "NOT EXISTS (SELECT 1 FROM documents WHERE namespace = namespaces.name)"
        self._database.execute(f"DELETE FROM namespaces WHERE {is_unused} AND {is_empty}")
        query = "SELECT number FROM removals ORDER BY number DESC LIMIT 1 OFFSET ?"
        if (row := self._database.execute(query, (_MAX_REMOVALS,)).fetchone()) is not None:
            self._database.execute("DELETE FROM removals WHERE number <= ?", row)
            self._database.execute("UPDATE properties SET forgotten = ?", row)
        if any(removal.deleted for removal in removals):
            self._database.execute("UPDATE properties SET unclean = 1")

    def clean(self) -> None:
        """Remove what is left of deleted documents: write the whole file anew, and empty the log.

        SQLite overwrites the row of a deleted document, but copies of it may be in unused bytes
        since it moved rows.

        Raises:
            StorageError: there is no room for that; or readers of an older state have kept the log
                for seconds.
        """
        if self._properties("unclean") == (0,):
            return
        with self._named_errors("rewritten; what was deleted may still be in unused bytes"):
            self._database.execute("VACUUM")
            is_kept = self._number("PRAGMA wal_checkpoint(TRUNCATE)")
        if is_kept:
            where = "in the log, while another process reads an older state"
            raise StorageError(f"{self.path}: what was deleted is still {where}")
        with self._transaction("written"):
            self._database.execute("UPDATE properties SET unclean = 0")

    def _properties(self, columns: str) -> tuple[Any, ...]:
        rows = self._rows(f"SELECT {columns} FROM properties")
        if not rows:
            raise StorageError(
                describe(self.path, "the row of properties", "absent", "that of a live datastore")
            )
        return rows[0]

    def _require(self, what: str, holds: bool) -> None:
        if not holds:
            raise StorageError(describe(self.path, what, "damaged", "as it was written"))


def _is_record(row: Sequence[object]) -> bool:
    """Return whether `row` may be a SegmentRecord."""
    name, namespace, first, last, oldest, newest, sha256 = row
    numbers = isinstance(first, int) and isinstance(last, int) and first <= last
    named = (
        isinstance(name, str)
        and _SEGMENT_NAME.fullmatch(name) is not None
        and isinstance(namespace, str)
    )
    return named and numbers and is_time(oldest) and is_time(newest) and isinstance(sha256, bytes)
