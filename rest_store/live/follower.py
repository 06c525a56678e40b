"""A process that reads a live datastore while another process writes it: `Follower`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import ClassVar

from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.errors import DatastoreNotFoundError
from rest_store.live.documents import Documents
from rest_store.live.retention import RetentionTable
from rest_store.live.segments import Segments


class Follower:
    """Reads a live datastore that another process writes, or may write. Thread-safe.

    It maps the writer's files, and sorts the newest documents itself. If the writer has just
    replaced a file, the follower sorts its documents until it looks again.

    Args:
        directory: the directory of the datastore.
        tokenizer: identity of the tokenizer that the datastore must have; None: any.
        location: the upstream's location, if the datastore must be a replica of it; None: it may be
            anything.

    Raises:
        DatastoreNotFoundError: the directory's file of documents is still empty.
        TokenizerMismatchError: the datastore has another tokenizer.
        DatastoreFormatError: it is a replica of another upstream.
        StorageError, DatastoreError: documents or segments cannot be read.

    Attributes:
        idle_seconds: the longest pause between two looks.
        tokenizer: identity of the tokenizer of all tokens.
        retention: how much the writer kept when this was opened.
        segments: the segments of the latest look.
    """

    idle_seconds: ClassVar[float] = 0.02  # changes of others are visible so soon

    def __init__(
        self, directory: Path, tokenizer: TokenizerIdentity | None, location: str | None = None
    ) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        self._version = -1
        self._datastore_id = ""
        with ExitStack() as stack:
            self._documents = stack.enter_context(closing(Documents(directory, read_only=True)))
            if self._documents.is_new:
                raise DatastoreNotFoundError(f"{directory}: the live datastore is still empty")
            self.tokenizer = self._documents.tokenizer()
            if tokenizer is not None:
                self.tokenizer.require_same(tokenizer, directory)
            if location is not None:
                self._documents.require_location(location)
            self.retention = self._documents.retention()
            self.segments = Segments(self.tokenizer.vocabulary_size)
            self.work()
            stack.pop_all()

    def tasks(self) -> list[Callable[[], bool]]:
        """Return the work for background threads."""
        return [self.work]

    def close(self) -> None:
        """Close the file of documents, and unmap the segments."""
        self.release()
        self.segments.close()

    def release(self) -> None:
        """Close the file of documents, and leave the segments to the process's new writer."""
        with self._lock:
            self._documents.close()

    def work(self) -> bool:
        """Publish the changes that the writer has committed; return whether there were any."""
        with self._lock:
            version = self._documents.version()
            if version == self._version:
                return False
            with self._documents.one_state():
                datastore_id = self._documents.datastore_id()
                self.segments.shared_after = self._documents.shared_after()
                segments = self.segments.load(
                    self._directory,
                    self._documents,
                    RetentionTable(),
                    keep_memtables=datastore_id == self._datastore_id,
                )
                newest = self._documents.newest()
            self.segments.publish(segments, newest)
            self._version = version
            self._datastore_id = datastore_id
            return True
