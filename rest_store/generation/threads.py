"""As many of torch's threads as are worth it, on a machine as busy as it is.

Threads of a pass wait for each other after each operation. Where other programs have the
processors, a thread that is waited for may not be running at all, and one thread is then several
times as fast as all.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

_ROUNDS = 5  # of a comparison, where there is time
_MIN_ROUNDS = 2
_SECONDS = 0.5  # after which no round of a comparison begins
_WORTH = 1.2  # how many times as fast fewer threads have to be


@contextmanager
def fitting_threads(work: Callable[[], object]) -> Iterator[int]:
    """Let torch compute with fewer threads inside a `with` block where `work` is faster with fewer.

    Half as many are tried, and half of those, for as long as that pays; one comparison takes a
    fraction of a second.

    Args:
        work: a function that is timed, as often as needed.

    Yields:
        The number of threads.
    """
    before = torch.get_num_threads()
    try:
        threads = before
        while threads > 1 and _speedup(work, threads, threads // 2) >= _WORTH:
            threads //= 2
        torch.set_num_threads(threads)
        yield threads
    finally:
        torch.set_num_threads(before)


def _speedup(work: Callable[[], object], many: int, few: int) -> float:
    """Return the median speedup of `work` with `few` threads over `many`, run in turns."""
    ratios: list[float] = []
    end = time.perf_counter() + _SECONDS
    while len(ratios) < _MIN_ROUNDS or (len(ratios) < _ROUNDS and time.perf_counter() < end):
        ratios.append(_seconds(work, many) / _seconds(work, few))
    return statistics.median(ratios)


def _seconds(work: Callable[[], object], threads: int) -> float:
    torch.set_num_threads(threads)
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
