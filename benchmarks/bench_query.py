"""Measure what a query of a datastore costs through the Python API.

Contexts are the 16 tokens before random places of recorded outputs. Half of them, from other recordings, warm up pages
and caches; a tenth of these is queried first, after dropping the pages of the files (cold). Each of the others is
queried once (warm). Several datastores take turns of 2,500 contexts: give some of several sizes, or of the same tokens
in other shards. Times are microseconds per context on one thread, with garbage collection off.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from timing import percentiles, time_each

from rest_store.bench.datastores import open_datastores
from rest_store.bench.options import (
    Destination,
    datastores_option,
    recordings_option,
    require_datastores,
    result_options,
    seed_option,
)
from rest_store.bench.recordings import read_recordings
from rest_store.bench.results import write_result
from rest_store.options import SETTINGS

LENGTH = 16
TURN = 2_500
Contexts = list[list[int]]


@click.command(
    help=__doc__,
    context_settings=SETTINGS,
    epilog="Example: python benchmarks/bench_query.py --datastore python.ds --recordings traces.jsonl.gz",
)
@recordings_option()
@datastores_option
@click.option("--contexts", "count", metavar="N", default=20_000, help="Number of contexts.")
@seed_option
@result_options
def main(
    recordings: tuple[Path, ...],
    datastores: tuple[Path, ...],
    count: int,
    seed: int,
    out: Destination,
) -> None:
    require_datastores(datastores, "bench_query.py")
    warm_up, measured = read_contexts(recordings, count, seed)
    gc.disable()
    print(f"{len(measured):,} contexts measured")
    print(f"{'':44}{'median':>8}{'mean':>8}{'p90':>8}{'p99':>8}{'max':>9}")
    stores = open_datastores(datastores)
    cold: dict[str, list[float]] = {}
    for (name, store), path in zip(stores.items(), datastores, strict=True):
        drop_pages(path)
        cold[name] = time_each(store.draft, warm_up[: len(warm_up) // 10])
        time_each(store.draft, warm_up * 2)
    warm: dict[str, list[float]] = {name: [] for name in stores}
    for start in range(0, len(measured), TURN):
        for name, store in stores.items():
            warm[name] += time_each(store.draft, measured[start : start + TURN])
    results: dict[str, Any] = {"contexts": len(measured), "datastores": {}}
    for name, store in stores.items():
        info = store.info()
        results["datastores"][name] = {"tokens": info.token_count, "shards": info.shard_count, "bytes": info.size}
        results[f"{name}, draft, cold"] = show(f"{name}, draft, cold", cold[name])
        results[f"{name}, draft"] = show(f"{name}, draft", warm[name])
    first = next(iter(stores.values()))
    matches = time_each(first.longest_suffix_match, measured)
    results["longest_suffix_match"] = show("longest_suffix_match", matches)
    write_result(out, "query", click.get_current_context().params, ("numpy", "rest-store"), results)


def read_contexts(recordings: Sequence[Path], count: int, seed: int) -> tuple[Contexts, Contexts]:
    """Return contexts to warm up with and contexts to measure, half of `count` each, from different recordings."""
    rng = np.random.default_rng(seed)
    halves: tuple[Contexts, Contexts] = ([], [])
    for number, recording in enumerate(one for path in recordings for one in read_recordings(path)):
        text = np.concatenate([recording.prompt, recording.output])
        ends = range(recording.prompt.size, text.size)
        halves[number % 2].extend(text[max(0, end - LENGTH) : end].tolist() for end in ends)
    first, second = ([half[place] for place in rng.permutation(len(half))[: count // 2]] for half in halves)
    return first, second


def drop_pages(path: Path) -> None:
    """Ask the kernel to drop the cached pages of the datastore's files."""
    for file in path.iterdir():
        descriptor = os.open(file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def show(name: str, times: Sequence[float]) -> dict[str, float]:
    figures = percentiles(times)
    print(f"{name:44}" + "".join(f"{figures[key]:>8.1f}" for key in ("median", "mean", "p90", "p99")), end="")
    print(f"{figures['max']:>9.0f}", flush=True)
    return figures


if __name__ == "__main__":
    main()
