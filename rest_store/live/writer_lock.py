"""The lock that lets one process write a live datastore."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from rest_store.errors import StorageError, WriterError, describe
from rest_store.live.opening import LOCK_NAME


class WriterLock:
    """The lock of one directory, held until `release` or the end of the process and of those forked from it.

    Raises:
        WriterError: it is taken, by another process or by this one.
        StorageError: the directory cannot be written, or its file system has no locks.
    """

    def __init__(self, directory: Path) -> None:
        try:
            self._descriptor: int | None = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise StorageError(f"{directory}: the live datastore cannot be written ({error.strerror})") from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            expected = "free; open it with read_only=True, or use the service that writes it"
            raise WriterError(describe(directory, "the writer's lock", "taken", expected)) from None
        except OSError as error:
            os.close(self._descriptor)
            problem = f"its file system has no locks ({error.strerror}); use a local disk"
            raise StorageError(f"{directory}: {problem}") from error

    def release(self) -> None:
        """Let others write; may be called again."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # also for children, which have the descriptor as well
            os.close(descriptor)
