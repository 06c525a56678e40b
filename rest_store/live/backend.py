"""One opening of a live datastore: `Backend`, which `LiveDatastore` and `Namespace` stand on."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

from rest_store.datastore.store import Snapshot
from rest_store.errors import DatastoreClosedError, WriterError, describe
from rest_store.live.background import Background
from rest_store.live.documents import Documents
from rest_store.live.encoder import TextEncoder
from rest_store.live.follower import Follower
from rest_store.live.replica import Replica
from rest_store.live.segments import Segments
from rest_store.live.writer import Writer


class Backend:
    """One opening of a live datastore, shared by all its namespaces. Thread-safe.

    It is closed by `close`, at the end of the interpreter, and some seconds after the last
    reference is gone. After a fork, only the parent may go on using it.

    Args:
        path: the directory of the datastore, or of the replica.
        role: the part of this process: it writes the datastore, follows the process that writes
            it, or keeps a replica.
        read_only: whether the caller opened it for reading.

    Attributes:
        path: as above.
        role: as above.
        read_only: as above.
        tokenizer: identity of the tokenizer of all tokens.
        text_encoder: tokenizes texts that are added.
    """

    def __init__(self, path: Path, role: Writer | Follower | Replica, *, read_only: bool) -> None:
        self.path = path
        self.role = role
        self.read_only = read_only
        self.tokenizer = role.tokenizer
        self._directory = path.absolute()  # the program may change its working directory
        self.text_encoder = TextEncoder(role.tokenizer, self._directory)
        self._segments: Segments | None = role.segments  # None: it is closed
        self._process = os.getpid()
        self._closing = threading.Lock()
        self._before_close: dict[Callable[[Backend], object], None] = {}
        self._threads = [
            Background(self, task, abandoned=role.close, idle_seconds=role.idle_seconds)
            for task in role.tasks()
        ]
        _opened.add(self)

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._segments is None

    @property
    def segments(self) -> Segments:
        """The present segments; raises DatastoreClosedError after `close`."""
        segments = self._segments
        if segments is None:
            raise DatastoreClosedError(describe(self.path, "the datastore", "closed", "open"))
        return segments

    def snapshot(self, namespace: str, reader: str) -> Snapshot:
        """Return the shards that queries of a namespace read from now on, by group `reader`."""
        segments = self._segments
        if segments is None:
            return Snapshot.closed(self.path)
        return segments.snapshot(namespace, reader)

    def stored(self) -> Documents:
        """Return the stored documents, opened for reading. The caller closes them.

        Raises:
            DatastoreClosedError: after `close`.
            StorageError: they cannot be opened.
        """
        self._require_open()
        return Documents(self._directory, read_only=True)

    def writer(self) -> Writer | Replica:
        """Return the object that carries out changes.

        Raises:
            DatastoreClosedError: after `close`.
            WriterError: the datastore was opened for reading, or by another process.
        """
        self._require_open()
        if self.read_only or isinstance(self.role, Follower):
            raise WriterError(
                describe(
                    self.path, "the live datastore", "opened for reading", "opened for writing"
                )
            )
        if os.getpid() != self._process:
            raise WriterError(
                f"{self.path}: the live datastore is used after a fork; only the process that"
                " opened it may write it"
            )
        return self.role

    @property
    def failure(self) -> str | None:
        """The latest failure of a background thread; None once it has succeeded again."""
        for thread in self._threads:
            if thread.failure is not None:
                return thread.failure
        return None

    def before_close(self, call: Callable[[Backend], object]) -> None:
        """Let `close` first call `call` with this object; each `call` once.

        Queues of documents to be added use it.
        """
        self._before_close[call] = None

    def close(self) -> None:
        """Complete the changes in progress, end the threads, and close the files.

        It may be called again.
        """
        if os.getpid() != self._process:
            # A forked child has no threads, and the files are the parent's.
            self._segments = None
            return
        for call in tuple(self._before_close):
            call(self)
        with self._closing:
            self._segments = None
            if isinstance(self.role, Replica):
                self.role.disconnect()
            for thread in self._threads:
                thread.stop()
            self.role.close()

    def _require_open(self) -> None:
        _ = self.segments


_opened: weakref.WeakSet[Backend] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Close all backends when the interpreter exits.

    A thread that returned from native code after that would abort the process.
    """
    for backend in list(_opened):
        backend.close()
