"""A lock of a file, which one process holds at a time, also over NFS."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path


def take_lock(path: Path) -> Callable[[], None] | None:
    """Take the lock of a file, which is created if it is absent. The holder may remove the file.

    Returns:
        A function that releases the lock; the end of the process and its children releases it, too.
        None: another process or this one holds the lock.

    Raises:
        OSError: the file cannot be written, or its file system has no locks.
    """
    while True:
        # NFS locks only files that are open for writing.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError as error:
            os.close(descriptor)
            raise OSError(error.errno, f"its file system has no locks: {error.strerror}") from error
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return partial(_release, descriptor)
        os.close(descriptor)  # the holder has removed this file meanwhile


def _release(descriptor: int) -> None:
    # Forked children have the descriptor, too: without this, they would keep the lock.
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)
