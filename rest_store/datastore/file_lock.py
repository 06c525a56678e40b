"""A lock of a file, which one process holds at a time: on this machine, or over NFS on any."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path


def take_lock(path: Path) -> Callable[[], None] | None:
    """Take the lock of a file, which is made if it is absent; its holder may remove it.

    Returns:
        What releases it, as the end of the process and its children does; None: it is taken, by
        another process or by this one.

    Raises:
        OSError: the file cannot be written, or its file system has no locks.
    """
    while True:
        # NFS locks what can be written.
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
        os.close(descriptor)  # of a file that its holder has removed meanwhile


def _release(descriptor: int) -> None:
    # Also for children that were forked, which have the descriptor as well.
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)
