"""The record of a memory: the documents of each file, in SQLite in the memory's directory.

A document is recorded before it is added, and its successor before it is discarded. So a process
that is killed leaves no document that the record does not name, and the next one goes on.
"""

from __future__ import annotations

import itertools
import json
import operator
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rest_store.errors import StorageError
from rest_store.live.agent_memory import RECORD_NAME
from rest_store.live.database import transaction

_SCHEMA = """
CREATE TABLE IF NOT EXISTS settings (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS files (path TEXT PRIMARY KEY, version TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS documents (
    path TEXT NOT NULL, namespace TEXT NOT NULL, id TEXT NOT NULL, is_stored INTEGER NOT NULL,
    PRIMARY KEY (path, namespace, id)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS of_id ON documents (namespace, id);
CREATE TABLE IF NOT EXISTS earlier (
    path TEXT NOT NULL, number INTEGER NOT NULL, namespace TEXT NOT NULL, id TEXT NOT NULL,
    PRIMARY KEY (path, number, namespace, id)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS earlier_of_id ON earlier (namespace, id);
CREATE TABLE IF NOT EXISTS discarded (
    namespace TEXT NOT NULL, id TEXT NOT NULL, PRIMARY KEY (namespace, id)) WITHOUT ROWID;
"""


class Key(NamedTuple):
    """A document of the memory.

    Attributes:
        namespace: that it is in.
        id: of the document.
    """

    namespace: str
    id: str


