"""Measure ways in which torch's threads wait, with a load on the machine and without.

Threads of OpenMP wait after each operation of a pass. They spin for a while and then sleep; the
environment says how long, before torch is imported. A process for each setting runs the same
passes over 16 tokens. The processes take turns, first on the machine as it is, then beside
processes that do nothing but keep processors busy. The figures are speeds relative to the default
setting of the same turn.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from typing import Any
from unittest.mock import patch

import click
import numpy as np

from rest_store.bench.measurement_options import Destination, result_options
from rest_store.bench.results import write_result
from rest_store.command_options import SETTINGS

DEFAULT = "nothing set"
WAYS = {
    DEFAULT: {},
    "GOMP_SPINCOUNT=1000": {"GOMP_SPINCOUNT": "1000"},
    "OMP_WAIT_POLICY=passive": {"OMP_WAIT_POLICY": "passive"},
    "OMP_NUM_THREADS=1": {"OMP_NUM_THREADS": "1"},
}
VARIABLES = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "OMP_NUM_THREADS")
TOKENS = 16  # of a pass
SIZES = {
    "smollm2-135m": {
        "vocab_size": 49152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
    },
    "tiny": {
        "vocab_size": 256,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
}

_spawn = multiprocessing.get_context("spawn")


def run_passes(connection: Connection, size: str) -> None:
    """Answer each number of passes with the seconds that they take, until it is 0."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES[size])).eval()
    ids = torch.randint(3, 200, (1, TOKENS))
    with torch.no_grad():
        model(ids, use_cache=False)
        connection.send(torch.get_num_threads())
        while passes := connection.recv():
            began = time.perf_counter()
            for _ in range(passes):
                model(ids, use_cache=False)
            connection.send(time.perf_counter() - began)


def spin() -> None:
    """Keep a processor busy."""
    while True:
        pass


@contextmanager
def worker(size: str, environment: dict[str, str]) -> Iterator[Connection]:
    """Run a process with these variables of OpenMP inside a `with` block."""
    here, there = _spawn.Pipe()
    process = _spawn.Process(target=run_passes, args=(there, size), daemon=True)
    with patch.dict(os.environ, environment):
        for name in set(VARIABLES) - environment.keys():
            os.environ.pop(name, None)
        process.start()
    try:
        yield here
        here.send(0)
        process.join()
    finally:
        process.kill()


@contextmanager
def load(processes: int) -> Iterator[None]:
    """Keep so many processors busy inside a `with` block."""
    busy = [_spawn.Process(target=spin, daemon=True) for _ in range(processes)]
    try:
        for process in busy:
            process.start()
        time.sleep(0.5 if busy else 0)
        yield
    finally:
        for process in busy:
            process.kill()
            process.join()


def measure(
    workers: dict[str, Connection], rounds: int, passes: int
) -> dict[str, dict[str, float]]:
    """Return the speed of each way relative to the default.

    It is the median of all turns, with their quartiles.
    """
    seconds: dict[str, list[float]] = {way: [] for way in workers}
    for number in range(rounds):
        order = list(workers)
        for way in order[number % len(order) :] + order[: number % len(order)]:
            workers[way].send(passes)
            seconds[way].append(workers[way].recv())
    figures = {}
    for way, taken in seconds.items():
        low, median, high = np.percentile(np.divide(seconds[DEFAULT], taken), (25, 50, 75)).tolist()
        figures[way] = {"speed": round(median, 2), "low": round(low, 2), "high": round(high, 2)}
    return figures


@click.command(
    help=__doc__,
    context_settings=SETTINGS,
    epilog="Example: python benchmarks/bench_threads.py --out threads.json",
)
@click.option(
    "--size", type=click.Choice(list(SIZES)), default="smollm2-135m", help="Of the model."
)
@click.option(
    "--busy", metavar="N", type=click.IntRange(1), default=4, help="Processes of the load."
)
@click.option(
    "--rounds", metavar="N", type=click.IntRange(1), default=20, help="Turns of each setting."
)
@click.option("--passes", metavar="N", type=click.IntRange(1), default=4, help="Of a turn.")
@result_options
def main(size: str, busy: int, rounds: int, passes: int, out: Destination) -> None:
    results: dict[str, Any] = {
        "processors": os.cpu_count(),
        "load average before": round(os.getloadavg()[0], 1),
    }
    with ExitStack() as stack:
        workers = {
            way: stack.enter_context(worker(size, environment)) for way, environment in WAYS.items()
        }
        results["threads"] = {way: connection.recv() for way, connection in workers.items()}
        for name, processes in (("as it is", 0), (f"beside {busy} busy processes", busy)):
            with load(processes):
                results[name] = measure(workers, rounds, passes)
            click.echo(f"{name}: {results[name]}", err=True)
    write_result(
        out,
        "threads",
        click.get_current_context().params,
        ("numpy", "torch", "transformers"),
        results,
    )


if __name__ == "__main__":
    main()
