"""Where the work of a request runs: in the event loop, or on worker threads.

Small work runs in the event loop: a draft takes microseconds, less than a switch of threads. Larger work goes to worker
threads, whose queries release the GIL, so that other requests are answered meanwhile. While a datastore's pages are not
in memory yet, even small work may wait for the disk: after such a wait all work goes to worker threads for a second.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import TypeVar

_SLOW = 0.002  # seconds in the event loop after which page faults are looked at
_DISK_SECONDS = 1.0  # for which all work goes to worker threads after a wait for the disk

T = TypeVar("T")


class Executor:
    """Runs work for one event loop, in whose thread it is made and used."""

    def __init__(self, workers: ThreadPoolExecutor) -> None:
        self._workers = workers
        self._threads_until = 0.0  # on the clock of `perf_counter`

    async def run(self, task: Callable[[], T], *, small: bool) -> T:
        """Return the result of `task`; `small`: it takes less than a millisecond or so."""
        start, page_faults = perf_counter(), _page_faults()
        if not small or start < self._threads_until:
            return await asyncio.get_running_loop().run_in_executor(self._workers, task)
        result = task()
        if perf_counter() - start > _SLOW and _page_faults() > page_faults:
            self._threads_until = start + _DISK_SECONDS
        return result


def _page_faults() -> int:
    """Return how many pages this thread has waited for: its major page faults."""
    return resource.getrusage(resource.RUSAGE_THREAD).ru_majflt
