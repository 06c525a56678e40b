"""A datastore that grows while it is queried: `LiveDatastore`."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import asdict
from datetime import datetime, timezone
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import pydivsufsort  # noqa: F401 - it sorts segments

from rest_store.datastore import locations
from rest_store.datastore.render import counted
from rest_store.datastore.tokenizer import TokenizerIdentity, identity_of
from rest_store.errors import ArgumentError
from rest_store.live.backend import Backend
from rest_store.live.directory import make_directory, require_live
from rest_store.live.follower import Follower
from rest_store.live.live_info import LiveInfo
from rest_store.live.namespace import Namespace
from rest_store.live.records import Changes
from rest_store.live.replica import Replica, replica_directory
from rest_store.live.retention import Retention
from rest_store.live.sharing import parse_shared_after
from rest_store.live.writer import Writer
from rest_store.loading.loaded_tokenizer import LoadedTokenizer, load_tokenizer

if TYPE_CHECKING:
    from rest_store.service.channel import Tls


class LiveDatastore(Namespace):
    """A directory of documents that one process writes and any number read.

    Open one with `LiveDatastore.open`. It is also the store of its namespace "".

    It answers as a `Datastore` of the same documents would. Once `add` has returned, a kill and a
    loss of power lose none of its documents. Documents are in SQLite (`documents.sqlite`). They are
    sorted into segments, an LSM tree: the newest few thousand tokens are in memory, the others in
    files. The files are shards in the format of FORMAT.md. They are made again from the documents
    if they are damaged.

    `close` closes it. So does the end of the interpreter and, some seconds later, the end of the
    last reference to it and its namespaces. After a fork, only the parent may go on using it.

    Thread-safe; the native kernel releases the GIL.

    Attributes:
        path: its directory; the directory of the copy, if it is a replica.
        tokenizer: identity of the tokenizer of all tokens.
    """

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend, "")

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
        shared_after: int | None = None,
        cache: str | Path | None = None,
        token: str | None = None,
        tls: Tls | None = None,
    ) -> LiveDatastore:
        """Open the live datastore in directory `path`, create one, or open a replica.

        A replica is a copy, on this machine, of a live datastore of a service. It has every
        document a moment after the service has it. Any number of processes may open its directory,
        which is in `cache`; one of them keeps it up to date. It also opens and answers while the
        service cannot be reached. Additions and deletions are carried out at the service.

        Args:
            path: the directory. If it is absent or empty, a new datastore is created, unless
                `read_only`. Or the location of a live datastore of a service, such as
                `host:50051/chat`.
            tokenizer: the tokenizer in use, as in `Datastore.open`; the datastore must have the
                same. A new datastore needs it. With a `TokenizerIdentity` alone it takes no texts.
            read_only: open it for reading, because another process writes it, or may. Its changes
                are visible here some hundredths of a second later, where a core is free.
            max_tokens: the most tokens that are kept. The oldest documents beyond it are evicted,
                up to an eighth of `max_tokens` at once. None: as in the last opening; no limit for
                a new datastore.
            max_age: the most seconds that a document is kept. It may be evicted up to an eighth of
                `max_age` earlier, and it stays while no process writes the datastore. If no process
                has written it for longer than `max_age`, or a wrong clock says so, time goes on
                from the newest document. None: as for `max_tokens`.
            max_epochs: how many epochs are kept, up to the greatest epoch of a document. None: as
                for `max_tokens`. All three hold for each namespace without a retention of its own.
            shared_after: how many groups have to write a sequence of tokens before the queries and
                sessions of others tell of it, 1..64. The text of a group itself is drafted for it
                at once. Documents without a group count as those of one group. `read_as`, and the
                `group` of a `DraftSession`, say who reads. None: as in the last opening; 1 for a
                new datastore: everybody may learn of everything.
            cache: the directory of replicas; None: `~/.cache/rest-store`. Everybody who may read
                its files can read all documents, whatever `token` allows.
            token: the bearer token for the service, as in `DatastoreClient`.
            tls: as in `DatastoreClient`.

        Raises:
            DatastoreNotFoundError: there is no live datastore, and no `tokenizer` to create one; or
                `path` is not a possible path.
            DatastoreFormatError: the directory holds a frozen datastore, or something else.
            TokenizerLoadError: there is no such `tokenizer`.
            TokenizerMismatchError: `tokenizer` differs from the datastore's.
            WriterError: another process writes it.
            StorageError: the directory or the documents cannot be read or written.
            ArgumentError: `max_tokens`, `max_age` or `max_epochs` is not positive, or
                `shared_after` is out of range; or one is set for a replica, or `shared_after` for
                reading.
            ServiceError: there is no replica yet, and the service refuses or cannot be reached.
        """
        retention = Retention.parse(max_tokens, max_age, max_epochs)
        shared_after = parse_shared_after(shared_after)
        if locations.is_remote(path):
            if retention != Retention():
                raise ArgumentError(
                    f"{path}: retention cannot be set for a replica; set it where the datastore is"
                )
            if shared_after is not None:
                raise ArgumentError(
                    f"{path}: shared_after cannot be set for a replica; set it where the datastore"
                    " is"
                )
        if read_only and shared_after is not None:
            raise ArgumentError(
                f"{path}: shared_after cannot be set by a reader; set it where the datastore is"
                " written"
            )
        if locations.is_remote(path):
            location = str(path)
            directory = replica_directory(location, _cache_directory(cache))
            require_live(directory, new=True)
            loaded = _loaded_tokenizer(tokenizer)
            # It loads gRPC, which datastores of this machine do not need.
            from rest_store.service.client.service_upstream import ServiceUpstream

            upstream = ServiceUpstream(location, token=token, tls=tls)
            try:
                replica = Replica(
                    directory.absolute(),
                    upstream,
                    _identity(tokenizer, loaded),
                    None if loaded is None else loaded.json,
                )
            except BaseException:
                upstream.close()
                raise
            return cls(Backend(directory, replica, read_only=read_only))
        directory = locations.local_directory(path)
        require_live(directory, new=tokenizer is not None and not read_only)
        loaded = _loaded_tokenizer(tokenizer)
        identity = _identity(tokenizer, loaded)
        if read_only:
            follower = Follower(directory.absolute(), identity)
            return cls(Backend(directory, follower, read_only=True))
        make_directory(directory)
        writer = Writer(
            directory.absolute(),
            identity,
            retention,
            shared_after,
            None if loaded is None else loaded.json,
        )
        return cls(Backend(directory, writer, read_only=False))

    @property
    def read_only(self) -> bool:
        """Whether it was opened for reading."""
        return self.backend.read_only

    def close(self) -> None:
        """Close the datastore; every later call raises DatastoreClosedError.

        Additions in progress are completed. Files are unmapped once no query and no session uses
        them any more. It may be called again.
        """
        self.backend.close()

    def namespace(self, name: str) -> Namespace:
        """Return the documents of one namespace as a store.

        No query reads the documents of two namespaces. This datastore itself is the namespace "".

        Raises:
            DocumentError: `name` is not a valid name.
        """
        return Namespace(self.backend, name)

    def info(self) -> LiveInfo:
        """Return a description of this datastore as it is now."""
        segments = self.backend.segments.all
        role = self.backend.role
        replica = role if isinstance(role, Replica) else None
        files = chain.from_iterable(segment.view.files for segment in segments)
        times: list[float] = []
        for segment in segments:
            times += [segment.oldest, segment.newest]
        return LiveInfo(
            path=self.path,
            tokenizer=self.tokenizer,
            token_count=sum(segment.token_count for segment in segments),
            document_count=sum(segment.document_count for segment in segments),
            shard_count=len(segments),
            size=sum(file.raw.size for file in files),
            built=_date(max(times, default=None)),
            oldest=_date(min(times, default=None)),
            **asdict(role.retention.by_namespace("")),
            shared_after=self.backend.segments.shared_after,
            failure=self.backend.failure,
            location=None if replica is None else replica.location,
            behind=0 if replica is None else replica.behind,
        )

    def changes(self, after: int, datastore_id: str, *, max_bytes: int = 1 << 20) -> Changes:
        """Return the changes after number `after` that are stored now, for a replica.

        Args:
            after: number of the newest change that the replica has.
            datastore_id: id of the datastore that made it. The changes begin with the first if this
                datastore has another id, or has forgotten removals since.
            max_bytes: the size of all changes, about. One change may be larger.

        Raises:
            StorageError: they cannot be read.
            DatastoreClosedError: after `close`.
        """
        with closing(self.backend.stored()) as stored:
            return stored.changes(after, datastore_id, max_bytes)

    def wait_for_change(self, after: int, timeout: float) -> bool:
        """Wait until queries see changes after number `after`, for at most `timeout` seconds.

        Returns:
            Whether queries see such changes.

        Raises:
            DatastoreClosedError: after `close`, which also ends this call.
        """
        has_changed = self.backend.segments.wait(after, timeout)
        _ = self.backend.segments  # raises if it was closed meanwhile
        return has_changed

    def compact(self) -> None:
        """Write all documents to files, and merge these into as few segments as possible.

        Raises:
            StorageError: the files cannot be written; the documents are as before.
            WriterError, DatastoreClosedError: as in `add`.
        """
        self.backend.writer().compact()

    def __repr__(self) -> str:
        if self.backend.is_closed:
            return f"LiveDatastore({str(self.path)!r}, closed)"
        tokens = sum(segment.token_count for segment in self.backend.segments.all)
        return f"LiveDatastore({str(self.path)!r}, {counted(tokens, 'token')})"


def _cache_directory(cache: str | Path | None) -> Path:
    return locations.default_cache() if cache is None else locations.local_directory(cache)


def _loaded_tokenizer(tokenizer: object) -> LoadedTokenizer | None:
    """Return a tokenizer that can encode texts; None: there is only an identity, or nothing."""
    if isinstance(tokenizer, TokenizerIdentity | None):
        return None
    return load_tokenizer(tokenizer)


def _identity(tokenizer: object, loaded: LoadedTokenizer | None) -> TokenizerIdentity | None:
    """Return the identity of a caller's tokenizer."""
    if tokenizer is None:
        return None
    if isinstance(tokenizer, str | os.PathLike):
        return identity_of(loaded)  # it is not loaded twice
    return identity_of(tokenizer)


def _date(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, timezone.utc)
