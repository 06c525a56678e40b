"""The datastores of a service, by name: opened, selected for requests, watched, swapped for rebuilt ones, closed."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rest_store.datastore.part import Part
from rest_store.errors import (
    LiveFormatError,
    PartError,
    PermissionDeniedError,
    RestStoreError,
    ServeError,
    TokenizerMismatchError,
    UnknownDatastoreError,
    describe,
)
from rest_store.service.names import is_name
from rest_store.service.served_part import ServedPart
from rest_store.service.server.hosted_datastore import HostedDatastore, HostedFrozenDatastore
from rest_store.service.server.hosted_live_datastore import HostedLiveDatastore
from rest_store.service.server.logs import EventLog
from rest_store.service.server.requests import Selection
from rest_store.service.server.rights import Rights


@dataclass(frozen=True)
class ReloadOutcome:
    """The outcome of reloading one datastore; `refused` says why it failed, and is None if it succeeded."""

    name: str
    generation: int
    refused: str | None


class Catalog:
    """Datastores by name.

    Args:
        places: names and directories of built datastores, in the order in which they are served.
        live: names and directories of live datastores, which come after these. This process writes them.
        tokenizer: of live datastores that are created; None: that of the built datastores, if they share one.
        log: receives events of live datastores.
        part: which part of each built datastore is served, without live ones; None: all of it.

    Raises:
        ServeError: no datastore, an invalid name, two with the same name, or a part of a live datastore.
        PartError: a datastore has fewer shards than there are parts.
        DatastoreError: a datastore cannot be opened.

    `select` may be called while another thread runs `reopen`; `swap` belongs to the thread of `select`.
    """

    def __init__(
        self,
        places: Sequence[tuple[str, Path]],
        live: Sequence[tuple[str, Path]] = (),
        tokenizer: object = None,
        log: EventLog | None = None,
        part: Part | None = None,
    ) -> None:
        names = [name for name, _ in (*places, *live)]
        if not names:
            raise ServeError(describe("service", "number of datastores", 0, "at least 1"))
        for name in names:
            if not is_name(name):
                expected = "text in UTF-8: give NAME=DIR"
                raise ServeError(describe("service", "name of a datastore", ascii(name), expected))
            if names.count(name) > 1:
                found = f"{names.count(name)} times {name!r}"
                raise ServeError(describe("service", "name of a datastore", found, "distinct ones: give NAME=DIR"))
        if part is not None and live:
            raise ServeError(
                describe("service", f"live datastore {live[0][0]!r}", "one to serve in parts", "a built one")
            )
        built = [HostedFrozenDatastore(name, path, 1, part) for name, path in places]
        if tokenizer is None and len({datastore.fingerprint for datastore in built}) == 1:
            tokenizer = built[0].stored_tokenizer
        self._served: dict[str, HostedDatastore] = {datastore.name: datastore for datastore in built}
        try:
            for name, path in live:
                self._served[name] = HostedLiveDatastore(name, path, tokenizer, log or EventLog())
            for served in self._served.values():
                served.try_out()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the live datastores, after what is being added was written."""
        for served in self.served:
            if isinstance(served, HostedLiveDatastore):
                served.close()

    @property
    def served(self) -> tuple[HostedDatastore, ...]:
        """All datastores."""
        return tuple(self._served.values())

    def included(self, rights: Rights) -> tuple[HostedDatastore, ...]:
        """Return the datastores that a call with `rights` may ask for; raise PermissionDeniedError without any."""
        served = self.served
        if rights.datastores is not None:
            served = tuple(datastore for datastore in served if rights.include(datastore.name))
            if not served:
                expected = "one for a datastore of this service"
                raise PermissionDeniedError(describe("request", "token", "one for other datastores", expected))
        return served

    def live(self, name: str, fingerprint: str, rights: Rights) -> HostedLiveDatastore:
        """Return the live datastore that a call with `rights`, which may write, is to write to.

        Raises:
            LiveFormatError: the datastore is a built one.
            UnknownDatastoreError, TokenizerMismatchError: as `select`.
        """
        [served] = self.select(Selection((name,), fingerprint), rights)
        if not isinstance(served, HostedLiveDatastore):
            raise LiveFormatError(describe("request", f"datastore {name!r}", "frozen", "a live one"))
        return served

    def select(self, selection: Selection, rights: Rights) -> tuple[HostedDatastore, ...]:
        """Return the datastores that `selection` stands for, in the order of their answers.

        Raises:
            PermissionDeniedError: `rights` include no datastore.
            UnknownDatastoreError: no datastore of those that `rights` include has one of the names.
            TokenizerMismatchError: a named datastore, or every datastore, has another tokenizer; or there are several
                tokenizers, and neither names nor a fingerprint select one.
            PartError: a datastore is another part than the selection says, or of another build.
        """
        served = self._select(selection.names, selection.fingerprint, rights)
        if selection.parts:
            _require_parts(served, selection.parts)
        return served

    def _select(self, names: tuple[str, ...], fingerprint: str, rights: Rights) -> tuple[HostedDatastore, ...]:
        if not names:
            return _matching(self.included(rights), fingerprint)
        for name in names:
            served = self._served.get(name)
            if served is None or not rights.include(name):
                expected = "one of " + reprlib.repr(sorted(datastore.name for datastore in self.included(rights)))
                raise UnknownDatastoreError(describe("request", "name of a datastore", reprlib.repr(name), expected))
            if fingerprint not in ("", served.fingerprint):
                where, found = f"datastore {name!r}", reprlib.repr(fingerprint)
                raise TokenizerMismatchError(describe(where, "the client's tokenizer", found, served.fingerprint))
        return tuple(self._served[name] for name in names)

    def watch(self) -> None:
        """Check whether files were changed in place; takes a system call for each file."""
        for served in self.served:
            if isinstance(served, HostedFrozenDatastore):
                served.watch()

    def reopen(self) -> list[HostedDatastore | ReloadOutcome]:
        """Open every built datastore again and try it out; return a ReloadOutcome for those that fail. Changes nothing.

        Opening verifies the manifest, the headers, and the sizes of all files. The content is not read, which takes
        minutes for a large datastore; `rest-store check` does that, before a datastore takes the place of another.
        """
        reopened: list[HostedDatastore | ReloadOutcome] = []
        for old in self.served:
            if not isinstance(old, HostedFrozenDatastore):
                continue
            try:
                new = HostedFrozenDatastore(old.name, old.path, old.generation + 1, old.part)
                if new.fingerprint != old.fingerprint:
                    old.store.tokenizer.require_same(new.store.tokenizer, old.path)
                new.try_out()
                reopened.append(new)
            except RestStoreError as error:
                reopened.append(ReloadOutcome(old.name, old.generation, str(error)))
            except (OSError, ValueError, MemoryError) as error:
                reopened.append(
                    ReloadOutcome(old.name, old.generation, f"{old.path}: datastore cannot be opened ({error})")
                )
        return reopened

    def swap(self, reopened: Sequence[HostedDatastore | ReloadOutcome]) -> list[ReloadOutcome]:
        """Serve what `reopen` opened; answers under way end with the datastore that they began with."""
        outcomes = []
        for result in reopened:
            if isinstance(result, ReloadOutcome):
                outcomes.append(result)
            else:
                self._served[result.name] = result
                outcomes.append(ReloadOutcome(result.name, result.generation, None))
        return outcomes


def _require_parts(served: Sequence[HostedDatastore], expected: Sequence[ServedPart]) -> None:
    """Raise PartError unless each datastore is the part of the build that the request names."""
    if len(served) != len(expected):
        raise PartError(describe("request", "number of parts", len(expected), f"{len(served)}, one for each datastore"))
    for datastore, part in zip(served, expected, strict=True):
        if datastore.part_served != part:
            found = datastore.part_served or "the whole"
            raise PartError(describe("service", f"datastore {datastore.name!r}", found, part))


def _matching(served: tuple[HostedDatastore, ...], fingerprint: str) -> tuple[HostedDatastore, ...]:
    """Return the datastores whose tokenizer has this fingerprint; all if it is empty."""
    known = {datastore.fingerprint for datastore in served}
    if fingerprint:
        matching = tuple(datastore for datastore in served if datastore.fingerprint == fingerprint)
        if not matching:
            found, expected = reprlib.repr(fingerprint), "one of " + ", ".join(sorted(known))
            raise TokenizerMismatchError(describe("service", "the client's tokenizer", found, expected))
        return matching
    if len(known) > 1:
        expected = "a tokenizer or names: the datastores have several tokenizers"
        raise TokenizerMismatchError(describe("request", "selection", "empty", expected))
    return served
