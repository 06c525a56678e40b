"""A copy of a live datastore elsewhere, which this machine keeps up to date."""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np

from rest_store.datastore.header import token_width
from rest_store.datastore.shard import decode_symbols
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.errors import (
    DatastoreNotFoundError,
    DeadlineError,
    ProtocolError,
    StorageError,
    WriterError,
    describe,
)
from rest_store.live.directory import is_live, make_directory
from rest_store.live.follower import Follower
from rest_store.live.retention import Limits, Retention
from rest_store.live.segments import Segments
from rest_store.live.upstream import Changes, DocumentRecord, Upstream, digest_of, is_time
from rest_store.live.writer import Writer

# Seconds until what was changed upstream is visible here, or a cache that is being begun is there.
_PATIENCE = 10.0


def replica_directory(location: str, cache: Path) -> Path:
    """Return the directory in `cache` of the replica of what is at `location`."""
    name = re.sub(r"[^\w.-]+", "-", location).strip("-.")[-80:]
    return cache / f"{name}-{hashlib.sha256(location.encode()).hexdigest()[:16]}"


class Replica:
    """Keeps the copy of an upstream up to date, or reads it while
    another process of this machine does. Thread-safe.

    Whoever holds the writer's lock receives the upstream's changes. The others follow its files,
    and one of them takes over when the lock is free. Queries read what is on disk, whether or not
    the upstream is there.

    Args:
        directory: of the copy; made if it is absent.
        upstream: what it is a copy of; closed with this.
        tokenizer: identity of that which it must have; None: any.
        tokenizer_json: serialization of the tokenizer, which a new one stores to encode texts.

    Raises:
        RestStoreError: there is no copy yet, and the upstream cannot be reached or refuses.
        TokenizerMismatchError: the copy, or else the upstream, has another tokenizer.
        DatastoreFormatError: the directory has a copy of something else.
        StorageError: it cannot be read or written.

    Attributes:
        tokenizer: identity of the tokenizer that the tokens are from.
        limits: none: the upstream evicts what is too much for it.
        segments: the present segments.
        location: of the upstream.
    """

    limits = Limits()

    def __init__(
        self,
        directory: Path,
        upstream: Upstream,
        tokenizer: TokenizerIdentity | None,
        tokenizer_json: str | None = None,
    ) -> None:
        self.location = upstream.location
        self._directory = directory
        self._upstream = upstream
        self._json = tokenizer_json
        self._lock = threading.Lock()  # held by whoever follows another process, or takes over
        self._stream: Iterator[Changes] | None = None
        self._head = 0  # newest change that is known of
        self._datastore_id = ""  # of the upstream, as it is stored here
        self._backend = self._opened()
        self.tokenizer = self._backend.tokenizer
        try:
            self.tokenizer.require_same(tokenizer or self.tokenizer, self.location)
        except BaseException:
            self._backend.close()
            raise
        self.segments = self._backend.segments

    def _opened(self) -> Writer | Follower:
        """Open the copy for writing, or for reading if another process writes it."""
        # Asked before anything is made.
        new = None if is_live(self._directory) else self._upstream.tokenizer
        make_directory(self._directory)
        end = time.monotonic() + _PATIENCE
        while True:
            try:
                try:
                    return self._writer(new)
                except DatastoreNotFoundError:  # its creation was killed
                    return self._writer(self._upstream.tokenizer)
            except WriterError:
                try:
                    return Follower(self._directory, None, self.location)
                except (DatastoreNotFoundError, StorageError):  # another process is beginning it
                    if time.monotonic() > end:
                        raise
                    time.sleep(0.02)

    def _writer(
        self, tokenizer: TokenizerIdentity | None, segments: Segments | None = None
    ) -> Writer:
        return Writer(self._directory, tokenizer, Retention(), self._json, self.location, segments)

    def disconnect(self) -> None:
        """End what waits for the upstream."""
        self._upstream.close()

    def close(self) -> None:
        """Disconnect, and close the files."""
        self.disconnect()
        with self._lock:
            self._backend.close()

    @property
    def behind(self) -> int | None:
        """Changes that are known of and not applied; None while another process applies them."""
        return (
            max(0, self._head - self.segments.newest) if isinstance(self._backend, Writer) else None
        )

    def work(self) -> bool:
        """Do what is to be done besides receiving changes: merging,
        or reading what another process has received.
        """
        backend = self._backend
        if isinstance(backend, Follower):
            with self._lock:
                return self._takes_over(backend) or backend.work()
        return backend.work()

    def _takes_over(self, follower: Follower) -> bool:
        try:
            self._backend = self._writer(None, follower.segments)
        except WriterError:
            return False
        follower.release()
        return True

    def receive(self) -> bool:
        """Receive some changes and apply them; return False while another process does.

        Raises:
            ProtocolError: the upstream's changes contradict themselves, or what was there before.
            RestStoreError: the upstream cannot be reached, has another tokenizer, or refuses.
            StorageError: changes cannot be written.
        """
        writer = self._backend
        if not isinstance(writer, Writer):
            return False
        try:
            if self._stream is None:
                self.tokenizer.require_same(self._upstream.tokenizer, self.location)
                position, self._datastore_id = writer.position()
                self._stream = iter(self._upstream.changes(position, self._datastore_id))
            newest = self.segments.newest
            changes = self._checked(next(self._stream), newest)
            if changes[:3] != (self._datastore_id, newest + 1, newest):
                writer.apply(changes)
                self._datastore_id = changes.datastore_id
        except BaseException:
            self._stream = None
            raise
        return True

    def _checked(self, changes: Changes, after: int) -> Changes:
        """Return changes that may follow number `after`; raise ProtocolError for others."""
        first, last = changes.first, changes.last
        in_order = first in (1, after + 1) and first - 1 <= last <= changes.head < 2**63
        for some in (changes.added, changes.removed):
            numbers = [first - 1, *(change.number for change in some), last + 1]
            in_order = in_order and all(one < other for one, other in pairwise(numbers))
        if not in_order or not all(
            0 < some.first <= some.last < some.number for some in changes.removed
        ):
            found = f"{first}..{last} of {changes.head}, and not in order"
            raise self._wrong("changes", found, f"ascending, from {after + 1} or 1 on")
        if changes.added:
            self._check_documents(changes.added)
        self._head = changes.head
        return changes

    def _check_documents(self, documents: Sequence[DocumentRecord]) -> None:
        """Raise ProtocolError unless these may be documents."""
        width = token_width(self.tokenizer.vocabulary_size)
        for document in documents:
            is_whole = len(document.symbols) > 0 and len(document.symbols) % width == 0
            is_sound = (
                len(document.digest) == 16
                and 0 <= document.epoch < 2**62
                and is_time(document.added)
            )
            if not is_whole or not is_sound:
                raise self._wrong(f"document {document.number}", "malformed", "one with tokens")
        symbols = np.frombuffer(b"".join(document.symbols for document in documents), np.uint8)
        if (
            greatest := int(decode_symbols(symbols, width).max())
        ) >= self.tokenizer.vocabulary_size:
            raise self._wrong("a token", greatest, f"0..{self.tokenizer.vocabulary_size - 1}")

    def _wrong(self, what: str, found: object, expected: str) -> ProtocolError:
        return ProtocolError(describe(self.location, what, found, expected))

    # --- What is changed upstream -----------------------------------------------------------------

    def add(self, documents: Sequence[DocumentRecord], ids: Sequence[str]) -> set[bytes]:
        """Add documents upstream, as `Writer.add`; return once they are visible here."""
        if not documents:
            return set()
        width = token_width(self.tokenizer.vocabulary_size)
        tokens = [
            decode_symbols(np.frombuffer(document.symbols, np.uint8), width)
            for document in documents
        ]
        _, namespace, _, _, group, epoch, _ = documents[0]
        added, number = self._upstream.add(
            tokens, ids, namespace=namespace, group=group, epoch=epoch
        )
        self._wait(number)
        return {digest_of(id, namespace) for id in added.added}

    def delete(self, ids: Sequence[str], namespace: str = "") -> int:
        """Delete documents upstream; return how many there were once none is visible here."""
        count, number = self._upstream.delete(ids, namespace=namespace)
        self._wait(number)
        return count

    def discard(self, ids: Sequence[str], namespace: str, max_positions: int | None) -> list[str]:
        """Refuse: segments are the upstream's."""
        expected = "deleted, or discarded where the datastore is"
        raise WriterError(describe(self.location, "a document", "discarded on a replica", expected))

    def _wait(self, number: int) -> None:
        """Return once change `number` is visible here.

        Raise DeadlineError if it is not for long.
        """
        if not self.segments.wait(number - 1, _PATIENCE):
            raise DeadlineError(
                f"{self.location}: changed there, but not visible here within {_PATIENCE:g} seconds"
            )

    def limit(self, namespace: str, retention: Retention) -> None:
        """Refuse: limits are the upstream's."""
        raise WriterError(
            describe(self.location, "a limit", "set on a replica", "set where the datastore is")
        )

    def compact(self) -> None:
        """Write all documents to files, and merge these, unless another process does."""
        if isinstance(backend := self._backend, Writer):
            backend.compact()
