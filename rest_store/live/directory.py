"""The directory of a live datastore: whether it is one, and the lock of its writer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from rest_store.datastore.file_lock import take_lock
from rest_store.datastore.manifest import DOCUMENTS_FILE_NAME, TOKENIZER_FILE_NAME
from rest_store.datastore.manifest import FILE_NAME as MANIFEST_NAME
from rest_store.errors import (
    DatastoreFormatError,
    DatastoreNotFoundError,
    StorageError,
    WriterError,
)

_LOCK_NAME = "writer.lock"
# The files of a directory whose creation was killed.
_FIRST_FILES = {_LOCK_NAME, TOKENIZER_FILE_NAME}


def is_live(path: Path) -> bool:
    """Return whether `path` is the directory of a live datastore.

    False if the directory cannot be read. Opening it then raises the error.
    """
    try:
        return (path / DOCUMENTS_FILE_NAME).is_file()
    except OSError:  # no permission, or a name that is too long
        return False


def require_live(directory: Path, *, new: bool) -> None:
    """Raise an error unless this is the directory of a live datastore.

    Args:
        directory: the directory.
        new: whether it may also be absent or empty, so that a live datastore can be created.

    Raises:
        DatastoreNotFoundError: it is absent or empty, and not `new`.
        DatastoreFormatError: it holds a frozen datastore, or something else.
        StorageError: it cannot be read, or is a file.
    """
    if is_live(directory):
        return
    names = _names(directory) - _FIRST_FILES
    if MANIFEST_NAME in names:
        raise DatastoreFormatError(
            "live",
            f"{directory}: the datastore is a frozen one, expected a live one or an empty"
            " directory",
        )
    if names:
        raise DatastoreFormatError(
            "live",
            f"{directory}: this is not a live datastore, expected one or an empty directory",
        )
    if not new:
        raise DatastoreNotFoundError(
            f"{directory}: there is no live datastore; give a tokenizer to create one"
        )


def _names(directory: Path) -> set[str]:
    """Return the names of a directory's entries; none if it is absent."""
    try:
        return {entry.name for entry in directory.iterdir()}
    except FileNotFoundError:
        return set()
    except OSError as error:
        raise StorageError(
            f"{directory}: the directory cannot be read ({error.strerror})"
        ) from error


def make_directory(directory: Path) -> None:
    """Make a directory if it is absent; raise StorageError if that is not possible."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"{directory}: the directory cannot be written ({error.strerror})"
        ) from error


def take_writer_lock(directory: Path) -> Callable[[], None]:
    """Take the writer's lock of a directory, and return a function that releases it.

    The end of the process and of its children releases it, too.

    Raises:
        WriterError: another process has it, or this process.
        StorageError: the directory cannot be written, or its file system has no locks.
    """
    try:
        release = take_lock(directory / _LOCK_NAME)
    except OSError as error:
        raise StorageError(
            f"{directory}: the live datastore cannot be written ({error.strerror})"
        ) from error
    if release is None:
        raise WriterError(
            f"{directory}: the writer's lock is taken; open the datastore with read_only=True, or"
            " use the service that writes it"
        )
    return release
