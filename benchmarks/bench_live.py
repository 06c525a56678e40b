"""Measure a live datastore: the time of additions, of queries meanwhile, and of replicas.

- add: 500 tokens, durable and visible, in turns with SQLite's bare commit of the same bytes.
- queries: drafts and steps of a session from a live datastore while a thread adds to it at full
  speed, mostly single documents. For comparison, a frozen datastore of the documents at the
  beginning is queried, alone before and in turns meanwhile.
- fleet: a service of it and replicas. The time until a document added at one replica is drafted
  from at another, and until a new replica is complete. Steps of a session from a replica in turns
  with steps from a local copy without additions. Documents a second through the service with 8
  replicas in processes of their own.

Documents are pieces of those of --datastore.
"""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
from timing import percentiles, time_each

from rest_store.bench.measurement_options import Destination, result_options
from rest_store.bench.results import write_result
from rest_store.command_options import PATH, SETTINGS
from rest_store.datastore.datastore import Datastore
from rest_store.datastore.store import Store
from rest_store.drafting.session import DraftSession
from rest_store.live.export import export
from rest_store.live.live_datastore import LiveDatastore

SIZE = 500  # tokens of a document
TURN = 2_000  # contexts
SESSIONS = 50  # of a turn, each in a context of its own
STEPS = 4  # of a session
CONTEXT = 32
FOLLOWERS = 8  # replicas in processes of their own
DOCUMENTS = 10_000  # added beside them
REQUEST_DOCUMENTS = 50  # of them in one request
FOLLOW = """
import sys, time
from rest_store.live.live_datastore import LiveDatastore
location, cache, documents = sys.argv[1:]
with LiveDatastore.open(location, cache=cache) as replica:
    print("open", flush=True)
    began = time.process_time()
    while replica.info().document_count < int(documents):
        replica.wait_for_change(replica.newest_change, 1.0)
    print(time.process_time() - began)
"""
TURNS = 20  # of steps from a replica
RATE = 100  # documents a second, added during queries of a replica
ADD = """
import sys, time
import numpy as np
from rest_store.service.client.client import DatastoreClient
target, name, documents, rate = sys.argv[1:]
with DatastoreClient(target, datastore=name) as client:
    for number, document in enumerate(np.load(documents)):
        began = began if number else time.monotonic()
        time.sleep(max(0.0, began + number / float(rate) - time.monotonic()))
        client.add([document])
"""
# Queries a store for each context, and returns the microseconds of each query.
Querying = Callable[[Store, list[list[int]]], list[float]]


MEASUREMENTS = ("add", "queries", "fleet")


class Source:
    """Documents cut from those of a datastore."""

    def __init__(self, path: Path) -> None:
        store = Datastore.open(path)
        symbols = np.concatenate([shard.tokens.symbols() for shard in store.shards])
        self.tokenizer = store.tokenizer
        self.tokens = symbols[symbols < store.vocabulary_size].astype(np.int32)
        self.random = np.random.default_rng(0)

    def documents(self, count: int, size: int = SIZE) -> list[npt.NDArray[np.int32]]:
        """Return pieces from random positions."""
        starts = self.random.integers(0, self.tokens.size - size, count)
        return [self.tokens[start : start + size] for start in starts]

    def contexts(self, count: int) -> list[list[int]]:
        """Return contexts for queries."""
        return [document.tolist() for document in self.documents(count, CONTEXT)]


@click.command(
    help=__doc__,
    context_settings=SETTINGS,
    epilog=(
        "Example: python benchmarks/bench_live.py --datastore python.ds --out live_datastore.json"
    ),
)
@click.option(
    "--datastore",
    metavar="DIR",
    type=PATH,
    required=True,
    help="Datastore to draft from: source of the text.",
)
@click.option(
    "--initial", metavar="N", default=4_000_000, help="Tokens of the datastores at the beginning."
)
@click.option(
    "--rounds",
    metavar="N",
    type=click.IntRange(1),
    default=10,
    help="Turns of 200 additions and queries.",
)
@click.option(
    "--measure",
    "measurements",
    multiple=True,
    type=click.Choice(MEASUREMENTS),
    default=MEASUREMENTS,
    help="Measurement to make. Repeatable.",
)
@result_options
def main(
    datastore: Path,
    initial: int,
    rounds: int,
    measurements: tuple[str, ...],
    out: Destination,
) -> None:
    source = Source(datastore)
    results: dict[str, Any] = {"document": SIZE, "tokens": initial}
    gc.disable()
    with tempfile.TemporaryDirectory() as folder:
        parent = Path(folder)
        measures: dict[str, Callable[[], dict[str, Any]]] = {
            "add": lambda: show("add", measure_adding(source, parent, 200 * rounds)),
            "queries": lambda: measure_queries(source, parent, initial, rounds),
            "fleet": lambda: show("fleet", measure_fleet(source, parent, initial, 20 * rounds)),
        }
        for name in measurements:
            results[name] = measures[name]()
    write_result(
        out,
        "live_datastore",
        click.get_current_context().params,
        ("numpy", "pydivsufsort"),
        results,
    )


