"""One datastore of a service: its name, its description, whether it can be read; and writing of a live one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeVar

from google.protobuf.timestamp_pb2 import Timestamp

from rest_store.datastore.datastore import Datastore, DatastoreInfo
from rest_store.datastore.header import FORMAT_VERSION
from rest_store.datastore.manifest import TOKENIZER_FILE_NAME
from rest_store.datastore.part import Part
from rest_store.datastore.store import Store
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.errors import DatastoreClosedError, DatastoreUnavailableError, StorageError, WriterError
from rest_store.live.opening import is_live
from rest_store.service.server.requests import Tokens
from rest_store.v1 import datastore_pb2 as pb

if TYPE_CHECKING:
    from rest_store.live.live_info import LiveInfo

_WRITING_THREADS = 4  # callers that share a commit

T = TypeVar("T")

_log = logging.getLogger(__name__)


class HostedDatastore:
    """One datastore under its name. Thread-safe.

    Args:
        name: under which clients select it.
        store: the datastore.
    """

    remedy: ClassVar[str]  # for the message when it cannot be read

    def __init__(self, name: str, store: Store) -> None:
        self.name = name
        self.store = store

    def try_out(self) -> None:
        """Draft once, so that a datastore that cannot be read is refused before it is served."""
        with reading([self]):
            self.store.draft([0], max_nodes=1)

    @property
    def fingerprint(self) -> str:
        """Fingerprint of its tokenizer."""
        return self.store.tokenizer.fingerprint

    @property
    def is_readable(self) -> bool:
        """Whether it can be read, as far as queries have shown."""
        try:
            self.store.require_readable()
        except (DatastoreUnavailableError, DatastoreClosedError):
            return False
        return True

    def info(self) -> DatastoreInfo | LiveInfo:
        """Return its numbers of tokens, documents, shards and bytes."""
        raise NotImplementedError

    def describe(self, *, writable: bool) -> pb.DatastoreDescription:
        """Return its description for a call that may write, or may not."""
        info = self.info()
        tokenizer = info.tokenizer
        return pb.DatastoreDescription(
            name=self.name,
            tokenizer=pb.TokenizerDescription(
                name=tokenizer.name,
                fingerprint=tokenizer.fingerprint,
                vocabulary_size=tokenizer.vocabulary_size,
                special_tokens=tokenizer.special_tokens,
                added_tokens=tokenizer.added_tokens,
            ),
            token_count=info.token_count,
            document_count=info.document_count,
            shard_count=info.shard_count,
            size=info.size,
            built=_timestamp(info.built),
            format_version=FORMAT_VERSION,
        )


class HostedFrozenDatastore(HostedDatastore):
    """A datastore that was built, in the directory `path`, or a part of it."""

    remedy: ClassVar[str] = "restore and reload it"

    def __init__(self, name: str, path: Path, part: Part | None = None) -> None:
        self.path = path
        self._part = part
        self._frozen = Datastore.open(path, part=part)
        super().__init__(name, self._frozen)

    def reopened(self) -> HostedFrozenDatastore:
        """Return the datastore that is in the directory now.

        Opening verifies the manifest, the headers, and the sizes of all files. The content is not read, which takes
        minutes for a large datastore; `rest-store check` does that, before a datastore takes the place of another.

        Raises:
            DatastoreError, DatastoreUnavailableError: it cannot be opened, or not be read.
            TokenizerMismatchError: it has another tokenizer.
        """
        new = HostedFrozenDatastore(self.name, self.path, self._part)
        if new.fingerprint != self.fingerprint:
            self.store.tokenizer.require_same(new.store.tokenizer, self.path)
        new.try_out()
        return new

    def info(self) -> DatastoreInfo:
        """Return its numbers of tokens, documents, shards and bytes."""
        return self._frozen.info()

    def describe(self, *, writable: bool) -> pb.DatastoreDescription:
        """Return its description."""
        description = super().describe(writable=writable)
        if (part := self._part) is not None:
            description.part.number, description.part.parts = part.number, part.parts
            description.part.build = self._frozen.manifest.digest
        return description

    @property
    def stored_tokenizer(self) -> StoredTokenizer | TokenizerIdentity:
        """Its tokenizer, with which a live datastore can be created."""
        file = self.path / TOKENIZER_FILE_NAME
        identity = self.store.tokenizer
        return StoredTokenizer(identity, file) if file.is_file() else identity


class HostedLiveDatastore(HostedDatastore):
    """A live datastore, opened for writing: the service is the process that writes it.

    It writes in threads of its own, so neither drafts nor other datastores wait for its disk.

    Args:
        name: under which clients select it.
        path: its directory; the datastore is created if it is absent or empty.
        tokenizer: for a datastore that is created, as `LiveDatastore.open` takes it; None: it has to exist.

    Raises:
        DatastoreError, TokenizerMismatchError: as `LiveDatastore.open`.
    """

    remedy: ClassVar[str] = "restart the service, which sorts it anew from its documents"

    def __init__(self, name: str, path: Path, tokenizer: object) -> None:
        from rest_store.live.live_datastore import LiveDatastore  # needs more packages than a frozen one

        path = path.absolute()  # `_named` replaces it in messages; a short relative path may be part of other words
        self._live = LiveDatastore.open(path, tokenizer=None if is_live(path) else tokenizer)
        self._threads = ThreadPoolExecutor(_WRITING_THREADS, f"write {name}")
        super().__init__(name, self._live)

    def info(self) -> LiveInfo:
        """Return its numbers of tokens, documents, segments and bytes."""
        return self._live.info()

    def describe(self, *, writable: bool) -> pb.DatastoreDescription:
        """Return its description for a call that may write, or may not."""
        info, description = self.info(), super().describe(writable=writable)
        description.live.CopyFrom(
            pb.LiveDescription(
                memory_token_count=info.memory_token_count,
                oldest=_timestamp(info.oldest),
                max_tokens=info.max_tokens or 0,
                max_age=info.max_age or 0.0,
                failure=self._named(info.failure or ""),
                writable=writable,
            )
        )
        return description

    def add(self, documents: Sequence[Tokens], ids: Sequence[str]) -> Future[list[str]]:
        """Add documents, as `LiveDatastore.add` does; a StorageError names the datastore."""
        return self._threads.submit(self._written, lambda: self._live.add(documents, ids))

    def delete(self, ids: Sequence[str]) -> Future[int]:
        """Delete documents, as `LiveDatastore.delete` does; a StorageError names the datastore."""
        return self._threads.submit(self._written, lambda: self._live.delete(ids))

    def close(self) -> None:
        """Close it after the writes in progress. Those that have not begun are left out: nobody waits for them."""
        self._threads.shutdown(cancel_futures=True)
        self._live.close()

    def _written(self, write: Callable[[], T]) -> T:
        try:
            return write()
        except (StorageError, WriterError) as error:
            _log.warning("datastore %s: %s", self.name, error)
            raise StorageError(self._named(str(error))) from None

    def _named(self, text: str) -> str:
        """Return `text` with the datastore's name in place of its directory, which clients are not told."""
        return text.replace(str(self._live.path), f"datastore {self.name!r}")


@dataclass(frozen=True)
class StoredTokenizer:
    """The tokenizer of a built datastore: its identity, and the file of it."""

    identity: TokenizerIdentity
    file: Path

    def to_json(self) -> str:
        """Return its serialization."""
        return self.file.read_text(encoding="utf-8")


@contextmanager
def reading(served: Iterable[HostedDatastore]) -> Iterator[None]:
    """Run a block of queries; after it, raise DatastoreUnavailableError unless all of `served` are readable."""
    try:
        yield
    finally:
        require_readable(served)


def require_readable(served: Iterable[HostedDatastore]) -> None:
    """Raise DatastoreUnavailableError, which tells names and not paths, unless all of `served` are readable."""
    for datastore in served:
        if not datastore.is_readable:
            found = "a file was truncated, or its disk fails"
            raise DatastoreUnavailableError(f"datastore {datastore.name!r} is unavailable: {found}; {datastore.remedy}")


def _timestamp(time: datetime | None) -> Timestamp | None:
    """Return a time as a message has it."""
    if time is None:
        return None
    message = Timestamp()
    message.FromDatetime(time)
    return message
