"""The locks of a live datastore: the one that lets one process write it, and those of that process's threads."""

from __future__ import annotations

import fcntl
import os
import threading
import weakref
from pathlib import Path

from rest_store.errors import StorageError, WriterError, describe

FILE_NAME = "writer.lock"


class ThreadLocks:
    """The locks of a writer, in the order in which a thread takes them.

    Attributes:
        files: held by a thread that replaces segments in files, also while it sorts the new ones.
        memory: held by a thread that replaces segments in memory, also while it sorts the new ones, or cleans up.
        commit: held by a thread that changes what is stored, for a commit and a small sort.
    """

    def __init__(self) -> None:
        self.files, self.memory, self.commit = threading.Lock(), threading.Lock(), threading.Lock()


class WriterLock:
    """The lock of one directory, held until `release` or the end of the process.

    Raises:
        WriterError: it is taken, by another process or by this one.
        StorageError: the directory cannot be written, or its file system has no locks.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process = os.getpid()
        try:
            self._descriptor = os.open(directory / FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
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
            raise StorageError(
                f"{directory}: its file system has no locks ({error.strerror}); use a local disk"
            ) from error
        _held.add(self)

    def require_held(self) -> None:
        """Raise WriterError in a child process: the lock is the parent's."""
        if os.getpid() != self._process:
            found = "used after a fork"
            raise WriterError(
                describe(self._directory, "the live datastore", found, "used by the process that opened it")
            )

    def release(self) -> None:
        """Let others write; may be called again."""
        if self not in _held:
            return
        _held.discard(self)
        if os.getpid() == self._process:  # also for children that have not closed their descriptors yet
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)
        os.close(self._descriptor)


_held: weakref.WeakSet[WriterLock] = weakref.WeakSet()


def _leave_to_parent() -> None:
    """Close the descriptors that a child was born with: they would keep the locks taken after the parent's end."""
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_leave_to_parent)
