"""Where the work of a request runs: in the event loop, or on worker threads.

Small work runs in the event loop: a draft takes microseconds, less than a switch of threads. Larger work goes to worker
threads, whose queries release the GIL, so that other requests are answered meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class Executor:
    """Runs work for one event loop, in whose thread it is made and used."""

    def __init__(self, workers: ThreadPoolExecutor) -> None:
        self._workers = workers

    async def run(self, task: Callable[[], T], *, small: bool) -> T:
        """Return the result of `task`; `small`: it takes less than a millisecond or so.

        Work that waits for a thread is dropped when the caller is cancelled, because its client has gone.
        """
        if small:
            return task()
        return await asyncio.get_running_loop().run_in_executor(self._workers, task)
