"""Measure a live datastore: what adding costs, what queries cost meanwhile, opening, memory, and a day in small.

- add: 500 tokens, durable and visible, in turns with SQLite's bare commit of the same bytes.
- bulk: many documents in one call.
- queries: drafts and steps of a session from a live datastore while a thread, or another process, adds to it at full
  speed, mostly single documents. For comparison, one static shard of the documents that the live datastore had at the
  beginning is queried, alone before and in turns meanwhile.
- open and memory: in processes of their own. Memory is anonymous memory, which does not include the page cache.
- day: many documents of 50 to 500 tokens are added with eviction; size, descriptors and memory are recorded meanwhile.

Documents are pieces of those of --datastore.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt
from timing import percentiles, time_each

from rest_store.bench.datastores import documents_of
from rest_store.bench.environment import write_result
from rest_store.bench.options import Destination, result_options, seed_option
from rest_store.datastore.datastore import Datastore
from rest_store.datastore.store import Store
from rest_store.drafting.session import DraftSession
from rest_store.live.export import export
from rest_store.live.live_datastore import LiveDatastore
from rest_store.options import PATH, SETTINGS

SIZE = 500  # tokens of a document, except in the day
NODES = (16, 64)
TURN = 2_000  # contexts
SESSIONS = 50  # of a turn, each in a context of its own
STEPS = 4  # of a session
TOGETHER = 32  # documents of an addition, in the day
CONTEXT = 32
Document = npt.NDArray[np.integer[Any]]


class Source:
    """Documents of any size, cut from those of a datastore."""

    def __init__(self, path: Path, seed: int) -> None:
        self.store = Datastore.open(path)
        self.tokenizer = self.store.manifest.tokenizer
        self.tokens = np.concatenate(list(documents_of(self.store, self.store.manifest.token_count))).astype(np.int32)
        self.random = np.random.default_rng(seed)

    def documents(self, count: int, least: int = SIZE, most: int = SIZE) -> list[Document]:
        """Return pieces from random places."""
        sizes = self.random.integers(least, most + 1, count)
        starts = self.random.integers(0, self.tokens.size - most, count)
        return [self.tokens[start : start + size] for start, size in zip(starts, sizes, strict=True)]

    def contexts(self, count: int) -> list[list[int]]:
        """Return texts to ask after."""
        return [document.tolist() for document in self.documents(count, CONTEXT, CONTEXT)]


@click.command(
    help=__doc__,
    context_settings=SETTINGS,
    epilog="Example: python benchmarks/bench_live_datastore.py --datastore python.ds --out live.json",
)
@click.option(
    "--datastore", metavar="DIR", type=PATH, required=True, help="Source of the tokens, with one shard or more."
)
@click.option("--tokens", metavar="N", default=4_000_000, help="Tokens of the datastores that are queried.")
@click.option("--opened", metavar="N", default=10_000_000, help="Tokens of the datastore that is opened.")
@click.option(
    "--rounds",
    metavar="N",
    type=click.IntRange(SESSIONS * STEPS),
    default=2_000,
    help=f"Additions timed, in multiples of 20. Of each store and size, as many steps of sessions, in multiples of "
    f"{SESSIONS * STEPS}, and ten times as many drafts.",
)
@click.option("--documents", metavar="N", default=1_000_000, help="Documents of the day; 0: no day.")
@click.option(
    "--max-tokens", metavar="N", default=20_000_000, help="Tokens beyond which the day's oldest documents are evicted."
)
@click.option("--work", metavar="DIR", type=PATH, show_default="a temporary one", help="Folder for what is written.")
@seed_option
@result_options
def main(
    datastore: Path,
    tokens: int,
    opened: int,
    rounds: int,
    documents: int,
    max_tokens: int,
    work: Path | None,
    seed: int,
    out: Destination,
) -> None:
    source = Source(datastore, seed)
    results: dict[str, Any] = {"document": SIZE, "tokens": tokens}
    gc.disable()
    with tempfile.TemporaryDirectory(dir=work) as folder:
        place = Path(folder)
        results["add"] = show("add", measure_adding(source, place, rounds))
        results["bulk"] = show("bulk", measure_bulk(source, place, tokens))
        results["queries"] = measure_queries(source, place, tokens, rounds)
        results["open"] = show("open", measure_opening(source, place, opened))
        results["memory"] = show("memory", in_a_process("memory", datastore, place / "memory", seed))
        if documents:
            results["day"] = measure_day(source, place, documents, max_tokens)
    parameters = {**click.get_current_context().params, "work": None}
    write_result(out, "live_datastore", parameters, ("numpy", "pydivsufsort"), results)


def show(name: str, figures: dict[str, Any]) -> dict[str, Any]:
    print(f"{name}: " + ", ".join(f"{key} {value:,}" for key, value in figures.items()), flush=True)
    return figures


def measure_adding(source: Source, place: Path, rounds: int) -> dict[str, float]:
    """Add documents one by one to a datastore of a million tokens; microseconds."""
    database = sqlite3.connect(place / "bare.sqlite", isolation_level=None)
    for setting in ("journal_mode=WAL", "synchronous=FULL", "wal_autocheckpoint=0"):
        database.execute(f"PRAGMA {setting}")
    database.execute("CREATE TABLE documents (number INTEGER PRIMARY KEY, symbols BLOB)")

    def commit(symbols: bytes) -> None:
        database.execute("BEGIN IMMEDIATE")
        database.execute("INSERT INTO documents (symbols) VALUES (?)", (symbols,))
        database.execute("COMMIT")

    added, bare = [], []
    with LiveDatastore.open(place / "add", tokenizer=source.tokenizer) as live:
        live.add(source.documents(2_000))
        for _ in range(rounds // 20):
            some = source.documents(20)
            bare += time_each(commit, [document.astype(">u2").tobytes() for document in some])
            added += time_each(lambda document: live.add([document]), some)
            database.execute("PRAGMA wal_checkpoint(PASSIVE)")
    database.close()
    ours, theirs = percentiles(added), percentiles(bare)
    return {
        "median_us": ours["median"],
        "p99_us": ours["p99"],
        "commit_median_us": theirs["median"],
        "commit_p99_us": theirs["p99"],
        "beyond_commit_median_us": round(ours["median"] - theirs["median"], 1),
    }


def measure_bulk(source: Source, place: Path, tokens: int) -> dict[str, float]:
    """Add many documents in one call, to an empty datastore."""
    some = source.documents(tokens // SIZE)
    with LiveDatastore.open(place / "bulk", tokenizer=source.tokenizer) as live:
        began, worked = time.perf_counter(), time.process_time()
        live.add(some)
        seconds, cpu = time.perf_counter() - began, time.process_time() - worked
    shutil.rmtree(place / "bulk")
    return {"tokens_per_s": round(tokens / seconds), "tokens_per_cpu_s": round(tokens / cpu)}


def measure_queries(source: Source, place: Path, tokens: int, rounds: int) -> dict[str, Any]:
    """Time queries of a live datastore while it grows, in turns with those of the shard that it was before."""
    # No context comes again: a static shard would answer from its cache of trees, where new documents change them.
    warm_up, *turns = [source.contexts(TURN) for _ in range(1 + rounds // (SESSIONS * STEPS))]
    results: dict[str, Any] = {}
    for where in ("thread", "process"):
        directory = place / where
        for name, ask in kinds_of_queries().items():
            with LiveDatastore.open(directory, tokenizer=source.tokenizer) as live:
                live.add(source.documents(tokens // SIZE))
                live.compact()
                static = export(live, place / "static")
            ask(static, warm_up)
            alone = [time for turn in turns for time in ask(static, turn)]
            with growing(where, directory, source) as live:
                ask(live, warm_up)
                beside: dict[str, list[float]] = {"static": [], "live": []}
                segments = []
                for turn in turns:
                    beside["static"] += ask(static, turn)
                    beside["live"] += ask(live, turn)
                    segments.append(live.info().shard_count)
                grown = live.info().token_count
            static.close()
            shutil.rmtree(directory)
            figures = {"static alone": percentiles(alone)}
            figures |= {f"{kind} meanwhile": percentiles(times) for kind, times in beside.items()}
            least, now = figures["static alone"], figures["live meanwhile"]
            row = {
                **figures,
                "median_ratio": round(now["median"] / least["median"], 2),
                "p99_ratio": round(now["p99"] / least["p99"], 2),
                "segments_median": float(np.median(segments)),
                "segments_most": max(segments),
                "tokens_at_the_end": grown,
            }
            results[f"{name}, adding in a {where}"] = row
            print(
                f"{name}, adding in a {where}: {least['median']:.0f} us alone (p99 {least['p99']:.0f}), "
                f"{figures['static meanwhile']['median']:.0f} ({figures['static meanwhile']['p99']:.0f}) meanwhile, "
                f"live {now['median']:.0f} ({now['p99']:.0f}): {row['median_ratio']} and {row['p99_ratio']} times, "
                f"{row['segments_median']:g} segments, {grown:,} tokens in the end",
                flush=True,
            )
    return results


def kinds_of_queries() -> dict[str, Callable[[Store, list[list[int]]], list[float]]]:
    """Return functions that ask a store after contexts and return the microseconds of each."""

    def drafts(nodes: int) -> Callable[[Store, list[list[int]]], list[float]]:
        return lambda store, contexts: time_each(lambda context: store.draft(context, max_nodes=nodes), contexts)

    def steps(nodes: int) -> Callable[[Store, list[list[int]]], list[float]]:
        def ask(store: Store, contexts: list[list[int]]) -> list[float]:
            times = []
            for context in contexts[:SESSIONS]:
                with DraftSession([store], context[: CONTEXT // 2]) as session:
                    session.draft(nodes)
                    for place in range(CONTEXT // 2, CONTEXT // 2 + 2 * STEPS, 2):
                        session.accept(context[place : place + 2])
                        began = time.perf_counter_ns()
                        session.draft(nodes)
                        times.append((time.perf_counter_ns() - began) / 1e3)
            return times

        return ask

    return {f"draft of {nodes}": drafts(nodes) for nodes in NODES} | {
        f"step of {nodes}": steps(nodes) for nodes in NODES
    }


@contextmanager
def growing(where: str, directory: Path, source: Source) -> Iterator[LiveDatastore]:
    """Within the block, a thread of this process or another process adds and merges at full speed."""
    if where == "thread":
        stop = threading.Event()
        with LiveDatastore.open(directory) as live:
            thread = threading.Thread(target=add_until, args=(live, source, stop.is_set))
            thread.start()
            try:
                yield live
            finally:
                stop.set()
                thread.join()
        return
    context = multiprocessing.get_context("spawn")
    begun, stopped = context.Event(), context.Event()
    process = context.Process(target=_grow, args=(directory, source.store.path, begun, stopped))
    process.start()
    while not begun.wait(1):
        if not process.is_alive():
            raise SystemExit("the process that adds has ended")
    try:
        with LiveDatastore.open(directory, read_only=True) as live:
            yield live
    finally:
        stopped.set()
        process.join()


def _grow(directory: Path, path: Path, begun: Any, stopped: Any) -> None:
    source = Source(path, 1)
    with LiveDatastore.open(directory) as live:
        begun.set()
        add_until(live, source, stopped.is_set)


def add_until(live: LiveDatastore, source: Source, stopped: Callable[[], bool]) -> None:
    """Add documents as fast as that goes: one alone most of the time, then many together."""
    some = source.documents(1_000)
    while not stopped():
        for start in range(0, len(some), 10):
            for size in (1, 1, 1, 1, 64):
                live.add(some[start : start + size])
                if stopped():
                    return


def measure_opening(source: Source, place: Path, tokens: int) -> dict[str, float]:
    """Open a datastore as it was left by a process that was killed: some of it is in no segment."""
    directory = place / "opened"
    with LiveDatastore.open(directory, tokenizer=source.tokenizer) as live:
        for _ in range(10):
            live.add(source.documents(tokens // SIZE // 10))
            live.compact()
        live.add(source.documents(900_000 // SIZE))
    return in_a_process("open", source.store.path, directory, 0)


def in_a_process(what: str, datastore: Path, directory: Path, seed: int) -> dict[str, float]:
    """Run `measured_alone` in a process of its own."""
    command = [sys.executable, "-c", "import sys, bench_live_datastore as bench; bench.measured_alone(*sys.argv[1:])"]
    run = subprocess.run(
        [*command, what, str(datastore), str(directory), str(seed)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])},
    )
    figures: dict[str, float] = json.loads(run.stdout)
    return figures


def measured_alone(what: str, datastore: str, directory: str, seed: str) -> None:
    """Print figures of opening, or of the memory that unsealed tokens take."""
    if what == "open":
        began = time.perf_counter()
        with LiveDatastore.open(directory) as live:
            seconds = time.perf_counter() - began
            info = live.info()
            figures = {"seconds": round(seconds, 3), "tokens": info.token_count, "segments": info.shard_count}
    else:
        source = Source(Path(datastore), int(seed))
        some = source.documents(1_900)
        with LiveDatastore.open(directory, tokenizer=source.tokenizer) as live:
            live.add(some[:100])
            before = anonymous_memory()
            for document in some[100:]:
                live.add([document])
            info = live.info()
            added = info.memory_token_count - 100 * SIZE
            figures = {
                "unsealed_tokens": info.memory_token_count,
                "bytes_per_token": round(info.memory_size / info.memory_token_count, 2),
                "process_bytes_per_token": round((anonymous_memory() - before) / added, 2),
            }
    print(json.dumps(figures))


def anonymous_memory() -> int:
    """Return the bytes of memory of this process that are not of files."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def measure_day(source: Source, place: Path, documents: int, most: int) -> dict[str, Any]:
    """Add documents, TOGETHER at once, with eviction; return how size, descriptors and memory went."""
    directory = place / "day"
    course: list[dict[str, float]] = []
    began = time.perf_counter()
    times: list[float] = []
    with LiveDatastore.open(directory, tokenizer=source.tokenizer, max_tokens=most) as live:
        for number in range(0, documents, TOGETHER):
            some = source.documents(TOGETHER, 50, 500)
            times += time_each(live.add, [some])
            if (number + TOGETHER) % max(TOGETHER, documents // 20) < TOGETHER:
                info = live.info()
                assert info.failure is None, info.failure
                sizes = {path.name: path.stat().st_size for path in directory.iterdir()}
                course.append(
                    {
                        "documents": number + TOGETHER,
                        "seconds": round(time.perf_counter() - began),
                        "tokens": info.token_count,
                        "segments": info.shard_count,
                        "bytes": sum(sizes.values()),
                        "log_bytes": sizes.get("documents.sqlite-wal", 0),
                        "documents_bytes": sizes["documents.sqlite"],
                        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
                        "mappings": len(Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()),
                        "anonymous_bytes": anonymous_memory(),
                    }
                )
                show("day", course[-1])
    figures = percentiles(times)
    return {"course": course, "add_us": figures}


if __name__ == "__main__":
    main()
