"""Where the work of a request is done: at once in the event loop, or by worker threads.

Small work is done at once: a draft takes microseconds, less than handing it to a thread. Larger work goes to worker
threads in pieces (the kernel releases the GIL), so that others are answered meanwhile and that no more than a piece is
wasted on a client who has gone. So does all work for a second after a small one had to wait for the disk, as happens
while a datastore's pages are not in memory yet.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import TypeAlias, TypeVar

_SLOW = 0.002  # seconds of work in the event loop after which it is asked whether the disk was the reason
_PATIENCE = 1.0  # seconds for which work goes to worker threads if it was

Reply: TypeAlias = bytes | Awaitable[bytes]
_T = TypeVar("_T")


class Work:
    """Does work for one event loop, in whose thread it is made and used.

    Attributes:
        patient_until: on the clock of `perf_counter`, when small work may be done at once again.
    """

    __slots__ = ("_waits", "_workers", "patient_until")

    def __init__(self, workers: ThreadPoolExecutor) -> None:
        self._workers = workers
        self.patient_until = 0.0
        self._waits = _disk_waits()

    def done(self, work: Sequence[Callable[[], _T]], small: bool, finish: Callable[[list[_T]], bytes]) -> Reply:
        """Do `work`, at once if it is small and the disk was not met lately, and make the answer of its results."""
        start = perf_counter()
        if not small or start < self.patient_until:
            return self._done_by_workers(work, finish)
        results = [piece() for piece in work]
        self.look_at_disk(start)
        return finish(results)

    def look_at_disk(self, start: float) -> None:
        """Notice it if work in the event loop, begun at `start`, has waited for the disk."""
        if perf_counter() - start > _SLOW and (waits := _disk_waits()) > self._waits:
            self._waits = waits
            self.patient_until = start + _PATIENCE

    def forget_waits(self) -> None:
        """Forget past waits for the disk, that an old one is not taken for the reason of a new delay."""
        self._waits = _disk_waits()

    async def _done_by_workers(self, work: Sequence[Callable[[], _T]], finish: Callable[[list[_T]], bytes]) -> bytes:
        loop = asyncio.get_running_loop()
        return finish([await loop.run_in_executor(self._workers, piece) for piece in work])


def _disk_waits() -> int:
    """Return how many pages this thread has waited for."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
