"""The clock that says how old documents are: `Clock`."""

from __future__ import annotations

import time


class Clock:
    """Monotonic time in seconds since 1970, anchored to the newest document.

    A wrong system clock cannot evict everything. When the datastore is opened, its time starts at
    the system's time, with two exceptions. If the system's clock is behind the newest document, or
    ahead of it by `max_ahead` seconds or more, time continues from the newest document. In the
    second case the clock is wrong, or no process wrote the datastore for long. Nobody can tell
    which, and documents that stay for too long do less harm than documents that are lost.

    The system's clock may also have been ahead earlier, when the newest documents were added. Time
    is then ahead of the system's clock by less than `max_ahead`. Until the clocks agree again, the
    documents of before this opening count as younger by that difference, but none as younger than
    the opening.

    Args:
        newest: the time when the newest document was added; 0.0: there is none.
        max_ahead: the shortest `max_age` of all namespaces; infinite if there is none.
    """

    def __init__(self, newest: float, max_ahead: float) -> None:
        now = time.time()
        is_plausible = newest <= now < newest + max_ahead
        self._max_ahead = max_ahead
        self._start = now if not newest or is_plausible else newest
        self._offset = self._start - _monotonic_seconds()

    def now(self) -> float:
        """Return the present time. A document that is added now gets it."""
        return self._offset + _monotonic_seconds()

    def age(self, added: float) -> float:
        """Return the seconds since a document was added."""
        now = self.now()
        ahead = now - time.time()
        if added < self._start and 0 < ahead < self._max_ahead:
            added = min(added + ahead, self._start)
        return now - added


def _monotonic_seconds() -> float:
    # CLOCK_BOOTTIME also counts the time in which the machine sleeps.
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
