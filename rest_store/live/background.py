"""A thread for work beside queries and additions: `Background`."""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress

from rest_store.errors import error_text

# With 19, additions wait longer for locks that the thread holds while others use all cores.
_NICENESS = 15
_PAUSE_SECONDS = 0.02  # until the next call, if there was no work
_MAX_PAUSE_SECONDS = 5.0  # each failure doubles the pause, up to this
# The pause is at least so many times as long as the call. With thousands of namespaces, a call
# without work takes a while.
_MIN_PAUSE_RATIO = 20


class Background:
    """A thread that calls `work` until it is stopped or its owner is gone.

    It calls a failed `work` again. On Linux the thread has a low priority: where cores are few, it
    gives way to queries and additions.

    Args:
        owner: the object that needs the work. The thread does not keep it alive.
        work: does one piece of work; returns whether there may be more.
        abandoned: the thread calls it once the owner is gone. The thread that collects the owner
            does not, since it may hold any lock.
        idle_seconds: each call without work doubles the pause, up to this. A call takes the GIL,
            and where others use all cores, it waits long for its turn, and the GIL with it.

    Attributes:
        failure: the latest failure as text; None once `work` has succeeded again.
    """

    def __init__(
        self,
        owner: object,
        work: Callable[[], bool],
        abandoned: Callable[[], object],
        idle_seconds: float = _PAUSE_SECONDS,
    ) -> None:
        self.failure: str | None = None
        self._owner = weakref.ref(owner)
        self._work = work
        self._abandoned = abandoned
        self._idle_seconds = idle_seconds
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rest-store live", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its present piece of work."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        if sys.platform == "linux":  # other systems have no priorities of threads
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        pause = _PAUSE_SECONDS
        while not self._stopped.is_set():
            if self._owner() is None:
                self._abandoned()
                return
            start = time.thread_time()
            try:
                has_more = self._work()
                is_idle = not has_more and self.failure is None
                pause = min(2 * pause, self._idle_seconds) if is_idle else _PAUSE_SECONDS
                self.failure = None
            except Exception as error:  # such as a full disk, or an unreachable service
                has_more = False
                self.failure = error_text(error)
                pause = min(2 * pause, _MAX_PAUSE_SECONDS)
            if not has_more:
                seconds = time.thread_time() - start
                self._stopped.wait(max(pause, _MIN_PAUSE_RATIO * seconds))
