"""The lock that lets one process write a live datastore."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

from rest_store.errors import StorageError, WriterError, describe
from rest_store.live.directory import LOCK_NAME


def take_writer_lock(directory: Path) -> Callable[[], None]:
    """Take the lock of a directory, and return what releases it; so does the end of the process and its children.

    Raises:
        WriterError: it is taken, by another process or by this one.
        StorageError: the directory cannot be written, or its file system has no locks.
    """
    try:
        descriptor = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StorageError(f"{directory}: the live datastore cannot be written ({error.strerror})") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        expected = "free; open it with read_only=True, or use the service that writes it"
        raise WriterError(describe(directory, "the writer's lock", "taken", expected)) from None
    except OSError as error:
        os.close(descriptor)
        problem = f"its file system has no locks ({error.strerror}); use a local disk"
        raise StorageError(f"{directory}: {problem}") from error

    def release() -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # also for children that were forked, which have the descriptor as well
        os.close(descriptor)

    return release