def show(name: str, figures: dict[str, Any]) -> dict[str, Any]:
    print(f"{name}: " + ", ".join(f"{key} {value:,}" for key, value in figures.items()), flush=True)
    return figures


def measure_adding(source: Source, parent: Path, count: int) -> dict[str, float]:
    """Add documents one by one to a datastore of a million tokens; microseconds."""
    database = sqlite3.connect(parent / "bare.sqlite", isolation_level=None)
    for setting in ("journal_mode=WAL", "synchronous=FULL", "wal_autocheckpoint=0"):
        database.execute(f"PRAGMA {setting}")
    database.execute("CREATE TABLE documents (number INTEGER PRIMARY KEY, symbols BLOB)")

    def commit(symbols: bytes) -> None:
        database.execute("BEGIN IMMEDIATE")
        database.execute("INSERT INTO documents (symbols) VALUES (?)", (symbols,))
        database.execute("COMMIT")

    added = []
    bare = []
    with LiveDatastore.open(parent / "add", tokenizer=source.tokenizer) as live:
        live.add(source.documents(2_000))
        for _ in range(count // 20):
            some = source.documents(20)
            bare += time_each(commit, [document.astype(">u2").tobytes() for document in some])
            added += time_each(lambda document: live.add([document]), some)
            database.execute("PRAGMA wal_checkpoint(PASSIVE)")
    database.close()
    ours = percentiles(added)
    theirs = percentiles(bare)
    return {
        "median_us": ours["median"],
        "p99_us": ours["p99"],
        "commit_median_us": theirs["median"],
        "commit_p99_us": theirs["p99"],
        "beyond_commit_median_us": round(ours["median"] - theirs["median"], 1),
    }


def drafts(nodes: int) -> Querying:
    return lambda store, contexts: time_each(
        lambda context: store.draft(context, max_nodes=nodes), contexts
    )


def steps(nodes: int) -> Querying:
    def query(store: Store, contexts: list[list[int]]) -> list[float]:
        times = []
        for context in contexts[:SESSIONS]:
            with DraftSession([store], context[: CONTEXT // 2]) as session:
                session.draft(nodes)
                for position in range(CONTEXT // 2, CONTEXT // 2 + 2 * STEPS, 2):
                    session.accept(context[position : position + 2])
                    began = time.perf_counter_ns()
                    session.draft(nodes)
                    times.append((time.perf_counter_ns() - began) / 1e3)
        return times

    return query


QUERIES = {
    "draft of 16": drafts(16),
    "draft of 64": drafts(64),
    "step of 16": steps(16),
    "step of 64": steps(64),
}


def measure_queries(source: Source, parent: Path, tokens: int, rounds: int) -> dict[str, Any]:
    """Time queries of a growing live datastore, in turns with a frozen one of its beginning."""
    # No context comes again: a frozen datastore would answer from its cache of trees.
    warm_up, *turns = [source.contexts(TURN) for _ in range(1 + rounds)]
    results: dict[str, Any] = {}
    for name, query in QUERIES.items():
        directory = parent / name
        with LiveDatastore.open(directory, tokenizer=source.tokenizer) as live:
            live.add(source.documents(tokens // SIZE))
            live.compact()
            frozen = export(live, parent / f"{name} frozen")
            times: dict[str, list[float]] = {
                "frozen alone": [],
                "frozen meanwhile": [],
                "live meanwhile": [],
            }
            query(frozen, warm_up)
            for turn in turns:
                times["frozen alone"] += query(frozen, turn)
            with growing(live, source):
                query(live, warm_up)
                segments = []
                for turn in turns:
                    times["frozen meanwhile"] += query(frozen, turn)
                    times["live meanwhile"] += query(live, turn)
                    segments.append(live.info().shard_count)
            tokens_at_end = live.info().token_count
        frozen.close()
        row: dict[str, float] = {}
        for queried, microseconds in times.items():
            figures = percentiles(microseconds)
            row[f"{queried}, median"] = figures["median"]
            row[f"{queried}, p99"] = figures["p99"]
        row["segments"] = float(np.median(segments))
        row["tokens at the end"] = tokens_at_end
        results[name] = show(name, row)
    return results


@contextmanager
def growing(live: LiveDatastore, source: Source) -> Iterator[None]:
    """Within the block, a thread adds documents at full speed: mostly one alone, then many."""
    stop = threading.Event()
    some = source.documents(1_000)

    def add() -> None:
        while True:
            for start in range(0, len(some), 10):
                for size in (1, 1, 1, 1, 64):
                    if stop.is_set():
                        return
                    live.add(some[start : start + size])

    thread = threading.Thread(target=add)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def measure_fleet(source: Source, parent: Path, tokens: int, additions: int) -> dict[str, float]:
    """Measure replicas of a service with `tokens` tokens.

    Replicas receive all documents, single ones, and many at full speed.
    """
    directory = parent / "served"
    with LiveDatastore.open(directory, tokenizer=source.tokenizer) as live:
        live.add(source.documents(tokens // SIZE))
        live.compact()
    shutil.copytree(directory, parent / "local")
    command = [
        sys.executable,
        "-m",
        "rest_store",
        "serve",
        "--live",
        f"chat={directory}",
        "--listen",
        "127.0.0.1:0",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as service:
        location = first_line(service).split()[-1] + "/chat"
        try:
            began = time.perf_counter()
            with LiveDatastore.open(location, cache=parent / "one") as one:
                while one.info().token_count < tokens // SIZE * SIZE:
                    one.wait_for_change(one.newest_change, 1.0)
                complete = time.perf_counter() - began
                step_times = measure_steps(source, parent, one, location, service)
                with LiveDatastore.open(location, cache=parent / "two") as two:
                    while two.newest_change < one.newest_change:
                        two.wait_for_change(two.newest_change, 1.0)
                    seen = time_each(
                        lambda document: add_and_wait(one, two, document),
                        source.documents(additions),
                    )
            following = measure_following(
                source, parent, location, tokens // SIZE + additions, service.pid
            )
        finally:
            service.terminate()
    figures = percentiles([microseconds / 1e3 for microseconds in seen])
    return {
        "complete_s": round(complete, 2),
        "seen_median_ms": figures["median"],
        "seen_p99_ms": figures["p99"],
        **step_times,
        **following,
    }


def first_line(process: subprocess.Popen[str]) -> str:
    """Wait for the first line of a process with a pipe, and return it."""
    return process.stdout.readline() if process.stdout is not None else ""


def measure_steps(
    source: Source,
    parent: Path,
    replica: LiveDatastore,
    location: str,
    service: subprocess.Popen[str],
) -> dict[str, float]:
    """Time steps from a replica and a local copy in turns.

    Meanwhile the service is idle, then stopped, and then grows.
    """
    query = steps(16)
    target, _, name = location.partition("/")
    np.save(parent / "added.npy", np.stack(source.documents(100 * RATE)))
    command = [sys.executable, "-c", ADD, target, name, str(parent / "added.npy"), str(RATE)]
    with LiveDatastore.open(parent / "local", read_only=True) as local:

        def turns(state: str) -> dict[str, float]:
            stores = {"local": local, "replica": replica}
            times: dict[str, list[float]] = {where: [] for where in stores}
            for turn in range(TURNS):
                for where in sorted(stores, reverse=turn % 2 == 1):
                    times[where] += query(stores[where], source.contexts(SESSIONS))
            turn_figures = {}
            for where, microseconds in times.items():
                summary = percentiles(microseconds)
                turn_figures[f"{where}_{state}_median_us"] = summary["median"]
                turn_figures[f"{where}_{state}_p99_us"] = summary["p99"]
            return turn_figures

        replica.compact()
        turns("warm-up")
        figures = turns("idle")
        service.send_signal(signal.SIGSTOP)
        figures |= turns("stopped")
        service.send_signal(signal.SIGCONT)
        with subprocess.Popen(command) as adding:
            replica.wait_for_change(replica.newest_change, 30.0)
            figures |= turns("growing")
            adding.kill()
    return figures


def add_and_wait(one: LiveDatastore, two: LiveDatastore, document: npt.NDArray[np.int32]) -> None:
    """Add a document at a replica, and wait until another one has it."""
    before = two.newest_change
    one.add([document])
    while two.newest_change < one.newest_change:
        two.wait_for_change(before, 1.0)


def measure_following(
    source: Source, parent: Path, location: str, stored: int, service: int
) -> dict[str, float]:
    """Add documents until all replicas, which were complete before, have them.

    Return the rates, and the processor time of a document in the service and in a replica.
    """
    from rest_store.service.client.client import DatastoreClient

    followers = []
    for number in range(FOLLOWERS):
        shutil.copytree(parent / "one", parent / f"follower {number}")
        arguments = [location, str(parent / f"follower {number}"), str(stored + DOCUMENTS)]
        command = [sys.executable, "-c", FOLLOW, *arguments]
        followers.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    for follower in followers:
        first_line(follower)
    some = source.documents(DOCUMENTS)
    starts = range(0, DOCUMENTS, REQUEST_DOCUMENTS)
    target, _, name = location.partition("/")
    worked = processor_seconds(service)
    began = time.perf_counter()
    with DatastoreClient(target, datastore=name) as client, ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda start: client.add(some[start : start + REQUEST_DOCUMENTS]), starts))
    added = time.perf_counter() - began
    replicas = [float(follower.communicate()[0]) for follower in followers]
    return {
        "documents_per_s": round(DOCUMENTS / (time.perf_counter() - began)),
        "added_per_s": round(DOCUMENTS / added),
        "service_cpu_us_a_document": round(1e6 * (processor_seconds(service) - worked) / DOCUMENTS),
        "replica_cpu_us_a_document": round(1e6 * float(np.mean(replicas)) / DOCUMENTS),
    }


def processor_seconds(process: int) -> float:
    """Return the processor time of a process so far."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
