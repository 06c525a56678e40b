"""What a large datastore costs and brings: drafts and steps with pages in memory and without, and M by size.

The datastores are merged (files are linked) and measured as one.

Warm: every step of the recordings, replayed twice; the second time counts. Cold: the files' pages are dropped before
each session, and the cost of a step is shown by its number in the session, with the pages that it read. This is
measured with the system's read-ahead, which is on for a datastore that fits into memory, and without it, as for a
larger one. Warming: pages are dropped once, and each tenth of the recordings shows what its steps still read.

M, tokens per forward pass with 16 nodes, by family of recordings: with 1, 10 and 100 million tokens and with all, in
whole documents evenly spread over the datastore; and with each datastore alone, with all, and with all but one.
"""

from __future__ import annotations

import gc
import os
import resource
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from bench_query import drop_pages
from timing import percentiles, time_each

from build_index.merge import merge
from rest_store.bench.datastores import open_datastores, thinned
from rest_store.bench.environment import write_result
from rest_store.bench.options import Destination, recordings_option, result_options
from rest_store.bench.recordings import Recording, read_all, unfitted
from rest_store.bench.replay import replay
from rest_store.datastore.datastore import Datastore
from rest_store.datastore.store import Store
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import PromptLookup, RecycledLogits
from rest_store.options import PATH, SETTINGS

NODES = 16
SIZES = (1_000_000, 10_000_000, 100_000_000)
SHOWN_STEPS = (1, 2, 3, 5, 10, 20, 40)
READS = 200


