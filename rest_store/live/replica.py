"""A copy, on this machine, of a live datastore of a service: `Replica`."""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import ClassVar

import numpy as np

from rest_store.datastore.header import token_width
from rest_store.datastore.shard import decode_symbols
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.datastore.validation import IntSequence
from rest_store.errors import (
    DatastoreNotFoundError,
    DeadlineError,
    ProtocolError,
    StorageError,
    WriterError,
    describe,
)
from rest_store.live.added_documents import AddedDocuments
from rest_store.live.directory import is_live, make_directory
from rest_store.live.encoder import document_labels, require_document
from rest_store.live.follower import Follower
from rest_store.live.records import Changes, DocumentRecord, Removal, is_time
from rest_store.live.replica_writer import ReplicaWriter
from rest_store.live.retention import Retention, RetentionTable
from rest_store.live.segments import Segments
from rest_store.live.sharing import MAX_SHARED_AFTER
from rest_store.live.upstream import Upstream

# For a change at the service to become visible here, and for another process to create the copy.
_PATIENCE_SECONDS = 10.0
_RETRY_SECONDS = 0.02
_DIGEST_BYTES = 16
_MAX_NUMBER = 2**63 - 1
_MAX_EPOCH = 2**62 - 1


def replica_directory(location: str, cache: Path) -> Path:
    """Return the directory in `cache` of the replica of the live datastore at `location`."""
    name = re.sub(r"[^\w.-]+", "-", location).strip("-.")[-80:]
    digest = hashlib.sha256(location.encode()).hexdigest()[:16]
    return cache / f"{name}-{digest}"


