"""Copies of datastores that lie elsewhere, complete or absent, in a directory of this machine.

    directory = fetch(reader, default_cache())       # the same for the same build, fetched once

A copy is collected in `frozen/BUILD.part`, where an interrupted one is resumed, and renamed to
`frozen/BUILD` when its files are those of its manifest. BUILD is the SHA-256 of the manifest.
Whoever makes a copy holds a lock.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from rest_store.datastore.durable_files import publish, sync
from rest_store.datastore.file_lock import take_lock
from rest_store.datastore.manifest import (
    FILE_NAME,
    MAX_SIZE,
    TOKENIZER_FILE_NAME,
    Manifest,
    ShardRecord,
)
from rest_store.datastore.shard import Shard
from rest_store.errors import (
    DatastoreError,
    DeadlineError,
    FetchError,
    RestStoreError,
    ServiceUnavailableError,
    describe,
)

_SECONDS_BETWEEN_TRIES = 0.1
_MAX_TOKENIZER_BYTES = 1 << 28
_log = logging.getLogger(__name__)


class FileReader(Protocol):
    """A location that has the files of a datastore: a service, or an object store.

    Attributes:
        location: where, for messages.
        build: which is read: "sha256:" and the SHA-256 of its manifest; "": any.

    Its methods raise a RestStoreError; FetchError, ServiceUnavailableError and DeadlineError mean
    that it cannot be reached now.
    """

    location: str
    build: str

    def read(self, name: str, offset: int) -> Iterator[bytes]:
        """Yield a file in pieces from the byte `offset` on; they may end too early."""

    def close(self) -> None:
        """Close connections."""


def fetch(reader: FileReader, cache: Path) -> Path:
    """Return the directory of a complete copy, which is made unless it is there.

    Args:
        reader: of the datastore.
        cache: directory of copies, for any number of processes.

    Raises:
        FetchError: it cannot be reached and no copy was made from it before, it breaks off again
            and again, what it sends is not what its manifest says, or the copy cannot be kept, for
            instance because the disk is full.
        DatastoreError: its manifest is malformed.
        RestStoreError: what the reader raises.

    Files are compared with the checksums of the manifest. What has arrived is kept if the rest does
    not, and the next call goes on with it.
    """
    copies = cache / "frozen"
    # A link to a copy.
    latest = copies / f"latest-{hashlib.sha256(reader.location.encode()).hexdigest()[:32]}"
    try:
        content = _content(reader, FILE_NAME, MAX_SIZE)
    except (FetchError, ServiceUnavailableError, DeadlineError) as error:
        if not latest.exists():
            raise
        _log.warning("%s cannot be reached; opened as it was before (%s)", reader.location, error)
        return latest.resolve()
    manifest = Manifest.parse(content, reader.location)
    copy = copies / hashlib.sha256(content).hexdigest()
    reader.build = f"sha256:{copy.name}"
    with _disk_errors(reader.location, cache):
        copies.mkdir(parents=True, exist_ok=True)
        with _lock(copy.with_suffix(".lock")):
            if not copy.exists():
                _make(copy, manifest, content, reader)
            link = latest.with_suffix(f".{os.getpid()}")
            link.unlink(missing_ok=True)
            link.symlink_to(copy.name)
            link.replace(latest)
    return copy


def _make(copy: Path, manifest: Manifest, content: bytes, reader: FileReader) -> None:
    part = copy.with_suffix(".part")
    part.mkdir(exist_ok=True)
    size = sum(record.tokens_size + record.suffixes_size for record in manifest.shards)
    size -= sum(file.stat().st_size for file in part.iterdir())
    if size > (free := shutil.disk_usage(part).free):  # also of a manifest that lies
        raise OSError(errno.ENOSPC, f"{size:,} bytes are still to come, and {free:,} are free")
    for record in manifest.shards:
        _fetch_shard(part, record, reader)
    if manifest.tokenizer_sha256 is not None:
        _write(part / TOKENIZER_FILE_NAME, _tokenizer(manifest.tokenizer_sha256, reader))
    _write(part / FILE_NAME, content)
    publish(part, copy)


def _fetch_shard(part: Path, record: ShardRecord, reader: FileReader) -> None:
    sizes = {
        f"{record.name}.tokens": record.tokens_size,
        f"{record.name}.suffixes": record.suffixes_size,
    }
    for name, size in sizes.items():
        _fetch_file(part / name, size, reader)
    try:
        shard = Shard.open(part, record.name)
        record.require_same(ShardRecord.from_shard(record.name, shard), part)
        shard.require_checksums()
    except DatastoreError as error:
        for name in sizes:
            (part / name).unlink()
        raise FetchError(
            f"{reader.location}: what it sent is not what its manifest says ({error})"
        ) from error


def _fetch_file(path: Path, size: int, reader: FileReader) -> None:
    """Fetch the rest of a file.

    Go on where the connection breaks off, as long as something arrives each time.
    """
    done = path.stat().st_size if path.exists() else 0
    while done != size:
        before = done
        failure: RestStoreError = FetchError(
            f"{reader.location}: {path.name} ends after {done} of {size} bytes"
        )
        with path.open("ab") as file:
            try:
                for piece in reader.read(path.name, before):
                    file.write(piece)
                    done += len(piece)
                    if not piece or done > size:
                        break
            except RestStoreError as error:
                failure = error
        if done > size:
            path.unlink()
            raise FetchError(
                describe(
                    reader.location, f"the size of {path.name}", f"more than {size} bytes", size
                )
            )
        if done == before:
            raise failure
        sync(path)


def _content(reader: FileReader, name: str, most: int) -> bytes:
    """Return the content of a file of unknown size, or so much of
    it that it has more than `most` bytes.
    """
    content = bytearray()
    for piece in reader.read(name, 0):
        content += piece
        if not piece or len(content) > most:
            break
    return bytes(content)


def _tokenizer(expected: str, reader: FileReader) -> bytes:
    content = _content(reader, TOKENIZER_FILE_NAME, _MAX_TOKENIZER_BYTES)
    found = hashlib.sha256(content).hexdigest()
    if found != expected:
        raise FetchError(
            describe(reader.location, f"SHA-256 of {TOKENIZER_FILE_NAME}", found, expected)
        )
    return content


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    sync(path)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold a lock inside, which another process may have for as long as it fetches."""
    while (release := take_lock(path)) is None:
        time.sleep(_SECONDS_BETWEEN_TRIES)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        release()


@contextmanager
def _disk_errors(location: str, cache: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, RestStoreError):
            raise
        raise FetchError(
            f"{location}: no copy can be kept in {cache} ({error.strerror or error})"
        ) from error
