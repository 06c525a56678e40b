"""Repeat experiments of REST's paper (arXiv 2311.08252) with its own rule, by replay of recordings.

M and the time of retrieval by size of the datastore (Table 2, Figure 2; give several), and by longest suffix (Figure
3), in the largest of them. 64 nodes, continuations of ten tokens; pages in memory, and no trees in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import click
from timing import percentiles

from rest_store.bench.baselines import RestRule
from rest_store.bench.datastores import open_datastores
from rest_store.bench.options import (
    Destination,
    datastores_option,
    every_option,
    recordings_option,
    require_datastores,
    result_options,
)
from rest_store.bench.recordings import Recording, read_recordings
from rest_store.bench.replay import Outcome, walk
from rest_store.bench.results import write_result
from rest_store.datastore.datastore import Datastore
from rest_store.datastore.store import Store
from rest_store.errors import RecordingError, describe
from rest_store.options import SETTINGS

NODES, SUFFIX = 64, 16
SUFFIXES = (1, 2, 3, 4, 6, 8, 12, 16)


@click.command(
    help=__doc__,
    context_settings=SETTINGS,
    epilog="Example: python benchmarks/bench_paper.py --recordings traces.jsonl.gz --datastore a.ds --datastore b.ds",
)
@recordings_option()
@datastores_option
@every_option
@result_options
def main(recordings: tuple[Path, ...], datastores: tuple[Path, ...], every: int, out: Destination) -> None:
    require_datastores(datastores, "bench_paper.py")
    chosen = [recording for path in recordings for recording in read_recordings(path)][::every]
    if not chosen:
        raise RecordingError(describe("bench_paper.py", "number of recordings", 0, "at least one"))
    stores = open_datastores(datastores)
    by_size = sorted(stores, key=lambda name: stores[name].info().token_count)
    largest = by_size[-1]
    figures: dict[str, Any] = {
        "recordings": len(chosen),
        "size": {name: timed(chosen, stores[name], SUFFIX) for name in by_size},
        "longest suffix": {str(length): timed(chosen, stores[largest], length) for length in SUFFIXES},
    }
    for what in ("size", "longest suffix"):
        for name, row in figures[what].items():
            click.echo(f"{what} {name}: " + ", ".join(f"{field} {value:,}" for field, value in row.items()))
    write_result(out, "paper", click.get_current_context().params, ("numpy", "rest-store"), figures)


def timed(recordings: Sequence[Recording], store: Store, max_suffix: int) -> dict[str, Any]:
    """Replay with REST's rule; return M and the time of retrieval, of a token as the paper counts, and of a step."""

    def replayed(store: Store, times: list[float]) -> Outcome:
        return walk(
            recordings,
            lambda prompt: closing(RestRule([store], prompt, max_suffix=max_suffix)),
            max_nodes=NODES,
            times=times,
        )

    replayed(store, [])  # brings pages into memory
    times: list[float] = []
    with Datastore.open(store.path) as anew:  # without cached trees
        outcome = replayed(anew, times)
    step = percentiles(1e6 * seconds for seconds in times)
    return {
        "tokens in it": store.info().token_count,
        "M": round(outcome.mean_accepted, 4),
        "us a token": round(1e6 * sum(times) / max(1, outcome.tokens), 2),
        **{f"us a step, {part}": step[part] for part in ("median", "mean", "p99")},
    }


if __name__ == "__main__":
    main()
