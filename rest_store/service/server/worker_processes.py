"""Worker processes of one service, which listen at the same ports.

They serve the same frozen datastores. The operating system deals connections out to them.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import partial


def fork_workers(number: int, announce: Callable[[], None]) -> tuple[int, Callable[..., None]]:
    """Fork workers, and return in each of them.

    Call this before gRPC is loaded, which does not survive a fork. The first process does not
    return: it calls `announce` once all workers answer, and passes signals on to them. It ends with
    the first worker that ends, and with the status of that one.

    Args:
        number: of workers.
        announce: called in the first process.

    Returns:
        The number of this worker, from 0, and a function that it calls once it answers.
    """
    reader, writer = os.pipe()
    workers: list[int] = []
    is_ending = False
    for worker in range(number):
        process = os.fork()
        if process == 0:
            os.close(reader)
            return worker, partial(_answers, writer)
        workers.append(process)
    os.close(writer)

    def pass_on(signal_number: int, _: object = None) -> None:
        nonlocal is_ending
        if not is_ending:  # a worker that is about to exit would die of a second SIGTERM
            is_ending = signal_number != signal.SIGHUP
            for process in workers:
                os.kill(process, signal_number)

    for signal_number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signal_number, pass_on)
    with os.fdopen(reader, "rb") as answering:
        # The read ends when each worker has answered, or has ended without.
        if len(answering.read()) == number:
            announce()
        else:
            pass_on(signal.SIGTERM)
    status = 0
    while workers:
        process, ended = os.wait()
        workers.remove(process)
        status = status or os.waitstatus_to_exitcode(ended)
        pass_on(signal.SIGTERM)
    sys.exit(abs(status))


def _answers(writer: int, *_: object) -> None:
    os.write(writer, b".")
    os.close(writer)
