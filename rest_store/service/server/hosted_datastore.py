"""One datastore of a service: its name, its description, and whether it can be read."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from rest_store.datastore.datastore import Datastore
from rest_store.datastore.part import Part
from rest_store.errors import DatastoreClosedError, DatastoreUnavailableError
from rest_store.v1 import datastore_pb2 as pb

if TYPE_CHECKING:
    from rest_store.live.live_datastore import LiveDatastore


@dataclass(frozen=True, eq=False)
class HostedDatastore:
    """One datastore under its name. Thread-safe.

    Attributes:
        name: under which clients select it.
        store: the datastore.
        part: which part of a built datastore it is; None: all of it.
    """

    name: str
    store: Datastore | LiveDatastore
    part: Part | None = None

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

    def of_namespace(self, name: str) -> HostedDatastore:
        """Return a live datastore as the documents of one namespace; a frozen one as it is."""
        store: Any = self.store
        return replace(self, store=store.namespace(name)) if name and store.is_live else self

    def describe(self, *, writable: bool) -> pb.DatastoreDescription:
        """Return its description for a call that may write, or may not."""
        info = self.store.info()
        description = pb.DatastoreDescription(
            name=self.name,
            tokenizer=pb.TokenizerDescription(**info.tokenizer.to_manifest()),
            token_count=info.token_count,
            document_count=info.document_count,
            shard_count=info.shard_count,
            size=info.size,
            built=0 if info.built is None else int(info.built.timestamp()),
            live=self.store.is_live,
            writable=self.store.is_live and writable,
        )
        if self.part is not None:
            assert isinstance(self.store, Datastore)
            description.part.number, description.part.parts = self.part.number, self.part.parts
            description.part.build = self.store.manifest.digest
        return description

    def named(self, text: str) -> str:
        """Return `text` with the name in place of the directory, which clients are not told."""
        return text.replace(str(self.store.path), f"datastore {self.name!r}")


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
            remedy = "restart the service, which sorts it anew" if datastore.store.is_live else "restore and reload it"
            raise DatastoreUnavailableError(f"datastore {datastore.name!r} is unavailable: {found}; {remedy}")
