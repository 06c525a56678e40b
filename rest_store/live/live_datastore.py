"""A datastore that grows while it is queried: `LiveDatastore`."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

import pydivsufsort  # noqa: F401 - what sorts segments

from rest_store.datastore import locations
from rest_store.datastore.render import counted
from rest_store.datastore.tokenizer import TokenizerIdentity, identity_of
from rest_store.errors import ArgumentError, DatastoreClosedError, WriterError, describe
from rest_store.live.background import Background
from rest_store.live.directory import make_directory, require_live
from rest_store.live.documents import Documents
from rest_store.live.encoder import Encoder
from rest_store.live.follower import Follower
from rest_store.live.live_info import LiveInfo
from rest_store.live.namespace import Namespace
from rest_store.live.replica import Replica, replica_directory
from rest_store.live.retention import Retention
from rest_store.live.segments import Segments
from rest_store.live.upstream import Changes
from rest_store.live.writer import Writer
from rest_store.loading.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from rest_store.service.channel import Tls


class LiveDatastore(Namespace):
    """A directory of documents that one process writes and any
    number read. Open one with `LiveDatastore.open`.

    Answers what a `Datastore` of the same documents would. What `add` stored when it returned
    survives a kill and a loss of power. Documents are in SQLite (`documents.sqlite`). They are
    sorted into segments, an LSM tree: the newest few thousand tokens are in memory, the others in
    files, which are shards in the format of FORMAT.md and are made again from the documents if they
    are damaged.

    `close` ends it, and so do the end of the interpreter and, some seconds later, that of the last
    reference. After a fork, only the parent may go on using it.

    Thread-safe; the native kernel releases the GIL.

    Attributes:
        path: its directory; of a replica, that of the copy.
        tokenizer: identity of the tokenizer that its tokens are from.
        read_only: whether it was opened for reading.
    """

    name = ""

    def __init__(
        self, path: Path, backend: Writer | Follower | Replica, *, read_only: bool
    ) -> None:
        self.path = path
        self.tokenizer = backend.tokenizer
        self.read_only = read_only
        self._process = os.getpid()
        self._backend = backend
        self.segments: Segments | None = backend.segments  # None: it is closed
        self._location = path.absolute()
        self.encoder = Encoder(self.tokenizer, self._location)
        self._before_close: dict[Callable[[LiveDatastore], object], None] = {}
        self._closing = threading.Lock()
        works = [backend.work, backend.receive] if isinstance(backend, Replica) else [backend.work]
        self._background = [Background(self, work, abandoned=backend.close) for work in works]
        _opened.add(self)

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        tokenizer: object = None,
        read_only: bool = False,
        max_tokens: int | None = None,
        max_age: float | None = None,
        max_epochs: int | None = None,
        cache: str | Path | None = None,
        token: str | None = None,
        tls: Tls | None = None,
    ) -> LiveDatastore:
        """Open the live datastore in directory `path`, or begin one.

        Or a replica of one that a service has.

        A replica is a copy on this machine, with every document that the service has, a moment
        after it was added there. It is in a directory under `cache`, which any number of processes
        open; one of them keeps it up to date. It opens and answers while the service is away, too.
        What is added to it and deleted from it is at the service.

        Args:
            path: its directory; a new one is made if it is absent or empty, unless `read_only`. Or
                the location of one that a service has, such as `host:50051/chat`.
            tokenizer: the tokenizer in use, as in `Datastore.open`; the datastore must have the
                same. A new one needs it; with a `TokenizerIdentity` alone it takes no texts.
            read_only: another process writes it, or may; what it adds is visible here some
                hundredths of a second later, where a core is free.
            max_tokens: most tokens kept; the oldest documents beyond it are evicted, up to an
                eighth of it at once. None: as it was opened before; no limit for a new one.
            max_age: most seconds that a document is kept; it may go up to an eighth of that
                earlier, and stays while no process writes the datastore: where it was off for
                longer than that, or its clock says so, time goes on from the newest document. None:
                likewise.
            max_epochs: epochs that are kept: so many up to the greatest of a document. None:
                likewise. Each namespace keeps so much, unless it has limits of its own.
            cache: where replicas are kept; None: `~/.cache/rest-store`. Whoever may read its files
                reads all documents, whatever `token` allows.
            token: as in `DatastoreClient`, as is `tls`.
            tls: how to reach the service.

        Raises:
            DatastoreNotFoundError: there is none, and no `tokenizer` to begin one with; or no path
                can be as `path` is.
            DatastoreFormatError: the directory holds a frozen datastore, or something else.
            TokenizerLoadError: there is no such `tokenizer`.
            TokenizerMismatchError: `tokenizer` differs from the datastore's.
            WriterError: another process writes it.
            StorageError: the directory or the documents cannot be read or written.
            ArgumentError: a limit is not positive, or given for a replica, whose limits are the
                service's.
            ServiceError: there is no replica yet, and the service cannot be reached or refuses.
        """
        is_replica = locations.is_remote(path)
        kept = locations.default_cache() if cache is None else locations.local_directory(cache)
        directory = (
            replica_directory(str(path), kept) if is_replica else locations.local_directory(path)
        )
        absolute = directory.absolute()  # also when the program changes its working directory
        retention = Retention.checked(max_tokens, max_age, max_epochs)
        if is_replica and retention != Retention():
            raise ArgumentError(
                describe(str(path), "a limit", "given for a replica", "set where the datastore is")
            )
        require_live(directory, new=is_replica or (tokenizer is not None and not read_only))
        loaded = (
            None if isinstance(tokenizer, TokenizerIdentity | None) else load_tokenizer(tokenizer)
        )
        # A path is not loaded again.
        named = loaded if isinstance(tokenizer, str | os.PathLike) else tokenizer
        identity = None if named is None else identity_of(named)
        if read_only and not is_replica:
            return cls(directory, Follower(absolute, identity), read_only=True)
        json = None if loaded is None else loaded.json
        if not is_replica:
            make_directory(directory)
            return cls(directory, Writer(absolute, identity, retention, json), read_only=False)
        # Loads gRPC, which datastores on this machine do not need.
        from rest_store.service.client.service_upstream import ServiceUpstream

        upstream = ServiceUpstream(str(path), token=token, tls=tls)
        try:
            return cls(directory, Replica(absolute, upstream, identity, json), read_only=read_only)
        except BaseException:
            upstream.close()
            raise

    def close(self) -> None:
        """Close the datastore; every later call raises DatastoreClosedError. May be called again.

        Additions in progress are completed. Files are unmapped once the queries in progress and the
        sessions that draft from them have let go of them.
        """
        # In a child the threads are gone, and the files are the parent's.
        if os.getpid() != self._process:
            self.segments = None
            return
        for call in tuple(self._before_close):
            call(self)
        with self._closing:
            self.segments = None
            if isinstance(self._backend, Replica):
                self._backend.disconnect()
            for background in self._background:
                background.stop()
            self._backend.close()

    def before_close(self, call: Callable[[LiveDatastore], object]) -> None:
        """Have `close` call `call` with this datastore first, for what is queued to be added.

        Once for each `call`.
        """
        self._before_close[call] = None

    @property
    def live(self) -> LiveDatastore:
        """This datastore."""
        return self

    def namespace(self, name: str) -> Namespace:
        """Return the documents of one namespace as a store.

        Raise DocumentError for what is no name.

        No query reads the documents of two namespaces. This datastore itself is the one named "".
        """
        return Namespace(self, name)

    def info(self) -> LiveInfo:
        """Return a description of this datastore as it is now."""
        segments, backend = self._open_segments().all, self._backend
        failures = [
            background.failure for background in self._background if background.failure is not None
        ]
        added = [
            datetime.fromtimestamp(one, timezone.utc)
            for some in segments
            for one in (some.oldest, some.newest)
        ]
        return LiveInfo(
            path=self.path,
            tokenizer=self.tokenizer,
            token_count=sum(segment.token_count for segment in segments),
            document_count=sum(segment.document_count for segment in segments),
            shard_count=len(segments),
            size=sum(file.raw.size for segment in segments for file in segment.view.files),
            built=max(added, default=None),
            oldest=min(added, default=None),
            **asdict(backend.limits.of("")),
            failure=failures[0] if failures else None,
            location=backend.location if isinstance(backend, Replica) else None,
            behind=backend.behind if isinstance(backend, Replica) else 0,
        )

    @property
    def newest_change(self) -> int:
        """Number of the newest change that queries see: once `add` or
        `delete` has returned, of that or a later one.
        """
        return self._open_segments().newest

    def changes(self, after: int, datastore_id: str, *, max_bytes: int = 1 << 20) -> Changes:
        """Return the changes after number `after` that are stored by now, for a replica.

        Args:
            after: the newest change that the replica has.
            datastore_id: of the datastore that it is from. If it is another one, or if removals
                since then have been forgotten, the changes begin with the first.
            max_bytes: that they hold, about; one may be larger.

        Raises:
            StorageError: they cannot be read.
            DatastoreClosedError: after `close`.
        """
        with closing(self.stored()) as stored:
            return stored.changes(after, datastore_id, max_bytes)

    def wait_for_change(self, after: int, timeout: float) -> bool:
        """Wait until queries see changes after number `after`.

        Return whether they do within `timeout` seconds.

        Raises:
            DatastoreClosedError: after `close`, which ends it.
        """
        is_there = self._open_segments().wait(after, timeout)
        self._open_segments()
        return is_there

    def compact(self) -> None:
        """Write all documents that are there now to files, and merge
        these into as few segments as there may be.

        Raises:
            StorageError: that cannot be written; the documents are there as before.
            WriterError, DatastoreClosedError: as in `add`.
        """
        self.writer().compact()

    def stored(self) -> Documents:
        """Return the documents that are stored, to be read and closed.

        Raise DatastoreClosedError, or StorageError.
        """
        self._open_segments()
        return Documents(self._location, read_only=True)

    def _open_segments(self) -> Segments:
        segments = self.segments
        if segments is None:
            raise DatastoreClosedError(describe(self.path, "the datastore", "closed", "open"))
        return segments

    def writer(self) -> Writer | Replica:
        """Return what writes this; raise WriterError or DatastoreClosedError, as `add` does."""
        self._open_segments()
        if self.read_only or isinstance(self._backend, Follower):
            raise WriterError(
                describe(
                    self.path, "the live datastore", "opened for reading", "opened for writing"
                )
            )
        if os.getpid() != self._process:
            expected = "used by the process that opened it"
            raise WriterError(
                describe(self.path, "the live datastore", "used after a fork", expected)
            )
        return self._backend

    def __repr__(self) -> str:
        present = self.segments
        state = (
            "closed"
            if present is None
            else counted(sum(segment.token_count for segment in present.all), "token")
        )
        return f"LiveDatastore({str(self.path)!r}, {state})"


_opened: weakref.WeakSet[LiveDatastore] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Close what is open when the interpreter exits: threads that
    are in native code then would abort the process.
    """
    for live in list(_opened):
        live.close()
