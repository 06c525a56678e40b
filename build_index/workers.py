"""Who does the tasks of a build: processes on this machine, or whatever else can run Python."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

from build_index.allocator import mimalloc_variables
from build_index.shard_sorter import SortSeconds
from build_index.tasks import Setup, Task, TaskResult
from rest_store.errors import WorkerError

# A pool of one thread encodes by half as fast again as the main thread, which is what `TOKENIZERS_PARALLELISM=false`
# asks for: the allocator gives the pool's thread an arena that Python's objects are not in.
ONE_THREAD = {"RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "true"}
"""Variables of a process that is one worker of several; packages read them when they are loaded."""

_ATTEMPTS = 2  # at a task, each in a new process if the one before has ended


class Workers(Protocol):
    """What does tasks, several at once.

    Attributes:
        count: tasks that are done at once.
        sort: sorts a shard elsewhere, given the directory, its name and the size of the vocabulary; None: this process
            does. Called in a thread for each shard.
    """

    count: int
    sort: Callable[[Path, str, int], SortSeconds] | None

    def submit(self, task: Task) -> Future[TaskResult]:
        """Begin a task as soon as there is a worker for it; a worker that ends costs its tasks only.

        Returns:
            A future, whose result tells the errors of the task itself. It raises WorkerError if workers end again and
            again.
        """

    def peak_memory(self) -> int:
        """Return the sum over all workers so far of the peak of their resident memory in bytes."""

    def close(self) -> None:
        """End all workers at once, whatever they do. May be called again."""


class ProcessWorkers:
    """Processes on this machine.

    They end with this process, even when it is killed: then their standard input ends. They leave SIGINT and SIGTERM,
    which may be sent to all processes of a terminal or container, to this process.

    Args:
        setup: of the build.
        count: how many; they are started at once.

    Thread-safe.
    """

    sort: Callable[[Path, str, int], SortSeconds] | None = None

    def __init__(self, setup: Setup, count: int) -> None:
        self.count = count
        self._setup = pickle.dumps(setup)
        self._environment = {**os.environ, **ONE_THREAD}
        if setup.checked_characters is None:  # `fastokens` allocates little
            self._environment |= mimalloc_variables(os.environ)
        self._lock = threading.Lock()  # for:
        self._closed = False
        self._processes: set[_Process] = set()
        self._peaks: dict[int, int] = {}
        self._idle: SimpleQueue[_Process] = SimpleQueue()
        self._threads = ThreadPoolExecutor(count, "worker")
        try:
            for _ in range(count):
                self._idle.put(self._started())
        except BaseException:
            self.close()
            raise

    def submit(self, task: Task) -> Future[TaskResult]:
        """See `Workers.submit`."""
        return self._threads.submit(self._run, task)

    def peak_memory(self) -> int:
        """See `Workers.peak_memory`."""
        with self._lock:
            return sum(self._peaks.values())

    def close(self) -> None:
        """See `Workers.close`."""
        with self._lock:
            self._closed = True
            processes, self._processes = self._processes, set()
        for process in processes:
            process.end()
        self._threads.shutdown(cancel_futures=True)
        for process in processes:
            process.close()

    def _started(self) -> _Process:
        with self._lock:
            if self._closed:
                raise WorkerError("build: its workers have been ended")
            try:
                process = _Process(self._setup, self._environment)
            except OSError as error:
                raise WorkerError(f"build: a worker cannot be started ({error.strerror or error})") from error
            self._processes.add(process)
            return process

    def _run(self, task: Task) -> TaskResult:
        process = self._idle.get()
        try:
            for attempt in range(1, _ATTEMPTS + 1):
                try:
                    result = process.run(task)
                except (OSError, EOFError, pickle.UnpicklingError) as error:
                    status = process.end()
                    with self._lock:
                        self._processes.discard(process)
                    process.close()
                    if attempt == _ATTEMPTS or self._closed:
                        message = f"{task.where}: the process that reads it ended {_ATTEMPTS} times, {_reason(status)}"
                        raise WorkerError(message) from error
                    process = self._started()
                else:
                    with self._lock:
                        self._peaks[result.process] = result.peak_memory
                    return result
            raise AssertionError("unreachable")
        finally:
            self._idle.put(process)


class _Process:
    """A worker process, which does one task at a time."""

    def __init__(self, setup: bytes, environment: dict[str, str]) -> None:
        # The path of modules may have been changed since this process began. Imports read its texts alone.
        path = [entry for entry in sys.path if isinstance(entry, str)]
        program = f"import sys; sys.path[:] = {path!r}; from build_index.worker_process import main; main()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        self._setup: bytes | None = setup

    def run(self, task: Task) -> TaskResult:
        """Do a task; raise EOFError or OSError if the process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        if self._setup is not None:
            self._process.stdin.write(self._setup)
            self._setup = None
        pickle.dump(task, self._process.stdin)
        self._process.stdin.flush()
        result: Any = pickle.load(self._process.stdout)
        assert isinstance(result, TaskResult)
        return result

    def end(self) -> int:
        """Kill the process if it still runs; return its status, negative for a signal."""
        self._process.kill()
        return self._process.wait()

    def close(self) -> None:
        """Close the pipes of a process that has ended; nothing waits for it any more."""
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):  # what is left in a buffer cannot be written
                pipe.close()  # type: ignore[union-attr]


def _reason(status: int) -> str:
    if status == -signal.SIGKILL:
        return "by SIGKILL, perhaps for want of memory (--memory, --workers)"
    return f"by {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
