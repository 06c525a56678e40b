"""What lies in a directory: a live datastore, a frozen one, or something else."""

from __future__ import annotations

from pathlib import Path

from rest_store.datastore.manifest import DOCUMENTS_FILE_NAME, TOKENIZER_FILE_NAME
from rest_store.datastore.manifest import FILE_NAME as MANIFEST_NAME
from rest_store.errors import DatastoreNotFoundError, LiveFormatError, StorageError, describe

LOCK_NAME = "writer.lock"
_BEGUN = {LOCK_NAME, TOKENIZER_FILE_NAME}  # in a directory that was being begun when the process was killed


def is_live(path: Path) -> bool:
    """Return whether `path` is the directory of a live datastore; False if it cannot be looked at."""
    try:
        return (path / DOCUMENTS_FILE_NAME).is_file()
    except OSError:  # no permission, or a name that is too long: opening it raises the error
        return False


def require_live(directory: Path, *, new: bool) -> None:
    """Check that there is a live datastore, or with `new` that one may be begun.

    Raises:
        DatastoreNotFoundError: there is nothing, or a file.
        LiveFormatError: it holds a frozen datastore, or something else.
        StorageError: it cannot be read.
    """
    if is_live(directory):
        return
    what, expected = "live datastore", "one; give a tokenizer for a new one"
    try:
        entries = {entry.name for entry in directory.iterdir()} - _BEGUN
    except FileNotFoundError:
        if new:
            return
        raise DatastoreNotFoundError(describe(directory, what, "absent", expected)) from None
    except NotADirectoryError:
        raise DatastoreNotFoundError(describe(directory, what, "a file", "a directory")) from None
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        problem = getattr(error, "strerror", error)
        raise StorageError(f"{directory}: the directory cannot be read ({problem})") from error
    if MANIFEST_NAME in entries:
        raise LiveFormatError(describe(directory, "datastore", "a frozen one", "a live one, or a new directory"))
    if entries:
        raise LiveFormatError(describe(directory, what, "a directory of something else", "one, or a new directory"))
    if not new:
        raise DatastoreNotFoundError(describe(directory, what, "empty", expected))
