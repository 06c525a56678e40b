"""The threads on which the work of requests runs.

Small work runs in the event loop: a draft takes microseconds, less than a switch of threads. Larger
work runs on worker threads. Its queries release the GIL, so that other requests are answered
meanwhile. Long texts of sessions are taken in on one thread of their own: however many they are,
they take one core, and nothing else waits for them.

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
    """Runs work for one event loop; to be made and used in the thread of that loop.

    Attributes:
        workers: threads for large requests.
    """

    def __init__(self) -> None:
        self.workers = ThreadPoolExecutor(min(4, os.cpu_count() or 1), "draft")
        self._opener = ThreadPoolExecutor(1, "open")

    async def run(self, task: Callable[[], T], *, small: bool) -> T:
        """Return the result of `task`.

        Args:
            task: the work.
            small: whether it takes less than about a millisecond.
        """
        if small:
            return task()
        return await asyncio.get_running_loop().run_in_executor(self.workers, task)

    async def open(self, task: Callable[[], T], *, small: bool) -> T:
        """Return the result of a task that takes in the text of a session, as `run`."""
        if small:
            return task()
        return await asyncio.get_running_loop().run_in_executor(self._opener, task)

    def close(self) -> None:
        """Drop the work that waits."""
        for threads in (self.workers, self._opener):
            threads.shutdown(wait=False, cancel_futures=True)
