"""The processes that read a live datastore while another writes it."""

from __future__ import annotations

import threading
from contextlib import ExitStack, closing
from pathlib import Path

from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.errors import DatastoreNotFoundError, describe
from rest_store.live.documents import Documents
from rest_store.live.retention import Limits
from rest_store.live.segments import Segments


class Follower:
    """Reads one live datastore: maps the writer's files, and sorts
    the newest documents itself. Thread-safe.

    A file that the writer has just replaced may be gone: then its documents are sorted, until it
    looks again.

    Args:
        directory: of the datastore.
        tokenizer: identity of that which it must have; None: any.
        location: of the upstream that it must be a replica of; None: any, or none.

    Raises:
        DatastoreNotFoundError: it is empty.
        TokenizerMismatchError: it has another tokenizer.
        DatastoreFormatError: it is a replica of another upstream.
        StorageError, DatastoreError: documents or segments cannot be read.

    Attributes:
        tokenizer: identity of the tokenizer that the tokens are from.
        limits: how much the writer kept when this was opened.
        segments: the segments at the latest look.
    """

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
                raise DatastoreNotFoundError(
                    describe(directory, "live datastore", "empty", "one with documents")
                )
            self.tokenizer = self._documents.tokenizer()
            if tokenizer is not None:
                self.tokenizer.require_same(tokenizer, directory)
            if location is not None:
                self._documents.require_location(location)
            self.limits = self._documents.limits()
            self.segments = Segments(self.tokenizer.vocabulary_size)
            self.work()
            stack.pop_all()

    def close(self) -> None:
        """Close the file of documents, and keep no others mapped."""
        self.release()
        self.segments.close()

    def release(self) -> None:
        """Close the file of documents, and leave the segments to another."""
        with self._lock:
            self._documents.close()

    def work(self) -> bool:
        """Show what the writer has committed; return False if that is nothing new."""
        with self._lock:
            version = self._documents.version()
            if version == self._version:
                return False
            with self._documents.one_state():
                id = self._documents.datastore_id()
                may_keep = id == self._datastore_id
                segments = self.segments.stored(
                    self._directory, self._documents, Limits(), may_keep=may_keep
                )
                newest = self._documents.newest()
            self.segments.set(segments, newest)
            self._version, self._datastore_id = version, id
            return True
