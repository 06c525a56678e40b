"""A thread that does work beside additions: merging, sealing, evicting, purging."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress

from rest_store.errors import error_text

_NICENESS = 15  # with 19, additions wait longer for locks that the thread holds while others use all cores


class Maintenance:
    """Does jobs in a thread of its own, until it is stopped, or nobody has its owner. A job that fails is tried again.

    On Linux the thread has a low priority: it gives way to queries and additions where cores are few.

    Args:
        owner: what the jobs are for; not kept alive.
        name: of the thread.
        jobs: each does one piece of work and returns whether there may be more; the first come first.
        interval: seconds until it looks for work again, when there was none, or after a failure.
        abandoned: called by the thread when the owner is gone. (Whoever collects the owner may hold any lock.)

    Attributes:
        failure: what the latest failure was, as text; None since all jobs have succeeded again.
    """

    def __init__(
        self,
        owner: object,
        name: str,
        jobs: Sequence[Callable[[], bool]],
        interval: float = 0.5,
        abandoned: Callable[[], object] = lambda: None,
    ) -> None:
        self.failure: str | None = None
        self._owner = weakref.ref(owner)
        self._abandoned = abandoned
        self._jobs = jobs
        self._interval = interval
        self._wake = threading.Event()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Look for work now."""
        self._wake.set()

    def stop(self) -> None:
        """End after the piece of work in progress."""
        self._stopped.set()
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        if sys.platform == "linux":  # elsewhere threads have no priority of their own
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        while not self._stopped.is_set():
            if self._owner() is None:
                self._abandoned()
                return
            self._wake.clear()
            busy, failure = False, None
            for job in self._jobs:
                try:
                    busy = job()
                except Exception as error:  # such as a full disk: the other jobs go on, and make room
                    failure = failure or error_text(error)
                if busy:
                    break
            self.failure = failure
            if failure is not None:
                self._stopped.wait(self._interval)  # however much is added meanwhile
            elif not busy:
                self._wake.wait(self._interval)
