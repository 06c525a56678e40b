"""The datastores that a service serves, by name: opened, chosen for a request, watched, swapped for rebuilt ones."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.timestamp_pb2 import Timestamp

from rest_store.datastore.datastore import Datastore
from rest_store.datastore.header import FORMAT_VERSION
from rest_store.datastore.kernel import guard_pages
from rest_store.errors import (
    DatastoreError,
    DatastoreUnavailableError,
    RestStoreError,
    ServeError,
    TokenizerMismatchError,
    UnknownDatastoreError,
    describe,
)
from rest_store.v1 import datastore_pb2 as pb

_Stamp = tuple[int, int, int, int]  # device, inode, size, time of the last change of content
_MOST_SELECTIONS = 1024  # remembered at once


class Served:
    """One datastore under its name. Thread-safe."""

    __slots__ = ("_changed", "_guard", "_stamps", "generation", "name", "path", "store")

    def __init__(self, name: str, path: Path, generation: int) -> None:
        self.name = name
        self.path = path
        self.generation = generation
        self.store = Datastore.open(path)
        self._guard = guard_pages(self.store.files)
        self._changed: str | None = None
        self._stamps = {file.path: _stamp(file.path) for file in self.store.files}

    @property
    def fingerprint(self) -> str:
        """Fingerprint of its tokenizer."""
        return self.store.manifest.tokenizer.fingerprint

    @property
    def readable(self) -> bool:
        """Whether its files are still what was opened, as far as `watch` and reading them has shown."""
        return self._changed is None and (self._guard is None or not self._guard.lost)

    def require_readable(self) -> None:
        """Raise DatastoreUnavailableError unless `readable`; to be asked after each answer, which is void then."""
        if self._changed is not None or (self._guard is not None and self._guard.lost):
            found = self._changed or "unreadable: truncated underneath, or its disk fails"
            expected = "as they were opened; restore and reload it"
            raise DatastoreUnavailableError(describe(f"datastore {self.name!r}", "one of its files", found, expected))

    def try_out(self) -> None:
        """Ask it once, so that a datastore that cannot be read at all is found before it is served."""
        self.store.draft([0], max_nodes=1)
        self.require_readable()

    def watch(self) -> None:
        """Look whether a file was changed in place. One that another has replaced is no matter: the old one is held."""
        for file, opened in self._stamps.items():
            found = _stamp(file)
            if opened is not None and found is not None and found[:2] == opened[:2] and found != opened:
                self._changed = f"changed in place ({file.name})"

    def describe(self) -> pb.DatastoreDescription:
        """Return what Describe says of it."""
        info = self.store.info()
        tokenizer = info.tokenizer
        built = Timestamp()
        built.FromDatetime(info.built)
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
            built=built,
            format_version=FORMAT_VERSION,
            generation=self.generation,
        )


def _stamp(file: Path) -> _Stamp | None:
    try:
        found = file.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


@dataclass(frozen=True)
class Outcome:
    """How the reload of one datastore went: `refused` says why the rebuilt one was not taken, None that it was."""

    name: str
    generation: int
    refused: str | None


class Catalog:
    """Datastores by name.

    Args:
        places: names and directories, in the order in which they are served.

    Raises:
        ServeError: no datastore, or two of one name.
        DatastoreError: one cannot be opened.

    `select` may be called while another thread runs `reopen`; `swap` belongs to the thread of `select`.
    """

    def __init__(self, places: Sequence[tuple[str, Path]]) -> None:
        names = [name for name, _ in places]
        if not names:
            raise ServeError(describe("service", "number of datastores", 0, "at least 1"))
        for name in names:
            if not name or names.count(name) > 1:
                found = f"{names.count(name)} times {name!r}"
                raise ServeError(describe("service", "name of a datastore", found, "distinct ones: give NAME=DIR"))
        self._served = {name: Served(name, path, 1) for name, path in places}
        for served in self._served.values():
            served.try_out()
        self._selections: dict[tuple[tuple[str, ...], str], tuple[Served, ...]] = {}
        self.version = 1

    @property
    def served(self) -> tuple[Served, ...]:
        """All datastores."""
        return tuple(self._served.values())

    def select(self, names: tuple[str, ...], fingerprint: str) -> tuple[Served, ...]:
        """Return the datastores that a Selection stands for, in the order of their answers.

        Raises:
            UnknownDatastoreError: no datastore has one of `names`.
            TokenizerMismatchError: one named, or all there are, have another tokenizer; or, without names and
                `fingerprint`, there are several tokenizers.
        """
        try:
            return self._selections[names, fingerprint]
        except KeyError:
            pass
        found = self._named(names, fingerprint) if names else self._all(fingerprint)
        if len(self._selections) >= _MOST_SELECTIONS:
            self._selections.clear()
        if len(names) <= len(self._served):
            self._selections[names, fingerprint] = found
        return found

    def _named(self, names: tuple[str, ...], fingerprint: str) -> tuple[Served, ...]:
        for name in names:
            served = self._served.get(name)
            if served is None:
                expected = "one of " + reprlib.repr(sorted(self._served))
                raise UnknownDatastoreError(describe("request", "name of a datastore", reprlib.repr(name), expected))
            if fingerprint not in ("", served.fingerprint):
                where = f"datastore {name!r}"
                found = reprlib.repr(fingerprint)
                raise TokenizerMismatchError(describe(where, "the client's tokenizer", found, served.fingerprint))
        return tuple(self._served[name] for name in names)

    def _all(self, fingerprint: str) -> tuple[Served, ...]:
        known = {served.fingerprint for served in self.served}
        if fingerprint:
            found = tuple(served for served in self.served if served.fingerprint == fingerprint)
            if not found:
                expected = "one of " + ", ".join(sorted(known))
                said = reprlib.repr(fingerprint)
                raise TokenizerMismatchError(describe("service", "the client's tokenizer", said, expected))
            return found
        if len(known) > 1:
            expected = "a tokenizer or names of datastores, which have several tokenizers here"
            raise TokenizerMismatchError(describe("request", "selection", "empty", expected))
        return self.served

    def watch(self) -> None:
        """Look whether files were changed in place; takes a system call for each file."""
        for served in self.served:
            served.watch()

    def reopen(self) -> list[Served | Outcome]:
        """Open every datastore anew and try it out; a bad one is an Outcome that says so. Changes nothing."""
        found: list[Served | Outcome] = []
        for old in self.served:
            try:
                new = Served(old.name, old.path, old.generation + 1)
                if new.fingerprint != old.fingerprint:
                    old.store.manifest.tokenizer.require_same(new.store.manifest.tokenizer, old.path)
                new.try_out()
                found.append(new)
            except RestStoreError as error:
                found.append(Outcome(old.name, old.generation, str(error)))
            except (OSError, ValueError, MemoryError) as error:
                kind = DatastoreError(describe(old.path, "datastore", f"unusable ({error})", "one that can be opened"))
                found.append(Outcome(old.name, old.generation, str(kind)))
        return found

    def swap(self, found: Sequence[Served | Outcome]) -> list[Outcome]:
        """Take what `reopen` opened; answers under way end with the datastore that they began with."""
        outcomes = []
        for one in found:
            if isinstance(one, Served):
                self._served[one.name] = one
                one = Outcome(one.name, one.generation, None)
            outcomes.append(one)
        self._selections.clear()
        self.version += 1
        return outcomes
