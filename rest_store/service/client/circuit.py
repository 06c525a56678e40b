"""A circuit breaker: a service that has just failed too often is left alone for a while."""

from __future__ import annotations

import random

from rest_store.service.client.process_lock import ProcessLock


class Circuit:
    """Whether to ask one endpoint, given how it answered lately.

    Closed, it admits every call. `threshold` failures in a row open it: for `pause` seconds it admits none. Then it
    admits one trial call (half open), whose success closes the circuit and whose failure opens it for twice as long, up
    to `longest_pause`. Pauses are shortened at random by up to a half, so that many clients do not come back at once.

    Thread-safe. While closed it costs a comparison, without a lock.

    Args:
        threshold: failures in a row that open it, at least 1.
        pause: seconds of the first pause.
        longest_pause: seconds of the longest; `pause` if that is longer.
    """

    def __init__(self, threshold: int = 5, pause: float = 1.0, longest_pause: float = 30.0) -> None:
        self.threshold = threshold
        self.first_pause = pause
        self.longest_pause = max(pause, longest_pause)
        self._lock = ProcessLock()
        self._failures = 0
        self._pause = pause
        self._until = 0.0
        self._on_trial = False

    @property
    def is_open(self) -> bool:
        """Whether the endpoint has failed too often and has not answered since."""
        return self._failures >= self.threshold

    def admits(self, now: float) -> bool:
        """Return whether a call may be made at `now` (`time.monotonic`); if half open, that call is the trial."""
        if self._failures < self.threshold:
            return True
        if now < self._until:
            return False
        with self._lock:
            if self._failures < self.threshold:
                return True
            if now < self._until:
                return False
            self._until = now + self._pause  # should the trial never report back, the next comes then
            self._on_trial = True
            return True

    def would_admit(self, now: float) -> bool:
        """Return what `admits` would, without starting a trial."""
        return self._failures < self.threshold or now >= self._until

    def succeeded(self) -> None:
        """Record an answer."""
        if self._failures:
            with self._lock:
                self._failures = 0
                self._pause = self.first_pause
                self._on_trial = False

    def failed(self, now: float) -> bool:
        """Record a failure; return whether it has opened the circuit, or kept it open after a trial."""
        with self._lock:
            self._failures += 1
            if self._failures < self.threshold or (self._failures > self.threshold and not self._on_trial):
                return False  # too few yet, or of a call that began before the circuit opened
            if self._on_trial:
                self._pause = min(2 * self._pause, self.longest_pause)
            self._on_trial = False
            self._until = now + self._pause * random.uniform(0.5, 1.0)
            return True
