"""Where the work of a request runs: in the event loop, or on worker threads.

Small work runs in the event loop: a draft takes microseconds, less than a switch of threads. Larger
work goes to worker threads, whose queries release the GIL, so that other requests are answered
meanwhile. Long texts of sessions wait for a thread of their own: whatever their number, they take
one core, and nothing else waits for them.

Work that waits for a thread is dropped when its caller is cancelled, because the client has gone.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class Executor:
    """Runs work for one event loop, in whose thread it is made and used.

    Attributes:
        workers: threads for large requests.
    """

    def __init__(self) -> None:
        self.workers = ThreadPoolExecutor(min(4, os.cpu_count() or 1), "draft")
        self._opener = ThreadPoolExecutor(1, "open")

    async def run(self, task: Callable[[], T], *, small: bool) -> T:
        """Return the result of `task`; `small`: it takes less than a millisecond or so."""
        return (
            task()
            if small
            else await asyncio.get_running_loop().run_in_executor(self.workers, task)
        )

    async def open(self, task: Callable[[], T], *, small: bool) -> T:
        """Return what `run` does, of a task that takes in the text of a session."""
        return (
            task()
            if small
            else await asyncio.get_running_loop().run_in_executor(self._opener, task)
        )

    def close(self) -> None:
        """Drop what waits."""
        for threads in (self.workers, self._opener):
            threads.shutdown(wait=False, cancel_futures=True)
