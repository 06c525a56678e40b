"""A lock that a fork cannot leave held."""

from __future__ import annotations

import os
import threading
import weakref


class ProcessLock:
    """A lock that is free in a new process, whichever thread held it at the fork: that thread does not exist there."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        _locks.add(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def renew(self) -> None:
        """Free the lock, in a new process."""
        self._lock = threading.Lock()


_locks: weakref.WeakSet[ProcessLock] = weakref.WeakSet()


def _renew_all() -> None:
    for lock in _locks:
        lock.renew()


if hasattr(os, "register_at_fork"):  # not on every system
    os.register_at_fork(after_in_child=_renew_all)
