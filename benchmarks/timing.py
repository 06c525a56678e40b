"""Times of calls in microseconds, and their summary."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np


def time_each(call: Callable[[Any], object], arguments: Iterable[Any]) -> list[float]:
    """Return the microseconds that `call` takes with each of `arguments`, one after the other."""
    times = []
    clock = time.perf_counter_ns
    for argument in arguments:
        start = clock()
        call(argument)
        times.append((clock() - start) / 1e3)
    return times


def percentiles(times: Iterable[float]) -> dict[str, float]:
    """Return median, mean, 90th and 99th percentile and maximum of microseconds."""
    values = np.fromiter(times, np.float64)
    figures = {"median": np.median(values), "mean": values.mean(), "p90": np.percentile(values, 90)}
    figures |= {"p99": np.percentile(values, 99), "max": values.max()}
    return {name: round(float(value), 2) for name, value in figures.items()}