@click.command(
    help=__doc__,
    context_settings=SETTINGS,
    epilog="Example: python benchmarks/bench_large.py --datastore code.ds --recordings traces.jsonl.gz",
)
@click.option(
    "--datastore", "paths", metavar="DIR", multiple=True, required=True, type=PATH, help="Datastore. Repeatable."
)
@recordings_option()
@click.option("--work", metavar="DIR", type=PATH, default=Path("build/bench"), help="Folder for what is made.")
@click.option("--cold-sessions", metavar="N", default=12, help="Sessions that begin with all pages dropped.")
@click.option("--every", metavar="N", default=1, help="Take every n-th recording only, for M.")
@result_options
def main(
    paths: tuple[Path, ...],
    recordings: tuple[Path, ...],
    work: Path,
    cold_sessions: int,
    every: int,
    out: Destination,
) -> None:
    work.mkdir(parents=True, exist_ok=True)
    whole = work / "all.ds"
    if not whole.exists():
        merge(paths, whole)
    calibration = Calibration.default()
    stores = open_datastores(paths)
    chosen = unfitted(read_all(recordings, stores, None), calibration, "bench_large")
    results: dict[str, Any] = {"tokens": {name: store.info().token_count for name, store in stores.items()}}
    for store in stores.values():
        store.close()
    gc.disable()
    cold_ones = chosen[:: max(1, len(chosen) // cold_sessions)][:cold_sessions]
    results["cold"] = cold(whole, cold_ones, calibration, read_ahead=False)
    results["cold with read-ahead"] = cold(whole, cold_ones[::4], calibration, read_ahead=True)
    results["warming"] = warming(whole, chosen, calibration)
    results["warm"] = warm(whole, chosen[::4], calibration)
    chosen = chosen[::every]
    results["M by size"] = by_size(whole, chosen, calibration, work)
    results["M by datastore"] = by_datastore(open_datastores(paths), chosen, calibration)
    write_result(out, "large", click.get_current_context().params, ("numpy", "rest-store"), results)


def sources(store: Store | None) -> list[object]:
    return [PromptLookup(), RecycledLogits(), *([] if store is None else [store])]


def warm(path: Path, recordings: Sequence[Recording], calibration: Calibration) -> dict[str, Any]:
    """Return the cost of drafts (of 16 tokens of context) and of steps with all pages in memory that they need."""
    contexts = [
        np.concatenate([one.prompt, one.output[:place]])[-16:]
        for one in recordings
        for place in range(0, one.output.size, 5)
    ]
    store = Datastore.open(path)
    figures: dict[str, Any] = {"shards": len(store.shards), "bytes": store.info().size, "contexts": len(contexts)}
    for _ in range(2):
        figures["draft_64"] = percentiles(time_each(lambda context: store.draft(context, max_nodes=64), contexts))
    for name, one in (("step", store), ("step_without_datastore", None)):
        for _ in range(2):
            times: list[float] = []
            replay(recordings, sources(one), calibration, max_nodes=NODES, times=times)
        figures[name] = percentiles(1e6 * np.array(times))
    store.close()
    click.echo(f"warm: {figures}")
    return figures


def opened_cold(path: Path, *, read_ahead: bool) -> Datastore:
    drop_pages(path)
    store = Datastore.open(path)
    for shard in store.shards if not read_ahead else ():
        shard.expect_scattered_reads()
    return store


def cold(path: Path, recordings: Sequence[Recording], calibration: Calibration, *, read_ahead: bool) -> dict[str, Any]:
    """Return the cost of the first draft, and of steps by their number, of sessions that begin without any page."""
    drafts, steps = [], []
    for one in recordings:
        store = opened_cold(path, read_ahead=read_ahead)
        context = np.concatenate([one.prompt, one.output[: one.output.size // 2]])[-16:]
        drafts.append(paged(lambda store=store, context=context: store.draft(context, max_nodes=64)))
        store.close()
        store = opened_cold(path, read_ahead=read_ahead)
        steps.append(session_steps(store, one, calibration))
        store.close()
    rows: dict[str, Any] = {"draft_64": mean(drafts)}
    for number in SHOWN_STEPS:
        reached = [run[number - 1] for run in steps if len(run) >= number]
        if reached:
            rows[f"step {number}"] = mean(reached)
    rows["all steps"] = mean([step for run in steps for step in run])
    rows["session"] = {
        "steps": sum(map(len, steps)) / len(steps),
        "seconds": sum(s[0] for run in steps for s in run) / len(steps),
    }
    rows["random read of 4 KiB, microseconds"] = random_reads(path)
    for name, row in rows.items():
        click.echo(f"cold{', with read-ahead' * read_ahead}, {name}: {row}")
    return rows


def warming(path: Path, recordings: Sequence[Recording], calibration: Calibration) -> list[dict[str, float]]:
    """Return what the steps of each tenth of the recordings read after pages were dropped once; in an order by hash."""
    order = sorted(recordings, key=lambda one: zlib.crc32(one.prompt.tobytes()))
    store = opened_cold(path, read_ahead=False)
    rows = []
    for some in np.array_split(np.arange(len(order)), 10):
        rows.append(mean([step for number in some for step in session_steps(store, order[number], calibration)]))
        click.echo(f"warming: {rows[-1]}")
    store.close()
    return rows


def session_steps(store: Store, recording: Recording, calibration: Calibration) -> list[tuple[float, int, int]]:
    """Return seconds, page faults that read, and bytes read of each step of one session."""
    text = np.concatenate([recording.prompt, recording.output])
    place = recording.prompt.size
    rows = []
    with DraftSession(sources(store), text[:place], calibration=calibration, learn=False) as session:
        while place < text.size:
            trees: list[Any] = []
            drafted = paged(lambda trees=trees: trees.append(session.draft(NODES)))
            taken = trees[0].longest_path(text[place:])
            end = min(place + len(taken) + 1, text.size)
            accepted = paged(lambda place=place, end=end: session.accept(text[place:end]))
            rows.append(tuple(sum(pair) for pair in zip(drafted, accepted, strict=True)))
            place = end
    return rows


def paged(call: Any) -> tuple[float, int, int]:
    """Return seconds, page faults that read from disk, and bytes read, of a call."""
    before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    call()
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
    return seconds, after.ru_majflt - before.ru_majflt, 512 * (after.ru_inblock - before.ru_inblock)


def mean(rows: Sequence[tuple[float, int, int]]) -> dict[str, float]:
    values = np.array(rows)
    names = ("seconds", "faults", "bytes")
    figures = {name: round(float(value), 6) for name, value in zip(names, values.mean(axis=0), strict=True)}
    return {**figures, "median_seconds": round(float(np.median(values[:, 0])), 6)}


def random_reads(path: Path) -> dict[str, float]:
    """Return what the disk takes for a page, one after the other, at random places of the largest file."""
    file = max(path.iterdir(), key=lambda one: one.stat().st_size)
    drop_pages(path)
    rng = np.random.default_rng(0)
    descriptor = os.open(file, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
    places = (4096 * rng.integers(0, file.stat().st_size // 4096, READS)).tolist()
    times = time_each(lambda place: os.pread(descriptor, 4096, place), places)
    os.close(descriptor)
    return percentiles(times)


def by_size(path: Path, recordings: Sequence[Recording], calibration: Calibration, work: Path) -> dict[str, Any]:
    """Return M and the step's median by number of tokens, of whole documents evenly spread over the datastore."""
    total = Datastore.open(path).info().token_count
    rows: dict[str, Any] = {"0": score(recordings, None, calibration)}
    for size in (*SIZES, total):
        smaller = path if size == total else thinned(path, work / f"{size}.ds", size / total)
        with Datastore.open(smaller) as store:
            rows[str(store.info().token_count)] = score(recordings, [store], calibration)
    return rows


def by_datastore(stores: Mapping[str, Store], recordings: Sequence[Recording], calibration: Calibration) -> Any:
    """Return M of each datastore alone, of all, and of all but one, each datastore a source of its own."""
    rows = {f"{name} alone": score(recordings, [store], calibration) for name, store in stores.items()}
    rows["all"] = score(recordings, list(stores.values()), calibration)
    for name in stores if len(stores) > 2 else ():
        others = [store for other, store in stores.items() if other != name]
        rows[f"without {name}"] = score(recordings, others, calibration)
    return rows


def score(recordings: Sequence[Recording], stores: Sequence[Store] | None, calibration: Calibration) -> dict[str, Any]:
    times: list[float] = []
    drafting = [PromptLookup(), RecycledLogits(), *(stores or ())]
    outcome = replay(recordings, drafting, calibration, max_nodes=NODES, times=times)
    row = {"M": round(outcome.mean_accepted, 4), "families": outcome.as_json()["families"]}
    row["step_microseconds"] = round(1e6 * float(np.median(times)), 1)
    click.echo(f"  {[store.info().token_count for store in stores or ()]}: {row}")
    return row


if __name__ == "__main__":
    main()
