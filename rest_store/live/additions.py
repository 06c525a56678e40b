"""Additions of many callers, which share commits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple


class NewDocument(NamedTuple):
    """A document to be added.

    Attributes:
        id: of the document.
        symbols: its tokens as a tokens file has them.
        is_new: whether its id was drawn for it and is not stored yet, so that nobody need look it up.
    """

    id: str
    symbols: bytes
    is_new: bool = False


class _Addition:
    """What one caller adds, and how that ended."""

    def __init__(self, documents: Sequence[NewDocument], separator: int) -> None:
        self.documents = documents
        self.size = sum(len(document.symbols) + separator for document in documents)
        self.done = False
        self.made_work = False
        self.error: Exception | None = None


class SharedCommits:
    """Commits what callers add: whoever comes first does it for all who wait. Thread-safe.

    Args:
        lock: held during commits.
        commit: stores documents, all or none, those that are stored already not again; returns whether there is other
            work to do then.
        most: bytes of one commit, unless one caller adds more.
        separator: bytes after each document.
    """

    def __init__(
        self, lock: threading.Lock, commit: Callable[[Sequence[NewDocument]], bool], most: int, *, separator: int
    ) -> None:
        self._lock = lock
        self._commit = commit
        self._most = most
        self._separator = separator
        self._queue: list[_Addition] = []
        self._queue_lock = threading.Lock()

    def add(self, documents: Sequence[NewDocument]) -> bool:
        """Commit documents, together with those of others; return what `commit` does, or raise its error.

        Whoever is interrupted leaves those of others to the next, stored or not.
        """
        addition = _Addition(documents, self._separator)
        with self._queue_lock:
            self._queue.append(addition)
        try:
            with self._lock:
                while not addition.done:
                    self._commit_some()
        finally:
            if not addition.done:
                with self._queue_lock:
                    self._queue = [other for other in self._queue if other is not addition]
        if addition.error is not None:
            raise addition.error
        return addition.made_work

    def _commit_some(self) -> None:
        """Commit what was queued first."""
        with self._queue_lock:
            count, size = 1, self._queue[0].size
            while count < len(self._queue) and size + self._queue[count].size <= self._most:
                size += self._queue[count].size
                count += 1
            additions = self._queue[:count]
        made_work, failure = False, None
        try:
            made_work = self._commit([document for addition in additions for document in addition.documents])
        except Exception as error:
            failure = error
        except BaseException:  # an interrupt, perhaps after they were stored
            for addition in additions:
                addition.documents = [document._replace(is_new=False) for document in addition.documents]
            raise
        for addition in additions:
            addition.made_work, addition.error, addition.done = made_work, failure, True
        with self._queue_lock:
            self._queue = [addition for addition in self._queue if not addition.done]
