"""Measure draft sessions in process with a long context: single steps, batches, and openings.

The sessions replay recordings that the shipped calibration was not fitted to. Text of the other
recordings stands before each, so that its context is 2,000 tokens long. The sources are prompt
lookup, recycled logits and the datastores. Trees come first, without a warm-up, then chains. In a
batch, 64 sessions of one calibration take their steps in one call, on all cores of this process
(`taskset` chooses them).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from timing import percentiles
from walks import CONTEXT, Walk, long_walks

from rest_store import accept_all, draft_all
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
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import PromptLookup, RecycledLogits
from rest_store.live.open_store import open_datastores

DRAFTS = {"16 nodes": (16, "tree"), "64 nodes": (64, "tree"), "chain of 8": (8, "chain")}
# Sessions, steps and rounds of a batch.
SESSIONS = 64
STEPS = 12
ROUNDS = 5
OPENINGS = {4_000: 50, 128_000: 10}  # by tokens of a prompt, the number of openings


@click.command(
    help=__doc__,
    context_settings=SETTINGS,
    epilog=(
        "Example: python benchmarks/bench_drafting.py --recordings traces.jsonl.gz --datastore"
        " python.ds"
    ),
)
@recordings_option()
@datastores_option
@every_option
@result_options
def main(
    recordings: tuple[Path, ...], datastores: tuple[Path, ...], every: int, out: Destination
) -> None:
    chosen = []
    for path in recordings:
        chosen += read_recordings(path)
    fitting, held_out = split(chosen, "bench_drafting.py")
    stores = list(open_datastores(datastores).values())
    walks = long_walks(held_out[::every], fitting)
    results: dict[str, Any] = {
        "context": CONTEXT,
        "datastores": [store.manifest.token_count for store in stores],
    }
    for name, (nodes, shape) in DRAFTS.items():
        figures = percentiles(one_by_one(walks, stores, nodes, shape))
        results[name] = {
            "median_us": round(figures["median"], 1),
            "p90_us": round(figures["p90"], 1),
        }
        show(name, results[name])
    name = f"{SESSIONS} chains of 8 in a batch"
    results[name] = batches(walks, stores)
    show(name, results[name])
    text = np.concatenate([walk.text for walk in walks])
    for tokens, count in OPENINGS.items():
        prompt = np.resize(text, tokens)
        results[f"opening, {tokens} tokens"] = row = {
            "median_ms": round(opening(stores, prompt, count), 3)
        }
        show(f"opening, {tokens} tokens", row)
    write_result(out, "drafting", click.get_current_context().params, ("numpy",), results)


def show(name: str, figures: dict[str, float]) -> None:
    click.echo(f"{name}: {', '.join(f'{figure} {value}' for figure, value in figures.items())}")


def sources_with(stores: Sequence[object]) -> list[object]:
    return [PromptLookup(), RecycledLogits(), *stores]


def one_by_one(
    walks: Sequence[Walk], stores: Sequence[object], nodes: int, shape: str
) -> list[float]:
    """Return the microseconds of each step of all walks."""
    times: list[float] = []
    for walk in walks:
        position = walk.start
        with DraftSession(
            sources_with(stores), walk.text[:position], calibration=Calibration.default()
        ) as session:
            while position < walk.text.size:
                began = time.perf_counter()
                tree = session.draft(nodes, shape=shape)
                times.append((time.perf_counter() - began) * 1e6)
                path = tree.longest_path(walk.text[position:])
                end = walk.step_end(position, path)
                session.accept(walk.text[position:end], **walk.likely(position, tree, path))
                position = end
    return times


def batches(walks: Sequence[Walk], stores: Sequence[object]) -> dict[str, Any]:
    """Return the median milliseconds of a batch."""
    long = [walk for walk in walks if walk.text.size - walk.start >= 9 * STEPS] or list(walks)
    chosen = [long[i % len(long)] for i in range(SESSIONS)]
    steps = []
    for _ in range(ROUNDS):
        steps += steps_of_batch(chosen, stores)
    drafting, accepting = 1e3 * np.median(steps, axis=0)
    return {
        "median_ms": round(drafting, 3),
        "accept_all_ms": round(accepting, 3),
        "steps": len(steps),
    }


def steps_of_batch(
    walks: Sequence[Walk], stores: Sequence[object]
) -> Iterator[tuple[float, float]]:
    """Yield the seconds of `draft_all` and `accept_all` for each step but the first."""
    calibration = Calibration.default()
    sources = sources_with(stores)
    positions = [walk.start for walk in walks]
    sessions = [
        DraftSession(sources, walk.text[: walk.start], calibration=calibration) for walk in walks
    ]
    for step in range(1 + STEPS):
        began = time.perf_counter()
        chains = draft_all(sessions, 8, shape="chain")
        drafted = time.perf_counter()
        tokens = []
        for i, (walk, chain) in enumerate(zip(walks, chains, strict=True)):
            end = walk.step_end(positions[i], chain.longest_path(walk.text[positions[i] :]))
            tokens.append(walk.text[min(positions[i], end - 1) : end])
            positions[i] = end
        accepting = time.perf_counter()
        accept_all(sessions, tokens)
        if step:
            yield drafted - began, time.perf_counter() - accepting


def opening(stores: Sequence[object], prompt: Any, count: int) -> float:
    """Return the median milliseconds of opening a session with `prompt`."""
    calibration = Calibration.default()
    sources = sources_with(stores)
    times = []
    for _ in range(count):
        began = time.perf_counter()
        DraftSession(sources, prompt, calibration=calibration)
        times.append((time.perf_counter() - began) * 1e3)
    return float(np.median(times))


if __name__ == "__main__":
    main()
