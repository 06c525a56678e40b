"""A thread that does work beside additions: merging, sealing, evicting, purging."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from rest_store.errors import error_text


class Maintenance:
    """Does jobs in a thread of its own, until it is stopped. A job that fails is tried again.

    Args:
        name: of the thread.
        jobs: each does one piece of work and returns whether there may be more; the first come first.
        interval: seconds until it looks for work again, when there was none, or after a failure.

    Attributes:
        failure: what the latest failure was, as text; None since all jobs have succeeded again.
    """

    def __init__(self, name: str, jobs: Sequence[Callable[[], bool]], interval: float = 0.5) -> None:
        self.failure: str | None = None
        self._jobs = jobs
        self._interval = interval
        self._wake = threading.Event()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Look for work now."""
        self._wake.set()

    def stop(self) -> None:
        """End after the piece of work in progress."""
        self._stopped = True
        self._wake.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped:
            self._wake.clear()
            try:
                busy = any(job() for job in self._jobs)
                self.failure = None
            except Exception as error:  # such as a full disk: what is there goes on being asked
                busy, self.failure = False, error_text(error)
            if not busy:
                self._wake.wait(self._interval)