class Replica:
    """Keeps the copy of an upstream up to date, or follows another process that does. Thread-safe.

    The process with the writer's lock receives the upstream's changes. The other processes of this
    machine follow its files, and one of them takes over when the lock is free. Queries read the
    copy, whether or not the upstream can be reached. Additions and deletions are sent to the
    upstream, and come back as changes.

    Args:
        directory: the directory of the copy; it is made if it is absent.
        upstream: the upstream; `close` closes it.
        tokenizer: identity of the tokenizer that the upstream must have; None: any.
        tokenizer_json: serialization of the tokenizer; a new copy stores it to encode texts.

    Raises:
        RestStoreError: there is no copy yet, and the upstream refuses or cannot be reached.
        TokenizerMismatchError: the copy, or else the upstream, has another tokenizer.
        DatastoreFormatError: the directory has a copy of something else.
        StorageError: the copy cannot be read or written.

    Attributes:
        idle_seconds: the longest pause between two looks.
        tokenizer: identity of the tokenizer of all tokens.
        retention: without limits, since only the upstream evicts.
        segments: the present segments.
        location: the location of the upstream.
    """

    retention = RetentionTable()
    idle_seconds: ClassVar[float] = 0.02  # changes of others are visible so soon

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
        self._tokenizer_json = tokenizer_json
        # Held while another process is followed, and to take over from it.
        self._lock = threading.Lock()
        self._stream: Iterator[Changes] | None = None
        self._head = 0  # number of the newest change that the upstream has announced
        self._datastore_id = ""  # the upstream's, as stored in the copy
        self._role = self._open()
        self.tokenizer = self._role.tokenizer
        self.segments = self._role.segments
        try:
            if tokenizer is not None:
                self.tokenizer.require_same(tokenizer, self.location)
        except BaseException:
            self._role.close()
            raise

    def _open(self) -> ReplicaWriter | Follower:
        """Open the copy for writing, or for reading if another process writes it."""
        # The upstream is called first: nothing is made if it cannot be reached.
        tokenizer = None if is_live(self._directory) else self._upstream.tokenizer
        make_directory(self._directory)
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            try:
                return self._open_writer(tokenizer)
            except WriterError:
                pass
            try:
                return Follower(self._directory, None, self.location)
            except (DatastoreNotFoundError, StorageError):  # another process is creating it
                if time.monotonic() > deadline:
                    raise
            time.sleep(_RETRY_SECONDS)

    def _open_writer(self, tokenizer: TokenizerIdentity | None) -> ReplicaWriter:
        """Open the copy for writing, and create it if that was begun by a process that was killed.

        Raises:
            WriterError: another process writes it.
        """
        try:
            return self._writer(tokenizer)
        except DatastoreNotFoundError:
            return self._writer(self._upstream.tokenizer)

    def _writer(
        self, tokenizer: TokenizerIdentity | None, segments: Segments | None = None
    ) -> ReplicaWriter:
        return ReplicaWriter(
            self._directory, tokenizer, self.location, self._tokenizer_json, segments
        )

    def tasks(self) -> list[Callable[[], bool]]:
        """Return the work for background threads."""
        return [self.work, self.receive]

    def disconnect(self) -> None:
        """End all calls that wait for the upstream."""
        self._upstream.close()

    def close(self) -> None:
        """Disconnect, and close the files."""
        self.disconnect()
        with self._lock:
            self._role.close()

    @property
    def behind(self) -> int | None:
        """How many announced changes are not applied yet; None: another process applies them."""
        if isinstance(self._role, Follower):
            return None
        return max(0, self._head - self.segments.newest)

    def work(self) -> bool:
        """Merge segments, or read changes of the process that writes the copy.

        Returns:
            Whether there may be more to do.
        """
        role = self._role
        if isinstance(role, ReplicaWriter):
            return role.work()
        with self._lock:
            return self._takes_over(role) or role.work()

    def _takes_over(self, follower: Follower) -> bool:
        """Write the copy from now on, if no other process does; return whether."""
        try:
            self._role = self._writer(None, follower.segments)
        except WriterError:
            return False
        follower.release()
        return True

    # --- Changes of the upstream ------------------------------------------------------------------

    def receive(self) -> bool:
        """Receive a message of changes and apply it; return False while another process does.

        Raises:
            ProtocolError: the changes contradict each other, or the changes before.
            RestStoreError: the upstream refuses, cannot be reached, or has another tokenizer.
            StorageError: the changes cannot be written.
        """
        writer = self._role
        if not isinstance(writer, ReplicaWriter):
            return False
        try:
            if self._stream is None:
                self._stream = self._connected(writer)
            changes = next(self._stream)
            newest = self.segments.newest
            self._require_order(changes, newest)
            self._require_documents(changes.added)
            self._head = changes.head
            has_changes = (
                changes.first <= changes.last
                or changes.first != newest + 1
                or changes.shared_after != self.segments.shared_after
            )
            if has_changes or changes.datastore_id != self._datastore_id:
                writer.apply(changes)
                self._datastore_id = changes.datastore_id
        except BaseException:
            self._stream = None
            raise
        return True

    def _connected(self, writer: ReplicaWriter) -> Iterator[Changes]:
        """Return the upstream's changes after those of the copy."""
        self.tokenizer.require_same(self._upstream.tokenizer, self.location)
        position, self._datastore_id = writer.position()
        return iter(self._upstream.changes(position, self._datastore_id))

    def _require_order(self, changes: Changes, newest: int) -> None:
        """Raise ProtocolError unless changes may follow change number `newest`."""
        first = changes.first
        last = changes.last
        if (
            first in (1, newest + 1)
            and first - 1 <= last <= changes.head <= _MAX_NUMBER
            and _is_ascending(first - 1, changes.added, last + 1)
            and _is_ascending(first - 1, changes.removed, last + 1)
            and all(map(_is_removal_of_earlier, changes.removed))
            and 1 <= changes.shared_after <= MAX_SHARED_AFTER
        ):
            return
        raise ProtocolError(
            f"{self.location}: changes {first}..{last} of {changes.head} are not in order, expected"
            f" ascending numbers from {newest + 1} or 1 on"
        )

    def _require_documents(self, documents: Sequence[DocumentRecord]) -> None:
        """Raise ProtocolError unless these are documents with tokens of the vocabulary.

        This is the one validation of an upstream's documents. Their symbols are stored as they are.
        """
        width = token_width(self.tokenizer.vocabulary_size)
        for document in documents:
            if not _is_well_formed(document, width):
                raise ProtocolError(f"{self.location}: document {document.number} is malformed")
        symbols = b"".join(document.symbols for document in documents)
        tokens = decode_symbols(np.frombuffer(symbols, np.uint8), width)
        greatest = int(tokens.max(initial=0))
        if greatest >= self.tokenizer.vocabulary_size:
            expected = f"0..{self.tokenizer.vocabulary_size - 1}"
            raise ProtocolError(describe(self.location, "a token", greatest, expected))

    # --- Changes of callers -----------------------------------------------------------------------

    def add(
        self,
        documents: Sequence[IntSequence],
        ids: Sequence[str],
        *,
        namespace: str,
        group: str | Sequence[str],
        epoch: int | Sequence[int],
    ) -> AddedDocuments:
        """Add documents at the upstream, which validates them; return once they are visible here.

        The arguments are those of `Writer.add`. The documents of each group and epoch are one call.
        Where there are several calls, all documents are validated before the first.
        """
        if not documents:
            return AddedDocuments([], set())
        labels = document_labels(group, epoch, len(documents))
        if len(set(labels)) > 1:
            for index, document in enumerate(documents):
                require_document(document, index, self.tokenizer.vocabulary_size)
        first_places = {id: place for place, id in reversed(list(enumerate(ids)))}
        new: set[str] = set()
        newest = 0
        for own in dict.fromkeys(labels[place] for place in sorted(first_places.values())):
            own_group, own_epoch = own
            places = [place for place in sorted(first_places.values()) if labels[place] == own]
            added, number = self._upstream.add(
                [documents[place] for place in places],
                [ids[place] for place in places],
                namespace=namespace,
                group=own_group,
                epoch=own_epoch,
            )
            new.update(added.added)
            newest = max(newest, number)
        self._wait(newest)
        return AddedDocuments(ids, new)

    def delete(self, ids: Sequence[str], namespace: str = "") -> int:
        """Delete documents at the upstream; return their count once none is visible here."""
        count, number = self._upstream.delete(ids, namespace=namespace)
        self._wait(number)
        return count

    def discard(self, ids: Sequence[str], namespace: str) -> int:
        """Raise WriterError, since segments are the upstream's."""
        raise WriterError(
            f"{self.location}: documents cannot be discarded on a replica; delete them, or discard"
            " them where the datastore is"
        )

    def _wait(self, number: int) -> None:
        """Return once change `number` is visible here; raise DeadlineError after some seconds."""
        if not self.segments.wait(number - 1, _PATIENCE_SECONDS):
            raise DeadlineError(
                f"{self.location}: the change was made there, but it is not visible here within"
                f" {_PATIENCE_SECONDS:g} seconds"
            )

    def set_retention(self, namespace: str, retention: Retention) -> None:
        """Raise WriterError, since only the upstream evicts."""
        raise WriterError(
            f"{self.location}: retention cannot be set on a replica; set it where the datastore is"
        )

    def compact(self) -> None:
        """Compact the copy, as `Writer.compact`, unless another process writes it."""
        role = self._role
        if isinstance(role, ReplicaWriter):
            role.compact()


def _is_ascending(
    before: int, changes: Sequence[DocumentRecord] | Sequence[Removal], after: int
) -> bool:
    """Return whether the numbers of changes ascend, all of them between two others."""
    numbers = [before, *(change.number for change in changes), after]
    return all(number < following for number, following in pairwise(numbers))


def _is_removal_of_earlier(removal: Removal) -> bool:
    """Return whether the removed documents have numbers in order, before the removal's."""
    return 0 < removal.first <= removal.last < removal.number


def _is_well_formed(document: DocumentRecord, width: int) -> bool:
    """Return whether the fields of a document are valid, apart from its tokens' values."""
    has_tokens = len(document.symbols) > 0 and len(document.symbols) % width == 0
    return (
        has_tokens
        and len(document.digest) == _DIGEST_BYTES
        and 0 <= document.epoch <= _MAX_EPOCH
        and is_time(document.added)
    )
