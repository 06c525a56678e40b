"""Measure the time of drafting through services, in turns with the same in process.

Services run on this machine, each in a process of its own: one of all datastores, and one for each
datastore, whose trees a session merges.

Steps: sessions replay generations (`walks.py`) in process, through the one service over TCP and
over a Unix socket, and through the services of single datastores. The figures are median and 99th
percentile of a step in microseconds, without the first step of each session; the median of first
steps; M; and the number of steps without an answer.

At once, steps a second: 16 processes each run one session after another for some seconds. In
process there are as many as cores.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import click
import numpy as np
from timing import percentiles
from walks import CONTEXT, Walk, long_walks

from rest_store.bench.measurement_options import (
    Destination,
    datastores_option,
    every_option,
    recordings_option,
    result_options,
)
from rest_store.bench.recordings import read_recordings, split
from rest_store.bench.results import write_result
from rest_store.command_options import SETTINGS
from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import PromptLookup, RecycledLogits
from rest_store.live.open_store import open_datastores
from rest_store.service.client.client import DatastoreClient

NODES = (16, 64)
SESSIONS = 16  # at once
TIMEOUT = 60.0  # seconds for an answer: a busy machine must not end a measurement
Sources = Sequence[object]


@click.command(
    help=__doc__,
    context_settings=SETTINGS,
    epilog=(
        "Example: python benchmarks/bench_service.py --recordings traces.jsonl.gz --datastore"
        " python.ds"
    ),
)
@recordings_option()
@datastores_option
@every_option
@click.option(
    "--seconds", metavar="SECONDS", default=4.0, help="Time of the sessions at once, for each way."
)
@result_options
def main(
    recordings: tuple[Path, ...],
    datastores: tuple[Path, ...],
    every: int,
    seconds: float,
    out: Destination,
) -> None:
    chosen = []
    for path in recordings:
        chosen += read_recordings(path)
    others, held_out = split(chosen, "bench_service.py")
    walks = long_walks(held_out[::every], others)
    stores = list(open_datastores(datastores).values())
    tokens = [store.info().token_count for store in stores]
    results: dict[str, Any] = {"context": CONTEXT, "datastores": tokens}
    with contextlib.ExitStack() as stack:
        tcp, unix = stack.enter_context(serving(datastores, "127.0.0.1:0"))
        ways: dict[str, Sources] = {
            "in process": stores,
            "service, TCP": [stack.enter_context(connected_client(tcp))],
            "service, Unix socket": [stack.enter_context(connected_client(unix))],
        }
        if len(datastores) > 1:
            targets = [stack.enter_context(serving([path]))[0] for path in datastores]
            clients = [stack.enter_context(connected_client(target)) for target in targets]
            ways["a service each, Unix sockets"] = clients
        for nodes in NODES:
            results[f"{nodes} nodes"] = steps_in_turns(ways, walks, nodes)
        results["at once"] = at_once(
            {"in process": datastores, "service, Unix socket": unix}, walks, seconds
        )
    write_result(
        out, "service", click.get_current_context().params, ("grpcio", "protobuf", "numpy"), results
    )


@contextlib.contextmanager
def serving(directories: Sequence[Path], *others: str) -> Iterator[list[str]]:
    """Serve `directories` by their numbers; yield the addresses, and end the service afterwards.

    Args:
        directories: directories of datastores.
        others: addresses to listen on besides a Unix socket, which is the last.
    """
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="rest-store-"))
        command = [sys.executable, "-m", "rest_store", "serve"]
        command += [f"{number}={directory}" for number, directory in enumerate(directories)]
        for address in (*others, f"unix:{folder}/socket"):
            command += ["--listen", address]
        process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        stack.callback(process.terminate)
        addresses = []
        for line in process.stdout or ():
            if line.startswith("ready"):
                break
            if line.startswith("listening on "):
                addresses.append(line.split()[-1])
        yield addresses


@contextlib.contextmanager
def connected_client(target: str) -> Iterator[DatastoreClient]:
    with DatastoreClient(target, timeout=TIMEOUT) as client:
        client.info()
        yield client


def steps_in_turns(
    ways: Mapping[str, Sources], walks: Sequence[Walk], nodes: int
) -> dict[str, dict[str, float]]:
    """Return the figures of each way's steps."""
    times: dict[str, list[float]] = {way: [] for way in ways}
    openings: dict[str, list[float]] = {way: [] for way in ways}
    omissions = dict.fromkeys(ways, 0)
    names = list(ways)
    for number in range(-1, len(walks)):  # the first session warms up
        for turn in range(len(names)):
            way = names[(number + turn) % len(names)]
            took, missed = session_steps(ways[way], walks[max(0, number)], nodes)
            if number >= 0:
                openings[way].append(took[0])
                times[way] += took[1:]
                omissions[way] += missed
    tokens = sum(walk.text.size - walk.start for walk in walks)
    table_rows = {}
    for way in names:
        figures = percentiles(times[way])
        row = {
            "median us": figures["median"],
            "p99 us": figures["p99"],
            "opening us": float(np.median(openings[way])),
            "M": round(tokens / (len(times[way]) + len(walks)), 4),
            "without an answer": omissions[way],
        }
        table_rows[way] = show(f"{nodes} nodes, {way}", row)
    return table_rows


