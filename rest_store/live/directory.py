"""The directory of a live datastore: what lies in it, and
the lock of the process that writes it.
"""

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
    describe,
)

_LOCK_NAME = "writer.lock"
# In a directory that was being begun when the process was killed.
_BEGUN = {_LOCK_NAME, TOKENIZER_FILE_NAME}


def is_live(path: Path) -> bool:
    """Return whether `path` is the directory of a live datastore.

    False if it cannot be looked at.
    """
    try:
        return (path / DOCUMENTS_FILE_NAME).is_file()
    except OSError:  # no permission, or a name that is too long: opening it raises the error
        return False


def require_live(directory: Path, *, new: bool) -> None:
    """Check that there is a live datastore, or with `new` that one may be begun.

    Raises:
        DatastoreNotFoundError: there is none.
        DatastoreFormatError: it holds a frozen datastore, or something else.
        StorageError: it cannot be read, or is a file.
    """
    if is_live(directory):
        return
    what = "live datastore"
    try:
        entries = {entry.name for entry in directory.iterdir()} - _BEGUN
    except FileNotFoundError:
        entries = set()
    except OSError as error:
        raise StorageError(
            f"{directory}: the directory cannot be read ({error.strerror})"
        ) from error
    if MANIFEST_NAME in entries:
        raise DatastoreFormatError(
            "live",
            describe(directory, "datastore", "a frozen one", "a live one, or a new directory"),
        )
    if entries:
        raise DatastoreFormatError(
            "live",
            describe(directory, what, "a directory of something else", "one, or a new directory"),
        )
    if not new:
        raise DatastoreNotFoundError(
            describe(directory, what, "absent", "one; give a tokenizer for a new one")
        )


def make_directory(directory: Path) -> None:
    """Make a directory unless it is there; raise StorageError if that cannot be."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(
            f"{directory}: the directory cannot be written ({error.strerror})"
        ) from error


def take_writer_lock(directory: Path) -> Callable[[], None]:
    """Take the lock of a directory, and return what releases it.

    So does the end of the process and its children.

    Raises:
        WriterError: it is taken, by another process or by this one.
        StorageError: the directory cannot be written, or its file system has no locks.
    """
    try:
        release = take_lock(directory / _LOCK_NAME)
    except OSError as error:
        raise StorageError(
            f"{directory}: the live datastore cannot be written ({error.strerror})"
        ) from error
    if release is None:
        expected = "free; open it with read_only=True, or use the service that writes it"
        raise WriterError(describe(directory, "the writer's lock", "taken", expected))
    return release
