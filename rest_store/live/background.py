"""A thread that works beside queries and additions, at a low priority."""

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
_PAUSE = 0.02  # seconds until the next look for work when there was none
_MAX_PAUSE = 5.0  # after failures, each of which doubles the pause
# So many times as long as a look takes it pauses: with thousands of namespaces that is not short.
_IDLE_SHARE = 20


class Background:
    """Calls `work` again and again, until it is stopped or nobody
    has its owner. What fails is tried again.

    On Linux the thread has a low priority: it gives way to queries and additions where cores are
    few.

    Args:
        owner: what the work is for; not kept alive.
        work: does one piece of work; returns whether there may be more.
        abandoned: called by the thread when the owner is gone. (Whoever collects the owner may hold
            any lock.)

    Attributes:
        failure: what the latest failure was, as text; None since work has succeeded again.
    """

    def __init__(
        self, owner: object, work: Callable[[], bool], abandoned: Callable[[], object]
    ) -> None:
        self.failure: str | None = None
        self._owner = weakref.ref(owner)
        self._work = work
        self._abandoned = abandoned
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rest-store live", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End after the piece of work in progress."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        if sys.platform == "linux":  # elsewhere threads have no priority of their own
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        pause = _PAUSE
        while not self._stopped.is_set():
            if self._owner() is None:
                self._abandoned()
                return
            began = time.thread_time()
            try:
                busy, self.failure, pause = self._work(), None, _PAUSE
            except Exception as error:  # such as a full disk, or a service that is away
                busy, self.failure, pause = False, error_text(error), min(2 * pause, _MAX_PAUSE)
            if not busy:
                self._stopped.wait(max(pause, _IDLE_SHARE * (time.thread_time() - began)))
