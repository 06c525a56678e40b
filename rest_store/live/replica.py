"""A copy of a live datastore elsewhere, which this machine keeps up to date."""

from __future__ import annotations

import hashlib
import math
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
from rest_store.datastore.validation import label
from rest_store.errors import (
    DatastoreNotFoundError,
    DeadlineError,
    DocumentError,
    ProtocolError,
    StorageError,
    WriterError,
    describe,
)
from rest_store.live.directory import is_live
from rest_store.live.encoding import NewDocument
from rest_store.live.follower import Follower
from rest_store.live.retention import Limits, Retention
from rest_store.live.upstream import Changes, Document, Upstream
from rest_store.live.writer import Writer

_AT_ONCE = 1 << 22  # bytes of tokens that are applied together while a replica catches up
_PATIENCE = 10.0  # seconds until what was changed upstream is visible here, or a cache that is being begun is there


def replica_directory(location: str, cache: Path) -> Path:
    """Return the directory in `cache` of the replica of what is at `location`."""
    name = re.sub(r"[^\w.-]+", "-", location).strip("-.")[-80:]
    return cache / f"{name}-{hashlib.sha256(location.encode()).hexdigest()[:16]}"


class Replica:
    """Keeps the copy of an upstream up to date, or reads it while another process of this machine does. Thread-safe.

    Whoever holds the writer's lock receives the upstream's changes. The others follow its files, and one of them takes
    over when the lock is free. Queries read what is on disk, whether or not the upstream is there.

    Args:
        directory: of the copy; it exists.
        upstream: what it is a copy of; closed with this.
        tokenizer: identity of that which it must have; None: any.
        tokenizer_json: serialization of the tokenizer, which a new one stores to encode texts.

    Raises:
        RestStoreError: there is no copy yet, and the upstream cannot be reached or refuses.
        TokenizerMismatchError: the copy, or else the upstream, has another tokenizer.
        LiveFormatError: the directory has a copy of something else.
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
        self._head = 0
        self._backend = self._opened(tokenizer)
        self.tokenizer = self._backend.tokenizer
        self.segments = self._backend.segments

    def _opened(self, tokenizer: TokenizerIdentity | None) -> Writer | Follower:
        if not is_live(self._directory):
            found = self._upstream.tokenizer
            found.require_same(tokenizer or found, self.location)
            tokenizer = found
        end = time.monotonic() + _PATIENCE
        while True:
            try:
                return Writer(self._directory, tokenizer, Retention(), self._json, self.location)
            except WriterError:
                try:
                    return Follower(self._directory, tokenizer, self.location)
                except (DatastoreNotFoundError, StorageError):  # another process is beginning it
                    if time.monotonic() > end:
                        raise
                    time.sleep(0.02)

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
        return max(0, self._head - self.segments.newest) if isinstance(self._backend, Writer) else None

    def work(self) -> bool:
        """Do what is to be done besides receiving changes: merging, or reading what another process has received."""
        backend = self._backend
        if isinstance(backend, Follower):
            with self._lock:
                return self._takes_over(backend) or backend.work()
        return backend.work()

    def _takes_over(self, follower: Follower) -> bool:
        try:
            directory, segments = self._directory, follower.segments
            self._backend = Writer(directory, self.tokenizer, Retention(), None, self.location, segments)
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
                self._stream = iter(self._upstream.changes(*writer.position()))
            changes = self._next(self._stream, self.segments.newest)
            if changes.added or changes.removed or changes.last != self.segments.newest:
                writer.apply(changes)
        except BaseException:
            self._stream = None
            raise
        return True

    def _next(self, stream: Iterator[Changes], after: int) -> Changes:
        """Return the next changes, together with those after them while there are many."""
        whole = changes = self._checked(next(stream), after)
        added, removed, size = list(changes.added), list(changes.removed), 0
        while changes.first <= changes.last < changes.head and size < _AT_ONCE:
            size += sum(len(document.symbols) for document in changes.added)
            changes = self._checked(next(stream), changes.last)
            if changes.first <= whole.first:
                raise self._wrong("the first change", changes.first, f"above {whole.last}")
            added += changes.added
            removed += changes.removed
        self._head = changes.head
        return whole._replace(last=changes.last, head=changes.head, added=added, removed=removed)

    def _checked(self, changes: Changes, after: int) -> Changes:
        """Return changes that may follow number `after`; raise ProtocolError for others."""
        first, last = changes.first, changes.last
        if first not in (1, after + 1):
            raise self._wrong("the first change", first, f"{after + 1}, the next one, or 1")
        if not first - 1 <= last <= changes.head:
            raise self._wrong("the last change", last, f"{first - 1}..{changes.head}")
        for numbers in (
            [first - 1, *(document.number for document in changes.added), last + 1],
            [first - 1, *(removal.number for removal in changes.removed), last + 1],
        ):
            if any(one >= other for one, other in pairwise(numbers)):
                raise self._wrong("the numbers of changes", "out of order", f"ascending in {first}..{last}")
        if not all(0 < some.first <= some.last < some.number for some in changes.removed):
            raise self._wrong("a removal", "of what is yet to come", "of earlier changes")
        self._check_documents(changes.added)
        return changes

    def _check_documents(self, documents: Sequence[Document]) -> None:
        """Raise ProtocolError unless these may be documents."""
        if not documents:
            return
        width = token_width(self.tokenizer.vocabulary_size)
        for document in documents:
            try:
                label(self.location, "a namespace", document.namespace)
                label(self.location, "a group", document.group)
            except DocumentError as error:
                raise ProtocolError(str(error)) from None
            is_whole = len(document.symbols) > 0 and len(document.symbols) % width == 0
            is_sound = len(document.digest) == 16 and 0 <= document.epoch < 2**62 and math.isfinite(document.added)
            if not is_whole or not is_sound:
                raise self._wrong(f"document {document.number}", "malformed", "one with tokens")
        symbols = np.frombuffer(b"".join(document.symbols for document in documents), np.uint8)
        if (greatest := int(decode_symbols(symbols, width).max())) >= self.tokenizer.vocabulary_size:
            raise self._wrong("a token", greatest, f"0..{self.tokenizer.vocabulary_size - 1}")

    def _wrong(self, what: str, found: object, expected: str) -> ProtocolError:
        return ProtocolError(describe(self.location, what, found, expected))

    # --- What is changed upstream -------------------------------------------------------------------------------------

    def add(self, documents: Sequence[NewDocument], namespace: str = "") -> set[str]:
        """Add documents upstream; return the ids of those that are new once they are visible here."""
        if not documents:
            return set()
        width = token_width(self.tokenizer.vocabulary_size)
        tokens = [decode_symbols(np.frombuffer(document.symbols, np.uint8), width) for document in documents]
        labels = {"namespace": namespace, "group": documents[0].group}
        ids = [document.id for document in documents]
        added, number = self._upstream.add(tokens, ids, **labels, epoch=documents[0].epoch)
        self._wait(number)
        return set(added.added)

    def delete(self, ids: Sequence[str], namespace: str = "") -> int:
        """Delete documents upstream; return how many there were once none is visible here."""
        return self._waited(*self._upstream.delete(ids, namespace=namespace))

    def delete_before(self, epoch: int, namespace: str = "") -> int:
        """Delete the documents of earlier epochs, likewise."""
        return self._waited(*self._upstream.delete_before(epoch, namespace=namespace))

    def _waited(self, count: int, number: int) -> int:
        self._wait(number)
        return count

    def _wait(self, number: int) -> None:
        """Return once change `number` is visible here; raise DeadlineError if it is not for long."""
        if not self.segments.wait(number - 1, _PATIENCE):
            raise DeadlineError(f"{self.location}: changed there, but not visible here within {_PATIENCE:g} seconds")

    def limit(self, namespace: str, retention: Retention) -> None:
        """Refuse: limits are the upstream's."""
        raise WriterError(describe(self.location, "a limit", "set on a replica", "set where the datastore is"))

    def compact(self) -> None:
        """Write all documents to files, and merge these, unless another process does."""
        if isinstance(backend := self._backend, Writer):
            backend.compact()
