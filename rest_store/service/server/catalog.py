"""The datastores of a service, by name: opened, selected for requests, watched, swapped for rebuilt ones."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.timestamp_pb2 import Timestamp

from rest_store.datastore.datastore import Datastore
from rest_store.datastore.header import FORMAT_VERSION
from rest_store.errors import (
    DatastoreUnavailableError,
    RestStoreError,
    ServeError,
    TokenizerMismatchError,
    UnknownDatastoreError,
    describe,
)
from rest_store.v1 import datastore_pb2 as pb

_Stamp = tuple[int, int, int, int]  # device, inode, size, time of the last change of content


class Served:
    """One datastore under its name. Thread-safe."""

    def __init__(self, name: str, path: Path, generation: int) -> None:
        self.name = name
        self.path = path
        self.generation = generation
        self.store = Datastore.open(path)
        self._changed: str | None = None
        self._stamps = {file.path: _stamp(file.path) for file in self.store.files}

    @property
    def fingerprint(self) -> str:
        """Fingerprint of its tokenizer."""
        return self.store.manifest.tokenizer.fingerprint

    @property
    def readable(self) -> bool:
        """Whether its files are still as they were opened, as far as `watch` and reading them has shown."""
        if self._changed is not None:
            return False
        try:
            self.store.require_readable()
        except DatastoreUnavailableError:
            return False
        return True

    def require_readable(self) -> None:
        """Raise DatastoreUnavailableError unless `readable`; to be called after Reading, before the answer is used."""
        if not self.readable:
            fault = self._changed or "a file was truncated, or its disk fails"
            raise DatastoreUnavailableError(f"datastore {self.name!r} is unavailable: {fault}; restore and reload it")

    def try_out(self) -> None:
        """Draft once, so that a datastore that cannot be read is refused before it is served."""
        with Reading([self]):
            self.store.draft([0], max_nodes=1)

    def watch(self) -> None:
        """Check whether a file was changed in place. A replaced file does no harm: the old one stays open."""
        for file, opened in self._stamps.items():
            current = _stamp(file)
            if opened is not None and current is not None and current[:2] == opened[:2] and current != opened:
                self._changed = f"{file.name} was changed in place"

    def describe(self) -> pb.DatastoreDescription:
        """Return its description for Describe."""
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


class Reading:
    """Requires that all of `served` are readable after the block; the error names them as clients do, not by path."""

    def __init__(self, served: Iterable[Served]) -> None:
        self._served = served

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        for one in self._served:
            one.require_readable()


def _stamp(file: Path) -> _Stamp | None:
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


@dataclass(frozen=True)
class Outcome:
    """How the reload of one datastore ended: `refused` says why it failed, None that it succeeded."""

    name: str
    generation: int
    refused: str | None


class Catalog:
    """Datastores by name.

    Args:
        places: names and directories, in the order in which they are served.

    Raises:
        ServeError: no datastore, or two with the same name.
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

    @property
    def served(self) -> tuple[Served, ...]:
        """All datastores."""
        return tuple(self._served.values())

    def select(self, names: tuple[str, ...], fingerprint: str) -> tuple[Served, ...]:
        """Return the datastores that a Selection stands for, in the order of their answers.

        Raises:
            UnknownDatastoreError: no datastore has one of `names`.
            TokenizerMismatchError: a named datastore, or every one, has another tokenizer; or there are several
                tokenizers, and neither names nor `fingerprint` select one.
        """
        if not names:
            return self._matching(fingerprint)
        for name in names:
            served = self._served.get(name)
            if served is None:
                expected = "one of " + reprlib.repr(sorted(self._served))
                raise UnknownDatastoreError(describe("request", "name of a datastore", reprlib.repr(name), expected))
            if fingerprint not in ("", served.fingerprint):
                where, found = f"datastore {name!r}", reprlib.repr(fingerprint)
                raise TokenizerMismatchError(describe(where, "the client's tokenizer", found, served.fingerprint))
        return tuple(self._served[name] for name in names)

    def _matching(self, fingerprint: str) -> tuple[Served, ...]:
        known = {served.fingerprint for served in self.served}
        if fingerprint:
            matching = tuple(served for served in self.served if served.fingerprint == fingerprint)
            if not matching:
                found, expected = reprlib.repr(fingerprint), "one of " + ", ".join(sorted(known))
                raise TokenizerMismatchError(describe("service", "the client's tokenizer", found, expected))
            return matching
        if len(known) > 1:
            expected = "a tokenizer or names: the datastores have several tokenizers"
            raise TokenizerMismatchError(describe("request", "selection", "empty", expected))
        return self.served

    def watch(self) -> None:
        """Check whether files were changed in place; takes a system call for each file."""
        for served in self.served:
            served.watch()

    def reopen(self) -> list[Served | Outcome]:
        """Open every datastore again and try it out; one that fails becomes an Outcome. Changes nothing.

        Opening verifies the manifest, the headers, and the sizes of all files. The content is not read, which takes
        minutes for a large datastore; `rest-store check` does that, before a datastore takes the place of another.
        """
        reopened: list[Served | Outcome] = []
        for old in self.served:
            try:
                new = Served(old.name, old.path, old.generation + 1)
                if new.fingerprint != old.fingerprint:
                    old.store.manifest.tokenizer.require_same(new.store.manifest.tokenizer, old.path)
                new.try_out()
                reopened.append(new)
            except RestStoreError as error:
                reopened.append(Outcome(old.name, old.generation, str(error)))
            except (OSError, ValueError, MemoryError) as error:
                reopened.append(Outcome(old.name, old.generation, f"{old.path}: datastore cannot be opened ({error})"))
        return reopened

    def swap(self, reopened: Sequence[Served | Outcome]) -> list[Outcome]:
        """Serve what `reopen` opened; answers under way end with the datastore that they began with."""
        outcomes = []
        for one in reopened:
            if isinstance(one, Served):
                self._served[one.name] = one
                one = Outcome(one.name, one.generation, None)
            outcomes.append(one)
        return outcomes
