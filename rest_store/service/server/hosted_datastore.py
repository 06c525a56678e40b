"""One datastore of a service: its name, its description, and whether it can be read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from google.protobuf.timestamp_pb2 import Timestamp

from rest_store.datastore.datastore import Datastore, DatastoreInfo
from rest_store.datastore.header import FORMAT_VERSION
from rest_store.datastore.manifest import TOKENIZER_FILE_NAME
from rest_store.datastore.part import Part
from rest_store.datastore.store import Store
from rest_store.datastore.tokenizer import TokenizerIdentity
from rest_store.errors import DatastoreClosedError, DatastoreUnavailableError
from rest_store.service.served_part import ServedPart
from rest_store.service.server.rights import Rights
from rest_store.v1 import datastore_pb2 as pb

if TYPE_CHECKING:
    from rest_store.live.live_info import LiveInfo

_Stamp = tuple[int, int, int, int]  # device, inode, size, time of the last change of content


class HostedDatastore(ABC):
    """One datastore under its name. Thread-safe.

    Args:
        name: under which clients select it.
        store: the datastore.
        generation: 1, and one more for each reload.

    Attributes:
        part_served: which part of which build it is; None: the whole.
    """

    part_served: ServedPart | None = None
    remedy: ClassVar[str] = "restore and reload it"  # for messages when it cannot be read

    def __init__(self, name: str, store: Store, generation: int) -> None:
        self.name = name
        self.store = store
        self.generation = generation

    @abstractmethod
    def info(self) -> DatastoreInfo | LiveInfo:
        """Return its description."""

    @property
    def fault(self) -> str | None:
        """Why it cannot be read, as far as queries have shown; None if it can."""
        try:
            self.store.require_readable()
        except (DatastoreUnavailableError, DatastoreClosedError):
            return "a file was truncated, or its disk fails"
        return None

    @property
    def fingerprint(self) -> str:
        """Fingerprint of its tokenizer."""
        return self.store.tokenizer.fingerprint

    @property
    def readable(self) -> bool:
        """Whether it can be read, as far as `fault` knows."""
        return self.fault is None

    def require_readable(self) -> None:
        """Raise DatastoreUnavailableError unless `readable`. Called after a query, before its answer is used."""
        fault = self.fault
        if fault is not None:
            raise DatastoreUnavailableError(f"datastore {self.name!r} is unavailable: {fault}; {self.remedy}")

    def try_out(self) -> None:
        """Draft once, so that a datastore that cannot be read is refused before it is served."""
        with Reading([self]):
            self.store.draft([0], max_nodes=1)

    def describe(self, rights: Rights) -> pb.DatastoreDescription:
        """Return its description for a call of Describe with `rights`."""
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
            built=timestamp(info.built),
            format_version=FORMAT_VERSION,
            generation=self.generation,
            part=None if self.part_served is None else self.part_served.message(),
        )


class HostedFrozenDatastore(HostedDatastore):
    """A datastore that was built, in the directory `path`, or a part of it."""

    def __init__(self, name: str, path: Path, generation: int, part: Part | None = None) -> None:
        self.path = path
        self.part = part
        self._frozen = Datastore.open(path, part=part)
        if part is not None:
            self.part_served = ServedPart(part.number, part.parts, self._frozen.manifest.digest)
        self._changed: str | None = None
        self._stamps = {file.path: _stamp(file.path) for file in self._frozen.files}
        super().__init__(name, self._frozen, generation)

    def info(self) -> DatastoreInfo:
        """Return its description."""
        return self._frozen.info()

    @property
    def fault(self) -> str | None:
        """Why it cannot be read, as far as `watch` and queries have shown; None if it can."""
        return self._changed or super().fault

    def watch(self) -> None:
        """Check whether a file was changed in place. A replaced file does no harm: the old one stays open."""
        for file, opened in self._stamps.items():
            current = _stamp(file)
            if opened is not None and current is not None and current[:2] == opened[:2] and current != opened:
                self._changed = f"{file.name} was changed in place"

    @property
    def stored_tokenizer(self) -> StoredTokenizer | TokenizerIdentity:
        """Its tokenizer, with which a live datastore can be created."""
        file = self.path / TOKENIZER_FILE_NAME
        identity = self.store.tokenizer
        return StoredTokenizer(identity, file) if file.is_file() else identity


class Reading:
    """A block of queries; after it, raises an error unless all of `served` are readable. It tells names, not paths."""

    def __init__(self, served: Iterable[HostedDatastore]) -> None:
        self._served = served

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        for datastore in self._served:
            datastore.require_readable()


@dataclass(frozen=True)
class StoredTokenizer:
    """The tokenizer of a built datastore: its identity, and the file of it."""

    identity: TokenizerIdentity
    file: Path

    def to_json(self) -> str:
        """Return its serialization."""
        return self.file.read_text(encoding="utf-8")


def timestamp(time: datetime | None) -> Timestamp | None:
    """Return a time as a message has it."""
    if time is None:
        return None
    message = Timestamp()
    message.FromDatetime(time)
    return message


def _stamp(file: Path) -> _Stamp | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
