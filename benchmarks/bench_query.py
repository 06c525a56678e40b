"""Measure what a query of a datastore costs through the Python API.

Contexts are the 16 tokens before random places of recorded outputs. Without --recordings, they are taken from the
datastore's own documents with the oldest tokens changed, so that the match is a true suffix. Half of the contexts, from
other recordings, warm up pages and caches. Each of the others is queried once in one shard and once in eight, in turns
of 2,500. Times are microseconds per context on one thread unless stated otherwise, with garbage collection off.

--size shows how the cost grows, with pages in memory (warm) and after dropping them (cold). A size beyond that of the
source is synthetic: perturbed copies of its documents. --leave takes memory away first: with less than a datastore's
size, that shows one larger than memory.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from datastores import laid_out, perturbed, python_source
from timing import percentiles, time_each

from rest_store.bench.environment import write_result
from rest_store.bench.options import Destination, plots_option, recordings_option, result_options, seed_option
from rest_store.bench.recordings import read_recordings
from rest_store.datastore.datastore import Datastore
from rest_store.datastore.header import separator_id
from rest_store.options import PATH, SETTINGS

LENGTH = 16
TURN = 2_500
BATCH = 64
ROUNDS = 5
Contexts = list[list[int]]


@click.command(
    help=__doc__,
    context_settings=SETTINGS,
    epilog="Example: python benchmarks/bench_query.py --datastore python.ds --recordings traces.jsonl.gz",
)
@click.option(
    "--work", metavar="DIR", type=PATH, default=Path("build/bench"), help="Folder for the datastores that are made."
)
@click.option(
    "--datastore",
    metavar="DIR",
    type=PATH,
    show_default="one of Python source that is built",
    help="Source of the tokens.",
)
@click.option("--tokenizer", metavar="NAME_OR_PATH", help="Tokenizer, for building.")
@click.option(
    "--extra", metavar="DIR", multiple=True, type=PATH, help="For building: a further folder of source. Repeatable."
)
@recordings_option(required=False)
@click.option("--contexts", "count", metavar="N", default=20_000, help="Number of contexts.")
@click.option(
    "--size", "sizes", metavar="N", multiple=True, type=int, help="Show this size, in millions of tokens. Repeatable."
)
@click.option("--leave", metavar="GIB", type=float, help="Take memory away until this many GiB are available.")
@click.option("--quick", is_flag=True, help="10 million tokens and 4,000 contexts: a look, not a result.")
@seed_option
@result_options
@plots_option
def main(
    work: Path,
    datastore: Path | None,
    tokenizer: str | None,
    extra: tuple[Path, ...],
    recordings: tuple[Path, ...],
    count: int,
    sizes: tuple[int, ...],
    leave: float | None,
    quick: bool,
    seed: int,
    out: Destination,
    plots: Path | None,
) -> None:
    if datastore is None and tokenizer is None:
        raise click.UsageError("--datastore, or --tokenizer to build one")
    taken = take_memory(leave)  # noqa: F841  kept until the end
    source = datastore or python_source(work, str(tokenizer), extra)
    if quick:
        source, count = laid_out(source, work / "python-10M", 10_000_000, 1), 4_000
    paths = {shards: laid_out(source, work / f"{source.name}-{shards}-shards", None, shards) for shards in (1, 8)}
    stores = {shards: Datastore.open(path) for shards, path in paths.items()}
    warm_up, measured = read_contexts(recordings, stores[1], count, seed)
    gc.disable()

    results: dict[str, Any] = {"tokens": stores[1].manifest.token_count, "contexts": len(measured)}
    print(f"{results['tokens']:,} tokens, {len(measured):,} contexts measured")
    print(f"{'':36}{'median':>8}{'mean':>8}{'p90':>8}{'p99':>8}{'max':>9}")
    for store in stores.values():
        time_each(store.draft, warm_up * 2)
    times: dict[int, list[float]] = {shards: [] for shards in stores}
    for start in range(0, len(measured), TURN):
        for shards, store in stores.items():
            times[shards] += time_each(store.draft, measured[start : start + TURN])
    for shards in stores:
        results[f"draft, {shards} shards"] = show(f"draft, {shards} shards", times[shards])
    results["longest_suffix_match"] = show(
        "longest_suffix_match, 1 shard", time_each(stores[1].longest_suffix_match, measured)
    )
    results["batch of 64"] = compare_batch(stores[1], measured)
    results["two threads"] = compare_threads(stores[1], measured)
    results["open"] = {shards: cost_of_opening(path) for shards, path in paths.items()}
    for shards, cost in results["open"].items():
        print(f"open, {shards} shards: {cost['milliseconds']:.2f} ms, {cost['resident_bytes'] / 1e6:.2f} MB")
    results["sizes"] = [measure_size(source, work, size, warm_up, measured) for size in sizes]
    write_result(out, "query", click.get_current_context().params, ("numpy", "rest-store"), results)


def take_memory(leave: float | None) -> np.ndarray | None:
    """Return an array in memory that leaves `leave` GiB available."""
    if leave is None:
        return None
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    return np.ones(max(0, available - int(leave * 2**30)), dtype=np.uint8)


def read_contexts(recordings: Sequence[Path], store: Datastore, count: int, seed: int) -> tuple[Contexts, Contexts]:
    """Return contexts to warm up with and contexts to measure, half of `count` each, from different recordings."""
    rng = np.random.default_rng(seed)
    if not recordings:
        symbols = store.shards[0].tokens.symbols()
        contexts: Contexts = []
        while len(contexts) < count:
            end = int(rng.integers(LENGTH, symbols.size))
            context = symbols[end - LENGTH : end].astype(np.int64)
            if separator_id(store.vocabulary_size) not in context:
                context[: int(rng.integers(8, LENGTH))] = rng.integers(0, store.vocabulary_size)
                contexts.append(context.tolist())
        return contexts[: count // 2], contexts[count // 2 :]
    halves: tuple[Contexts, Contexts] = ([], [])
    for number, recording in enumerate(one for path in recordings for one in read_recordings(path)):
        text = np.concatenate([recording.prompt, recording.output])
        ends = range(recording.prompt.size, text.size)
        halves[number % 2].extend(text[max(0, end - LENGTH) : end].tolist() for end in ends)
    first, second = ([half[place] for place in rng.permutation(len(half))[: count // 2]] for half in halves)
    return first, second


def show(name: str, times: Sequence[float]) -> dict[str, float]:
    figures = percentiles(times)
    print(f"{name:36}" + "".join(f"{figures[key]:>8.1f}" for key in ("median", "mean", "p90", "p99")), end="")
    print(f"{figures['max']:>9.0f}")
    return figures


def single_calls(store: Datastore, contexts: Contexts) -> None:
    for context in contexts:
        store.draft(context)


def batches(store: Datastore, contexts: Contexts) -> None:
    for start in range(0, len(contexts), BATCH):
        store.draft_batch(contexts[start : start + BATCH])


WAYS: dict[str, Callable[[Datastore, Contexts], None]] = {"single calls": single_calls, f"batches of {BATCH}": batches}


def compare_batch(store: Datastore, contexts: Contexts) -> dict[str, float]:
    """Time batches against single calls, in turns over all contexts; microseconds per context."""
    parts = [contexts[start : start + BATCH] for start in range(0, len(contexts) - BATCH + 1, BATCH)]
    single, batch = [], []
    for _ in range(2 * ROUNDS):
        single += time_each(lambda part: single_calls(store, part), parts)
        batch += time_each(store.draft_batch, parts)
    figures: dict[str, float] = {}
    for kind in (np.median, np.mean):
        name, one, many = kind.__name__, float(kind(single)) / BATCH, float(kind(batch)) / BATCH
        figures |= {f"single, {name}": one, f"batch, {name}": many, name: one / many}
    print(
        f"batch of {BATCH}: {figures['batch, median']:.2f} us a context, single calls {figures['single, median']:.2f}: "
        f"{figures['median']:.2f} times as fast (means: {figures['mean']:.2f})"
    )
    return {name: round(value, 2) for name, value in figures.items()}


def compare_threads(store: Datastore, contexts: Contexts) -> dict[str, float]:
    """Time the same work on one thread and on two, in turns; contexts a second."""

    def rate(way: Callable[[Datastore, Contexts], None], threads: int) -> float:
        parts = [contexts[place::threads] * 3 for place in range(threads)]
        running = [threading.Thread(target=way, args=(store, part)) for part in parts]
        start = time.perf_counter()
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        return 3 * len(contexts) / (time.perf_counter() - start)

    figures: dict[str, float] = {}
    for name, way in WAYS.items():
        rates = [[rate(way, 1), rate(way, 2)] for _ in range(ROUNDS)]
        one, two = (float(value) for value in np.median(rates, axis=0))
        figures |= {f"{name}, 1 thread": round(one), f"{name}, 2 threads": round(two)}
        figures[f"{name}, ratio"] = round(two / one, 2)
        print(f"{name}: {one:,.0f} contexts a second on one thread, {two:,.0f} on two: {two / one:.2f} times")
    return figures


def cost_of_opening(path: Path) -> dict[str, float]:
    """Return the milliseconds and the resident memory that opening `path` takes, in a process of its own."""
    program = (
        "import sys, time, json\n"
        "from rest_store.datastore.datastore import Datastore\n"
        "def resident(): return int(open('/proc/self/statm').read().split()[1]) * 4096\n"
        "before, start = resident(), time.perf_counter()\n"
        "store = Datastore.open(sys.argv[1])\n"
        "seconds = time.perf_counter() - start\n"
        "print(json.dumps({'milliseconds': seconds * 1e3, 'resident_bytes': resident() - before}))\n"
    )
    command = [sys.executable, "-c", program, path]
    runs = [json.loads(subprocess.run(command, capture_output=True, check=True).stdout) for _ in range(ROUNDS)]
    return {name: float(np.median([run[name] for run in runs])) for name in runs[0]}


def drop_pages(path: Path) -> None:
    """Ask the kernel to drop the cached pages of the datastore's files."""
    for file in path.iterdir():
        descriptor = os.open(file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def measure_size(source: Path, work: Path, millions: int, warm_up: Contexts, measured: Contexts) -> dict[str, Any]:
    """Measure a datastore of so many million tokens, cold and warm."""
    tokens = millions * 1_000_000
    out = work / f"{source.name}-{millions}M"
    synthetic = tokens > Datastore.open(source).manifest.token_count * 1.05
    path = perturbed(source, out, tokens, 250_000_000) if synthetic else laid_out(source, out, tokens, 1)
    drop_pages(path)
    store = Datastore.open(path)
    count = store.manifest.token_count
    name = f"{count / 1e6:,.0f}M{', synthetic' if synthetic else ''}, {len(store.shards)} shards"
    cold = show(f"{name}, cold", time_each(store.draft, warm_up[: len(warm_up) // 5]))
    time_each(store.draft, warm_up * 2)
    return {
        "tokens": count,
        "shards": len(store.shards),
        "synthetic": synthetic,
        "bytes_per_token": round(store.info().size / count, 3),
        "warm": show(f"{name}, warm", time_each(store.draft, measured)),
        "cold": cold,
        "open": cost_of_opening(path),
    }


if __name__ == "__main__":
    main()
