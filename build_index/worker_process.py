"""The program of a worker process: setup and tasks come in by standard input, results go out by standard output."""

from __future__ import annotations

import os
import pickle
import signal
import sys
import threading
import traceback
from queue import SimpleQueue
from typing import Any, BinaryIO

from build_index.allocator import limit_arenas
from build_index.tasks import Setup, Task, TaskRunner


def main() -> None:
    """Do tasks until the standard input ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    requests, results = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)  # what packages print must not get between the results
    limit_arenas()
    received: SimpleQueue[Any] = SimpleQueue()
    threading.Thread(target=_receive, args=(requests, received), daemon=True).start()
    setup: Setup = received.get()
    runner = TaskRunner(setup)
    while True:
        task: Task = received.get()
        result = runner.run(task)
        try:
            pickle.dump(result, results)
            results.flush()
        except OSError:
            os._exit(1)  # nobody waits for it


def _receive(requests: BinaryIO, received: SimpleQueue[Any]) -> None:
    """Pass on what comes in; at its end, end the process, whatever it does: the build is over."""
    while True:
        try:
            received.put(pickle.load(requests))
        except (EOFError, pickle.UnpicklingError):  # the latter if the build was killed while it sent something
            sys.stderr.flush()
            os._exit(0)
        except BaseException:  # such as a package that cannot be imported here: the build must not wait for an answer
            traceback.print_exc()
            os._exit(1)