class Record:
    """The record of one memory. Thread-safe; the memory's lock keeps other processes out.

    Args:
        directory: of the memory.

    Raises:
        StorageError: the file cannot be written, or is damaged.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / RECORD_NAME
        self._lock = threading.RLock()
        with self._named_errors():
            self._database = sqlite3.connect(
                self._path, isolation_level=None, check_same_thread=False
            )
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=FULL")
            self._database.executescript(_SCHEMA)

    def close(self) -> None:
        """Close the file."""
        with self._named_errors():
            self._database.close()

    def setting(self, name: str) -> str | None:
        """Return a setting of the memory, or None."""
        rows = self._rows("SELECT value FROM settings WHERE name = ?", name)
        return str(rows[0][0]) if rows else None

    def set_setting(self, name: str, value: str) -> None:
        """Store a setting."""
        with self._transaction():
            self._database.execute("REPLACE INTO settings VALUES (?, ?)", (name, value))

    def versions(self, top: str) -> dict[str, str]:
        """Return the versions of a file, or of those below a directory, by their paths."""
        first, last = f"{top.rstrip('/')}/", f"{top.rstrip('/')}0"  # "0" comes after "/"
        query = "SELECT path, version FROM files WHERE path = ? OR (path >= ? AND path < ?)"
        return dict(self._rows(query, top, first, last))

    def stored(self, keys: Iterable[Key]) -> set[Key]:
        """Return those documents that are in the memory for certain."""
        query = (
            "SELECT DISTINCT namespace, id FROM documents WHERE is_stored AND namespace = ?"
            " AND id IN (SELECT value FROM json_each(?))"
        )
        stored: set[Key] = set()
        for namespace, own in itertools.groupby(sorted(keys), operator.attrgetter("namespace")):
            ids = json.dumps([key.id for key in own])
            stored.update(Key(*row) for row in self._rows(query, namespace, ids))
        return stored

    def announce(self, new: Mapping[str, Iterable[Key]]) -> None:
        """Record documents that are about to be added, by the paths of their files."""
        rows = [(path, *key) for path, keys in new.items() for key in keys]
        with self._transaction():
            self._database.executemany("INSERT OR IGNORE INTO documents VALUES (?, ?, ?, 0)", rows)
            self._database.executemany(
                "DELETE FROM discarded WHERE namespace = ? AND id = ?", [row[1:] for row in rows]
            )

    def replace(
        self, versions: Mapping[str, str], new: Mapping[str, Iterable[Key]], *, keep: int = 1
    ) -> None:
        """Record that files have these versions, and that their documents are stored.

        Documents of versions that are not kept, and that no other file has, are to be discarded.

        Args:
            versions: by path; of a file that is gone: "".
            new: the documents of each, all of them.
            keep: versions of each file that are kept, the new one counted; of a file that is gone
                none is.
        """
        is_stored = {key for path in versions for key in new.get(path, ())}
        present = [(path, version) for path, version in versions.items() if version]
        absent = [(path,) for path, version in versions.items() if not version]
        with self._transaction():
            self._database.executemany(
                "UPDATE documents SET is_stored = 1 WHERE namespace = ? AND id = ?", [*is_stored]
            )
            before = self._documents_of(versions)
            earlier = self._paths_with_earlier(versions)
            for path, version in versions.items():
                keys = set(new.get(path, ()))
                # Of many new files none has had another document.
                if before[path] != keys or path in earlier:
                    self._replace_documents(path, before[path], keys, keep if version else 0)
            self._database.executemany("REPLACE INTO files VALUES (?, ?)", present)
            self._database.executemany("DELETE FROM files WHERE path = ?", absent)

    def _documents_of(self, paths: Iterable[str]) -> dict[str, set[Key]]:
        """Return the documents of each of these files."""
        documents: dict[str, set[Key]] = {path: set() for path in paths}
        query = (
            "SELECT path, namespace, id FROM documents"
            " WHERE path IN (SELECT value FROM json_each(?))"
        )
        for path, namespace, id in self._rows(query, json.dumps([*documents])):
            documents[path].add(Key(namespace, id))
        return documents

    def _paths_with_earlier(self, paths: Iterable[str]) -> set[str]:
        """Return those of these files that have earlier versions."""
        query = "SELECT path FROM earlier WHERE path IN (SELECT value FROM json_each(?))"
        return {path for (path,) in self._rows(query, json.dumps([*paths]))}

    def _replace_documents(self, path: str, before: set[Key], keys: set[Key], keep: int) -> None:
        """Record that a file has these documents and no others; the arguments are `_outdated`'s."""
        outdated = self._outdated(path, before, keys, keep)
        if gone := [(path, *key) for key in before - keys]:
            self._database.executemany(
                "DELETE FROM documents WHERE path = ? AND namespace = ? AND id = ?", gone
            )
        if outdated:
            self._database.executemany(
                "INSERT OR IGNORE INTO discarded SELECT ?1, ?2 WHERE NOT EXISTS"
                " (SELECT 1 FROM documents WHERE namespace = ?1 AND id = ?2) AND NOT EXISTS"
                " (SELECT 1 FROM earlier WHERE namespace = ?1 AND id = ?2)",
                [*outdated],
            )

    def _outdated(self, path: str, before: set[Key], keys: set[Key], keep: int) -> set[Key]:
        """Record the earlier versions of a file; return the documents of those not kept.

        Args:
            path: of the file.
            before: the documents that it had until now.
            keys: the documents that it has from now on.
            keep: versions that are kept, the new one counted; 0: the file is gone.
        """
        query = "SELECT number, namespace, id FROM earlier WHERE path = ? ORDER BY number"
        rows = self._rows(query, path)
        if keep <= 1 and not rows:
            return before - keys
        earlier: dict[int, set[Key]] = {}
        for number, namespace, id in rows:
            earlier.setdefault(number, set()).add(Key(namespace, id))
        earlier[max(earlier, default=0) + 1] = before
        known = set[Key]().union(*earlier.values())
        # Newest first: a document of a newer version is none of an older one.
        remaining: dict[int, set[Key]] = {}
        newer = set(keys)
        for number in sorted(earlier, reverse=True):
            own = earlier[number] - newer
            if own and len(remaining) < keep - 1:
                remaining[number] = own
                newer |= own
        self._database.execute("DELETE FROM earlier WHERE path = ?", (path,))
        self._database.executemany(
            "INSERT INTO earlier VALUES (?, ?, ?, ?)",
            [(path, number, *key) for number, own in remaining.items() for key in own],
        )
        return known - newer

    def discarded(self) -> dict[str, list[str]]:
        """Return the ids of the documents that are to be discarded, by namespace."""
        ids: dict[str, list[str]] = {}
        for namespace, id in self._rows("SELECT namespace, id FROM discarded"):
            ids.setdefault(namespace, []).append(id)
        return ids

    def forget(self, namespace: str, ids: Sequence[str]) -> None:
        """Record that documents have been discarded."""
        with self._transaction():
            self._database.executemany(
                "DELETE FROM discarded WHERE namespace = ? AND id = ?",
                [(namespace, id) for id in ids],
            )

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return the numbers of files and of documents of each namespace."""
        query = (
            "SELECT namespace, count(DISTINCT path), count(DISTINCT id) FROM documents"
            " GROUP BY namespace ORDER BY namespace"
        )
        return {name: (files, documents) for name, files, documents in self._rows(query)}

    def _rows(self, query: str, *arguments: object) -> list[tuple[Any, ...]]:
        with self._lock, self._named_errors():
            return self._database.execute(query, arguments).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with self._lock, self._named_errors(), transaction(self._database):
            yield

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            expected = "remove the file, and the next run makes it anew"
            raise StorageError(
                f"{self._path}: the record is unusable ({error}); {expected}"
            ) from error
