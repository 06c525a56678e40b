"""Measure batches of draft sessions that a service runs: on one stream, on streams of their own, and in process.

Recordings that the shipped calibration was not fitted to are replayed side by side, each after so much text of the
other recordings that its context is 2,000 tokens long. A step hands over to all sessions what the model had produced
(`accept_all`) and drafts the next trees or chains (`draft_all`). The service is a process of its own on this machine.
The ways take turns. A session that is drafted alone before its first batch keeps a stream of its own. Reported for
each way: steps of sessions a second, from the median time of a batch's step, and the processor time that a session's
step takes in this process.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from walks import CONTEXT, Walk, long_walks

from rest_store import accept_all, draft_all
from rest_store.bench.datastores import open_datastores
from rest_store.bench.environment import write_result
from rest_store.bench.options import Destination, datastores_option, recordings_option, result_options
from rest_store.bench.recordings import read_recordings, split
from rest_store.bench.serving import TIMEOUT, serving
from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import PromptLookup, RecycledLogits
from rest_store.errors import ServeError, describe
from rest_store.options import SETTINGS
from rest_store.service.client.client import DatastoreClient

BATCHES = (16, 64)
DRAFTS = {"chain of 8": (8, "chain"), "tree of 16": (16, "tree")}
IN_PROCESS, SHARED, OWN = WAYS = ("in process", "one stream", "own streams")


@click.command(
    help=__doc__,
    context_settings=SETTINGS,
    epilog="Example: python benchmarks/bench_batches.py --recordings traces.jsonl.gz --datastore python.ds",
)
@recordings_option()
@datastores_option
@click.option("--rounds", metavar="N", default=9, show_default=True, help="Turns of each way.")
@click.option("--steps", metavar="N", default=30, show_default=True, help="Steps of a turn.")
@result_options
def main(recordings: tuple[Path, ...], datastores: tuple[Path, ...], rounds: int, steps: int, out: Destination) -> None:
    chosen = [recording for path in recordings for recording in read_recordings(path)]
    others, held_out = split(chosen, "bench_batches.py")
    walks = sorted(long_walks(held_out, others), key=lambda walk: walk.start - walk.text.size)  # the longest first
    stores = list(open_datastores(datastores).values())
    results: dict[str, Any] = {"context": CONTEXT, "datastores": [store.manifest.token_count for store in stores]}
    with serving(datastores) as target:
        for sessions in BATCHES:
            for name, (nodes, shape) in DRAFTS.items():
                figures: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
                for turn in range(1 + rounds):  # the first one warms up
                    some = list(itertools.islice(itertools.cycle(walks), turn, turn + sessions))
                    for way in sorted(WAYS, reverse=turn % 2 == 1):
                        with DatastoreClient(target, timeout=TIMEOUT) as client:  # new, with no stream to share
                            sources = stores if way == IN_PROCESS else [client]
                            row = replayed(sources, some, nodes, shape, steps, alone=way == OWN)
                        figures[way] += [row] * (turn > 0)
                row = {way: summary(sessions, of) for way, of in figures.items()}
                results[f"{sessions} sessions, {name}"] = row
                print(f"{sessions} sessions, {name}: {row}", flush=True)
    write_result(out, "batches", click.get_current_context().params, ("grpcio", "protobuf", "numpy"), results)


def summary(sessions: int, figures: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Return the steps a second, and the microseconds of processors of one, of turns' seconds and processor seconds."""
    seconds, processors = (float(value) for value in np.median(figures, axis=0))
    return {"steps a second": round(sessions / seconds), "processor us": round(processors / sessions * 1e6, 1)}


def replayed(
    sources: Sequence[object], walks: Sequence[Walk], nodes: int, shape: str, steps: int, *, alone: bool
) -> tuple[float, float]:
    """Run a batch of sessions; return the median seconds of its steps, and the mean seconds of processors.

    Args:
        sources: beside prompt lookup and recycled logits.
        walks: of each session; one that has ended goes on with its last token.
        nodes: most draft tokens.
        shape: of the drafts.
        steps: after the first, which opens the sessions.
        alone: whether each session takes its first step alone.

    Raises:
        ServeError: a step went on without one of the sources.
    """
    seconds, processors = [], 0.0
    with contextlib.ExitStack() as stack:
        sessions = [
            stack.enter_context(DraftSession([*sources, PromptLookup(), RecycledLogits()], walk.text[: walk.start]))
            for walk in walks
        ]
        if alone:
            for session in sessions:
                session.draft(nodes, shape=shape)
        trees = draft_all(sessions, nodes, shape=shape)
        places = [walk.start for walk in walks]
        for _ in range(steps):
            tokens, top_k, node_top_k = [], [], []
            for number, (walk, tree) in enumerate(zip(walks, trees, strict=True)):
                place = min(places[number], walk.text.size - 1)
                path = tree.longest_path(walk.text[place:])
                likely = walk.likely(place, tree, path)
                places[number] = walk.end_of(place, path)
                tokens.append(walk.text[place : places[number]].tolist())
                top_k.append(likely.get("top_k"))
                node_top_k.append(likely.get("node_top_k") if shape == "tree" else None)
            began, processors_before = time.perf_counter(), time.process_time()
            accept_all(sessions, tokens, top_k, node_top_k=node_top_k)
            trees = draft_all(sessions, nodes, shape=shape)
            seconds.append(time.perf_counter() - began)
            processors += time.process_time() - processors_before
        for session in sessions:
            if session.statistics.dropped:
                raise ServeError(describe("bench", "steps without a source", str(session.statistics.errors), "none"))
    return float(np.median(seconds)), processors / steps


if __name__ == "__main__":
    main()
