"""The datastores of a service, by name: opened, selected for requests, reloaded, closed."""

from __future__ import annotations

import reprlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rest_store.datastore.datastore import Datastore
from rest_store.datastore.manifest import TOKENIZER_FILE_NAME
from rest_store.datastore.partition import Partition
from rest_store.errors import (
    DatastoreClosedError,
    DatastoreFormatError,
    DatastoreUnavailableError,
    RestStoreError,
    ServeError,
    TokenizerMismatchError,
    UnknownDatastoreError,
    describe,
)
from rest_store.live.directory import is_live
from rest_store.service.address import is_name
from rest_store.service.bearer_tokens import Grant
from rest_store.service.server.request_checks import require_few
from rest_store.v1 import datastore_pb2 as pb

if TYPE_CHECKING:
    from rest_store.live.live_datastore import LiveDatastore


@dataclass(frozen=True, eq=False)
class HostedDatastore:
    """One datastore under its name. Thread-safe.

    Attributes:
        name: under which clients select it.
        store: the datastore, or a partition of it.
    """

    name: str
    store: Datastore | LiveDatastore

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

    def in_namespace(self, name: str) -> HostedDatastore:
        """Return a live datastore as the documents of one namespace; a frozen one as it is."""
        store: Any = self.store
        return replace(self, store=store.namespace(name)) if name and store.is_live else self

    def describe(self) -> pb.DatastoreDescription:
        """Return its description."""
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
        )
        if isinstance(self.store, Datastore) and (partition := self.store.partition) is not None:
            build = self.store.manifest.digest
            description.partition.CopyFrom(
                pb.PartitionDescription(number=partition.number, total=partition.total, build=build)
            )
        return description


@contextmanager
def reading(served: Iterable[HostedDatastore]) -> Iterator[None]:
    """Run a block of queries.

    After it, raise DatastoreUnavailableError unless all of `served` are readable.
    """
    try:
        yield
    finally:
        require_readable(served)


def require_readable(served: Iterable[HostedDatastore]) -> None:
    """Raise DatastoreUnavailableError, which tells names and not
    paths, unless all of `served` are readable.
    """
    for datastore in served:
        if not datastore.is_readable:
            found = "a file was truncated, or its disk fails"
            remedy = (
                "restart the service, which sorts it anew"
                if datastore.store.is_live
                else "restore and reload it"
            )
            raise DatastoreUnavailableError(
                f"datastore {datastore.name!r} is unavailable: {found}; {remedy}"
            )