def show(name: str, figures: dict[str, float]) -> dict[str, float]:
    rounded = {key: round(value, 4 if key == "M" else 1) for key, value in figures.items()}
    print(f"{name}: " + ", ".join(f"{key} {value}" for key, value in rounded.items()), flush=True)
    return rounded


def session_steps(sources: Sources, walk: Walk, nodes: int) -> tuple[list[float], int]:
    """Run one session as generation does.

    Return the microseconds of each step, and the number of steps that lacked a source.

    A step hands over the accepted tokens with the model's likely tokens, and drafts the next tree.
    The first one opens the session.
    """
    position = walk.start
    times = []
    began = time.perf_counter()
    with DraftSession(
        [*sources, PromptLookup(), RecycledLogits()], walk.text[:position]
    ) as session:
        while True:
            tree = session.draft(nodes)
            times.append((time.perf_counter() - began) * 1e6)
            path = tree.longest_path(walk.text[position:])
            end = walk.step_end(position, path)
            if end == walk.text.size:
                return times, sum(session.statistics.omissions.values())
            tokens = walk.text[position:end]
            likely = walk.likely(position, tree, path)
            position = end
            began = time.perf_counter()
            session.accept(tokens, **likely)


def at_once(ways: Mapping[str, Any], walks: Sequence[Walk], seconds: float) -> dict[str, float]:
    """Return the steps a second of many processes together, by way.

    Args:
        ways: the directories of the datastores, or the address of a service.
        walks: the generations.
        seconds: time of each way.
    """
    rates = {}
    spawn = multiprocessing.get_context("spawn")
    for way, location in ways.items():
        number = SESSIONS if isinstance(location, str) else os.cpu_count() or 1
        with spawn.Pool(number, connect, (location, walks, spawn.Barrier(number))) as pool:
            tasks = [(first, seconds) for first in range(number)]
            rates[way] = round(sum(pool.starmap(step_rate, tasks, 1)), 1)
    return show(f"{SESSIONS} sessions at once, steps a second", rates)


_here: dict[str, Any] = {}  # of a process of `at_once`


def connect(location: Any, walks: Sequence[Walk], start: Barrier) -> None:
    sources: Sources
    if isinstance(location, str):
        sources = [DatastoreClient(location, timeout=TIMEOUT)]
    else:
        sources = list(open_datastores(location).values())
    _here.update(sources=sources, walks=walks, start=start)
    session_steps(sources, walks[0], NODES[0])


def step_rate(first: int, seconds: float) -> float:
    """Run sessions, at least one, for `seconds` once all processes began; return steps a second."""
    walks = _here["walks"]
    number = first
    count = 0
    _here["start"].wait()
    began = time.monotonic()
    while count == 0 or time.monotonic() < began + seconds:
        count += len(session_steps(_here["sources"], walks[number % len(walks)], NODES[0])[0])
        number += SESSIONS
    return count / (time.monotonic() - began)


if __name__ == "__main__":
    main()
