"""The datastores of a service by name, from opening to closing."""

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
    """A datastore of a service. Thread-safe.

    Attributes:
        name: by which clients select it.
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
        """Whether no query has failed to read its files."""
        try:
            self.store.require_readable()
        except (DatastoreUnavailableError, DatastoreClosedError):
            return False
        return True

    def in_namespace(self, name: str, reader: str = "") -> HostedDatastore:
        """Return a namespace of a live datastore as a group reads it; a frozen one itself."""
        store: Any = self.store
        if not store.is_live or not (name or reader):
            return self
        return replace(self, store=store.namespace(name).read_as(reader))

    def describe(self) -> pb.DatastoreDescription:
        """Return the description for clients."""
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
            shared_after=getattr(info, "shared_after", 0),
        )
        if isinstance(self.store, Datastore) and self.store.partition is not None:
            partition = description.partition
            partition.number = self.store.partition.number
            partition.total = self.store.partition.total
            partition.build = self.store.manifest.digest
        return description


@contextmanager
def reading(served: Iterable[HostedDatastore]) -> Iterator[None]:
    """Run a block of queries, then raise as `require_readable`."""
    try:
        yield
    finally:
        require_readable(served)


def require_readable(served: Iterable[HostedDatastore]) -> None:
    """Raise DatastoreUnavailableError, which names no path, unless all `served` are readable."""
    for datastore in served:
        if datastore.is_readable:
            continue
        remedy = "restore and reload it"
        if datastore.store.is_live:
            remedy = "restart the service, which sorts it anew"
        raise DatastoreUnavailableError(
            f"datastore {datastore.name!r} is unavailable: a file was truncated, or its disk fails;"
            f" {remedy}"
        )


class Catalog:
    """Datastores by name.

    Args:
        built: name and directory of each built datastore, in the order of answers.
        live: name and directory of each live datastore, which come after these. This process writes
            them.
        tokenizer: of live datastores that are created; None: that of the built datastores, if they
            share one.
        partition: the partition of each built datastore that is served; None: all of it. With a
            partition there are no live datastores.
        shared_after: of the live datastores, as `LiveDatastore.open` takes it.

    Raises:
        ServeError: there is no datastore, a name is not valid or comes twice, or a live datastore
            was to be served in partitions.
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
        shared_after: int | None = None,
    ) -> None:
        _require_names([name for name, _ in (*built, *live)])
        if partition is not None and live:
            raise ServeError(
                f"service: live datastore {live[0][0]!r} cannot be served in partitions; build a"
                " frozen one"
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
                self._served[name] = HostedDatastore(
                    name, _live_datastore(path, tokenizer, shared_after)
                )
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the live datastores, once the documents that are being added are written."""
        for served in self.served:
            if served.store.is_live:
                served.store.close()

    @property
    def served(self) -> tuple[HostedDatastore, ...]:
        """All datastores."""
        return tuple(self._served.values())

    def one(self, name: str, fingerprint: str = "", *, live: bool) -> HostedDatastore:
        """Return a datastore of one kind.

        Args:
            name: of the datastore; "": the only one of the kind.
            fingerprint: as in a Selection.
            live: whether it is to be a live one; otherwise a frozen one.

        Raises:
            DatastoreFormatError: the datastore is of the other kind.
            UnknownDatastoreError, TokenizerMismatchError: as `select`.
        """
        if not name:
            names = [served.name for served in self.served if served.store.is_live == live]
            if len(names) == 1:
                name = names[0]
        served = self._named(name, fingerprint)
        if served.store.is_live != live:
            actual = "live" if served.store.is_live else "frozen"
            expected = "a live one" if live else "a frozen one"
            raise DatastoreFormatError(
                "live", describe("request", f"datastore {name!r}", actual, expected)
            )
        return served

    def select(self, selection: pb.Selection, grant: Grant) -> tuple[HostedDatastore, ...]:
        """Return the datastores of a selection, in the order of their answers.

        A live one is returned as the namespace of the selection, as its group may read it.

        Raises:
            ArgumentError: there are more names than datastores.
            UnknownDatastoreError: a name is that of no datastore.
            TokenizerMismatchError: the datastores have another tokenizer than the client, or
                several.
            PermissionDeniedError: `grant` does not allow to read the namespace, or as the group.
            DocumentError: the namespace or the group is not a name.
        """
        names = selection.datastores or [*self._served]
        max_names = len(self._served)
        selected = [
            self._named(name, selection.tokenizer_fingerprint) for name in names[: max_names + 1]
        ]
        require_few("datastores named", len(names), max_names)
        if len({served.fingerprint for served in selected}) > 1:
            raise TokenizerMismatchError(
                "request: the datastores have several tokenizers, expected one: name datastores"
            )
        if any(served.store.is_live for served in selected):
            grant.require_namespace(selection.namespace)
            grant.require_reader(selection.group)
        return tuple(
            served.in_namespace(selection.namespace, selection.group) for served in selected
        )

    def _named(self, name: str, fingerprint: str) -> HostedDatastore:
        served = self._served.get(name)
        if served is None:
            expected = "one of " + reprlib.repr(sorted(self._served))
            raise UnknownDatastoreError(
                describe("request", "name of a datastore", reprlib.repr(name), expected)
            )
        if fingerprint not in ("", served.fingerprint):
            actual = reprlib.repr(fingerprint)
            raise TokenizerMismatchError(
                describe(
                    f"datastore {name!r}", "the client's tokenizer", actual, served.fingerprint
                )
            )
        return served

    def reload(self) -> dict[str, str]:
        """Open every built datastore again, and serve it from now on.

        Answers in progress end with the datastore that they began with. The content of the files is
        not verified; `rest-store check` does that.

        Returns:
            For each built datastore, the reason why it was refused; "": it was not.
        """
        refusals = {}
        for name, served in [*self._served.items()]:
            old = served.store
            if not isinstance(old, Datastore):
                continue
            refusals[name] = ""
            try:
                new = Datastore.open(old.path, partition=old.partition)
                old.tokenizer.require_same(new.tokenizer, old.path)
            except (RestStoreError, OSError, ValueError, MemoryError) as error:
                refusals[name] = str(error)
            else:
                self._served[name] = HostedDatastore(name, new)
        return refusals


def _live_datastore(path: Path, tokenizer: object, shared_after: int | None) -> LiveDatastore:
    """Open a live datastore for writing, or create it with `tokenizer`."""
    # Needs packages that a built datastore does not need.
    from rest_store.live.live_datastore import LiveDatastore

    # Errors to clients have the name in place of the path. A relative path might be replaced within
    # other words.
    path = path.absolute()
    return LiveDatastore.open(
        path, tokenizer=None if is_live(path) else tokenizer, shared_after=shared_after
    )


def _require_names(names: Sequence[str]) -> None:
    """Raise ServeError unless there are names, and all are distinct and valid UTF-8."""
    if not names:
        raise ServeError(describe("service", "number of datastores", 0, "at least 1"))
    for name, number in Counter(names).items():
        if not is_name(name):
            expected = "text in UTF-8: give NAME=DIR"
            raise ServeError(describe("service", "name of a datastore", ascii(name), expected))
        if number > 1:
            actual = f"{number} times {name!r}"
            raise ServeError(
                describe("service", "name of a datastore", actual, "distinct ones: give NAME=DIR")
            )