class Catalog:
    """Datastores by name.

    Args:
        built: names and directories of built datastores, in the order in which they are served.
        live: names and directories of live datastores, which come after these. This process writes
            them.
        tokenizer: of live datastores that are created; None: that of the built datastores, if they
            share one.
        partition: which partition of each built datastore is served, without live ones; None: all
            of it.

    Raises:
        ServeError: no datastore, an invalid name, two with the same name, or a partition of a live
            datastore.
        DatastoreFormatError: a datastore has fewer shards than there are partitions.
        DatastoreError: a datastore cannot be opened.

    Thread-safe.
    """

    def __init__(
        self,
        built: Sequence[tuple[str, Path]],
        live: Sequence[tuple[str, Path]] = (),
        tokenizer: object = None,
        partition: Partition | None = None,
    ) -> None:
        _require_names([name for name, _ in (*built, *live)])
        if partition is not None and live:
            found = f"live datastore {live[0][0]!r}"
            raise ServeError(
                describe("service", found, "one to serve in partitions", "a built one")
            )
        self._served = {
            name: HostedDatastore(name, Datastore.open(path, partition=partition))
            for name, path in built
        }
        if tokenizer is None and len({datastore.fingerprint for datastore in self.served}) == 1:
            store = self.served[0].store
            tokenizer = (
                store.path if (store.path / TOKENIZER_FILE_NAME).is_file() else store.tokenizer
            )
        try:
            for name, path in live:
                self._served[name] = HostedDatastore(name, _live_datastore(path, tokenizer))
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the live datastores, after what is being added was written."""
        for served in self.served:
            if served.store.is_live:
                served.store.close()

    @property
    def served(self) -> tuple[HostedDatastore, ...]:
        """All datastores."""
        return tuple(self._served.values())

    def one(self, name: str, fingerprint: str = "", *, live: bool) -> HostedDatastore:
        """Return the datastore of a name, or the only live or frozen one for an empty name.

        Raises:
            DatastoreFormatError: it is frozen and not live, or live and not frozen.
            UnknownDatastoreError, TokenizerMismatchError: as `select`.
        """
        if not name:
            of_kind = [served.name for served in self.served if served.store.is_live == live]
            name = of_kind[0] if len(of_kind) == 1 else name
        served = self._named(name, fingerprint)
        if served.store.is_live != live:
            kinds = ("live", "a frozen one") if served.store.is_live else ("frozen", "a live one")
            raise DatastoreFormatError("live", describe("request", f"datastore {name!r}", *kinds))
        return served

    def select(self, selection: pb.Selection, grant: Grant) -> tuple[HostedDatastore, ...]:
        """Return the datastores that `selection` stands for, in the order of their answers.

        Live ones as its namespace.

        Raises:
            ArgumentError: more names than there are datastores.
            UnknownDatastoreError: no datastore has one of the names.
            TokenizerMismatchError: they have another tokenizer than the client, or several.
            PermissionDeniedError: `grant` does not allow to read the namespace.
            DocumentError: that is not a name.
        """
        names, most = selection.datastores or [*self._served], len(self._served)
        selected = [
            self._named(name, selection.tokenizer_fingerprint) for name in names[: most + 1]
        ]
        require_few("datastores named", len(names), most)
        if len({served.fingerprint for served in selected}) > 1:
            expected = "datastores of one: name these"
            raise TokenizerMismatchError(
                describe("request", "selection", "of several tokenizers", expected)
            )
        if any(served.store.is_live for served in selected):
            grant.require_namespace(selection.namespace)
        return tuple(served.in_namespace(selection.namespace) for served in selected)

    def _named(self, name: str, fingerprint: str) -> HostedDatastore:
        served = self._served.get(name)
        if served is None:
            expected = "one of " + reprlib.repr(sorted(self._served))
            raise UnknownDatastoreError(
                describe("request", "name of a datastore", reprlib.repr(name), expected)
            )
        if fingerprint not in ("", served.fingerprint):
            where, found = f"datastore {name!r}", reprlib.repr(fingerprint)
            raise TokenizerMismatchError(
                describe(where, "the client's tokenizer", found, served.fingerprint)
            )
        return served

    def reload(self) -> dict[str, str]:
        """Open every built datastore again, and serve it from now on.

        Return why each was refused, "" if it was not.

        Answers under way end with the datastore that they began with. The content is not read:
        `rest-store check` does.
        """
        outcomes = {}
        for name, served in [*self._served.items()]:
            if isinstance(old := served.store, Datastore):
                outcomes[name] = ""
                try:
                    new = Datastore.open(old.path, partition=old.partition)
                    old.tokenizer.require_same(new.tokenizer, old.path)
                    self._served[name] = HostedDatastore(name, new)
                except (RestStoreError, OSError, ValueError, MemoryError) as error:
                    outcomes[name] = str(error)
        return outcomes


def _live_datastore(path: Path, tokenizer: object) -> LiveDatastore:
    """Open a live datastore for writing, or create it with `tokenizer`."""
    from rest_store.live.live_datastore import LiveDatastore  # needs more packages than a built one

    # Which errors do not show; a short relative path may be part of other words.
    path = path.absolute()
    return LiveDatastore.open(path, tokenizer=None if is_live(path) else tokenizer)


def _require_names(names: Sequence[str]) -> None:
    """Raise ServeError unless there are names, all of them distinct and of UTF-8."""
    if not names:
        raise ServeError(describe("service", "number of datastores", 0, "at least 1"))
    for name, number in Counter(names).items():
        if not is_name(name):
            expected = "text in UTF-8: give NAME=DIR"
            raise ServeError(describe("service", "name of a datastore", ascii(name), expected))
        if number > 1:
            found = f"{number} times {name!r}"
            raise ServeError(
                describe("service", "name of a datastore", found, "distinct ones: give NAME=DIR")
            )
