"""Copies of remote datastores in a directory of this machine, each complete or absent.

    directory = fetch(reader, default_cache())       # the same for the same build, fetched once

A copy grows in `frozen/BUILD.tmp`, where an interrupted one is resumed. It is renamed to
`frozen/BUILD` once its files are those of its manifest. BUILD is the SHA-256 of the manifest. A
process that makes a copy holds a lock.
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
    """The files of a datastore in a service or an object store.

    Attributes:
        location: of the datastore, for messages.
        build: the build to read: "sha256:" and the SHA-256 of its manifest; "": any.

    Its methods raise a RestStoreError. FetchError, ServiceUnavailableError and DeadlineError mean
    that the location cannot be reached now.
    """

    location: str
    build: str

    def read(self, name: str, offset: int) -> Iterator[bytes]:
        """Yield a file in pieces from the byte `offset` on. The pieces may end too early."""

    def close(self) -> None:
        """Close connections."""


def fetch(reader: FileReader, cache: Path) -> Path:
    """Return the directory of a complete copy, which is made unless it is there.

    The files are compared with the checksums of the manifest. If the copy cannot be completed, the
    next call goes on with the files that have arrived.

    Args:
        reader: of the datastore.
        cache: directory of copies, which any number of processes may share.

    Raises:
        FetchError: the location cannot be reached and there is no earlier copy of it, it sends no
            more or other files than those of the manifest, or the copy cannot be written, for
            instance because the disk is full.
        DatastoreError: the manifest is malformed.
        RestStoreError: as the reader.
    """
    copies = cache / "frozen"
    # A link to the latest copy of this location.
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
    """Make a complete copy; `content` is that of the manifest."""
    temporary = copy.with_suffix(".tmp")
    temporary.mkdir(exist_ok=True)
    size = sum(record.tokens_size + record.suffixes_size for record in manifest.shards)
    missing = size - sum(file.stat().st_size for file in temporary.iterdir())
    free = shutil.disk_usage(temporary).free
    if missing > free:  # this also refuses a forged manifest with huge sizes
        raise OSError(errno.ENOSPC, f"{missing:,} bytes are still to come, and {free:,} are free")
    for record in manifest.shards:
        _fetch_shard(temporary, record, reader)
    if manifest.tokenizer_sha256 is not None:
        _write(temporary / TOKENIZER_FILE_NAME, _tokenizer(manifest.tokenizer_sha256, reader))
    _write(temporary / FILE_NAME, content)
    publish(temporary, copy)


def _fetch_shard(directory: Path, record: ShardRecord, reader: FileReader) -> None:
    """Fetch the files of a shard; remove them if they are not those of its record."""
    sizes = {
        f"{record.name}.tokens": record.tokens_size,
        f"{record.name}.suffixes": record.suffixes_size,
    }
    for name, size in sizes.items():
        _fetch_file(directory / name, size, reader)
    try:
        shard = Shard.open(directory, record.name)
        record.require_same(ShardRecord.from_shard(record.name, shard), directory)
        shard.require_checksums()
    except DatastoreError as error:
        for name in sizes:
            (directory / name).unlink()
        raise FetchError(
            f"{reader.location}: the files differ from those of the manifest ({error})"
        ) from error


def _fetch_file(path: Path, size: int, reader: FileReader) -> None:
    """Fetch the rest of a file; go on after a broken connection as long as each brings bytes."""
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
            what = f"size of {path.name}"
            raise FetchError(describe(reader.location, what, f"more than {size} bytes", size))
        if done == before:
            raise failure
        sync(path)


def _content(reader: FileReader, name: str, max_size: int) -> bytes:
    """Return the content of a file; of a larger one than `max_size`, a beginning that is larger."""
    content = bytearray()
    for piece in reader.read(name, 0):
        content += piece
        if not piece or len(content) > max_size:
            break
    return bytes(content)


def _tokenizer(expected: str, reader: FileReader) -> bytes:
    content = _content(reader, TOKENIZER_FILE_NAME, _MAX_TOKENIZER_BYTES)
    actual = hashlib.sha256(content).hexdigest()
    if actual != expected:
        raise FetchError(
            describe(reader.location, f"SHA-256 of {TOKENIZER_FILE_NAME}", actual, expected)
        )
    return content


def _write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    sync(path)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Hold a lock within the block. Another process may hold it as long as it fetches."""
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
            f"{location}: no copy can be written to {cache} ({error.strerror or error})"
        ) from error
