"""The directory of a live datastore: whether there is one, and what is there instead."""

from __future__ import annotations

from pathlib import Path

from rest_store.datastore.manifest import FILE_NAME as MANIFEST_NAME
from rest_store.datastore.manifest import TOKENIZER_FILE_NAME
from rest_store.errors import DatastoreNotFoundError, LiveFormatError, RestStoreError, StorageError, describe
from rest_store.live.locks import FILE_NAME as LOCK_NAME
from rest_store.live.opening import is_live

_BEGUN = {LOCK_NAME, TOKENIZER_FILE_NAME}  # in a directory that was being begun when the process was killed


def require_live(directory: Path, *, new: bool) -> None:
    """Check that there is a live datastore, or with `new` that one may be begun.

    Raises:
        DatastoreNotFoundError: there is nothing, or a file.
        LiveFormatError: it holds a frozen datastore, or something else.
        StorageError: it cannot be read.
    """
    if is_live(directory):
        return
    try:
        _require_room(directory, new=new)
    except OSError as error:
        if isinstance(error, RestStoreError):
            raise
        raise StorageError(f"{directory}: the directory cannot be read ({error.strerror})") from error


def _require_room(directory: Path, *, new: bool) -> None:
    """Raise unless a live datastore may be begun at `directory`; OSErrors pass through."""
    if (directory / MANIFEST_NAME).exists():
        raise LiveFormatError(describe(directory, "datastore", "a frozen one", "a live one, or a new directory"))
    if not directory.is_dir() and (directory.exists() or not new):
        found = "a file" if directory.exists() else "absent"
        raise DatastoreNotFoundError(
            describe(directory, "live datastore", found, "a directory; give a tokenizer for a new one")
        )
    if directory.is_dir() and {entry.name for entry in directory.iterdir()} - _BEGUN:
        raise LiveFormatError(
            describe(directory, "live datastore", "a directory of something else", "one, or a new directory")
        )
    if not new:
        raise DatastoreNotFoundError(
            describe(directory, "live datastore", "empty", "one; give a tokenizer for a new one")
        )
