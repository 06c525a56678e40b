"""How queries scale: two threads, and two processes for comparison, which show what the machine has to give."""

from __future__ import annotations

import gc
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection

import numpy as np

from rest_store.datastore.datastore import Datastore

Contexts = list[list[int]]
PASSES = 3  # over its contexts, each time somebody is asked to run


def compare_threads(store: Datastore, contexts: Contexts, rounds: int = 5) -> dict[str, float]:
    """Time the same work on one thread, on two, and on two processes, in turns; contexts a second."""

    def single(part: Contexts) -> None:
        for context in part:
            store.draft(context)

    def batches(part: Contexts) -> None:
        for start in range(0, len(part), 64):
            store.draft_batch(part[start : start + 64])

    ways: dict[str, Callable[[Contexts], None]] = {"single calls": single, "batches of 64": batches}

    def on_threads(name: str, number: int) -> None:
        def run(part: Contexts) -> None:
            for _ in range(PASSES):
                ways[name](part)

        running = [threading.Thread(target=run, args=(contexts[place::number],)) for place in range(number)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()

    figures: dict[str, float] = {}
    with _two_processes(ways, contexts) as on_processes:
        workers: dict[str, Callable[[str], None]] = {
            "1 thread": lambda name: on_threads(name, 1),
            "2 threads": lambda name: on_threads(name, 2),
            "2 processes": on_processes,
        }
        for name in ways:
            rates: dict[str, list[float]] = {worker: [] for worker in workers}
            for _ in range(rounds):
                for worker, run in workers.items():
                    start = time.perf_counter()
                    run(name)
                    rates[worker].append(PASSES * len(contexts) / (time.perf_counter() - start))
            rate = {worker: float(np.median(these)) for worker, these in rates.items()}
            figures |= {f"{name}, {worker}": round(value) for worker, value in rate.items()}
            figures[f"{name}, ratio"] = round(rate["2 threads"] / rate["1 thread"], 2)
            figures[f"{name}, ratio of processes"] = round(rate["2 processes"] / rate["1 thread"], 2)
            print(
                f"{name}: {rate['1 thread']:,.0f} contexts a second on one thread, {rate['2 threads']:,.0f} on two: "
                f"{figures[f'{name}, ratio']:.2f} times; on two processes {figures[f'{name}, ratio of processes']:.2f}"
            )
    return figures


@contextmanager
def _two_processes(ways: dict[str, Callable[[Contexts], None]], contexts: Contexts) -> Iterator[Callable[[str], None]]:
    """Fork two processes that go one of `ways` over their half of `contexts` when told its name."""
    context = multiprocessing.get_context("fork")

    def work(place: int, told: Connection) -> None:
        gc.disable()
        for way in ways.values():
            way(contexts)  # maps the pages
        told.send(None)
        while (name := told.recv()) is not None:
            for _ in range(PASSES):
                ways[name](contexts[place::2])
            told.send(None)

    ends = [context.Pipe() for _ in range(2)]
    processes = [context.Process(target=work, args=(place, end)) for place, (_, end) in enumerate(ends)]
    for process in processes:
        process.start()
    tell = [end for end, _ in ends]

    def run(name: str) -> None:
        for end in tell:
            end.send(name)
        for end in tell:
            end.recv()

    for end in tell:
        end.recv()
    try:
        yield run
    finally:
        for end in tell:
            end.send(None)
        for process in processes:
            process.join()
