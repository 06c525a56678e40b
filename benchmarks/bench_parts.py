"""A datastore that is served in parts, beside one service and one process: what a draft and a step cost, and M.

Drafts: contexts of the recordings are drafted in turns by the datastore in process, a service of the whole, and clients
of its parts. Every tree is compared with that of the datastore in process. Steps: recordings are replayed in process,
by sessions that a service runs, and by sessions that merge in the client the evidence of one service, or of several
parts.

Reported for each way, per draft or step: microseconds, microseconds of processor time in this process and in all
services, requests and bytes; for sessions also M. The figures of services come from their metrics.

All services run on this machine and share its cores: parts show what they cost here, and not what they save.
"""

from __future__ import annotations

import contextlib
import random
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np
from prometheus_client.parser import text_string_to_metric_families
from timing import percentiles, time_each

from rest_store.bench.environment import write_result
from rest_store.bench.options import Destination, every_option, recordings_option, result_options
from rest_store.bench.recordings import Recording, read_recordings
from rest_store.bench.replay import replay
from rest_store.bench.serving import TIMEOUT, started
from rest_store.datastore.datastore import Datastore
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.sources import PromptLookup, RecycledLogits
from rest_store.options import PATH, SETTINGS
from rest_store.service.client.client import DatastoreClient

NODES = (16, 64)
SUFFIX = 16
ROUND = 50  # drafts of each before the next takes its turn
COUNTED = {  # metrics of a service, and the names of their figures
    "rest_store_requests_total": "requests",
    "rest_store_received_bytes_total": "request bytes",
    "rest_store_sent_bytes_total": "answer bytes",
    "process_cpu_seconds_total": "service CPU us",
}
METHODS = ("Draft", "Count", "DraftStream", "DraftSession")


class Served(NamedTuple):
    """A datastore behind services: a client of all of them, and where their metrics are."""

    client: DatastoreClient
    metrics: list[str]

    def counts(self) -> dict[str, float]:
        """Return what all services have counted so far, and the processor time of this process."""
        sums = {**dict.fromkeys(COUNTED.values(), 0.0), "client CPU us": 1e6 * time.process_time()}
        for address in self.metrics:
            with urllib.request.urlopen(address, timeout=TIMEOUT) as response:
                text = response.read().decode()
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    if sample.name in COUNTED and sample.labels.get("method", METHODS[0]) in METHODS:
                        unit = 1e6 if sample.name == "process_cpu_seconds_total" else 1
                        sums[COUNTED[sample.name]] += unit * sample.value
        return sums


class Turns:
    """What each way has taken so far, in turns.

    Args:
        ways: their names, and the services that they ask; None: none.
    """

    def __init__(self, ways: dict[str, Served | None]) -> None:
        self.times: dict[str, list[float]] = {way: [] for way in ways}
        self._ways = ways
        self._sums: dict[str, dict[str, float]] = {way: {} for way in ways}

    @contextlib.contextmanager
    def turn(self, way: str) -> Iterator[list[float]]:
        """Count what the block takes; yield the list to which its times belong, in microseconds."""
        served = self._ways[way]
        before = {} if served is None else served.counts()
        yield self.times[way]
        now, sums = {} if served is None else served.counts(), self._sums[way]
        for what in now:
            sums[what] = sums.get(what, 0.0) + now[what] - before[what]

    def figures(self) -> dict[str, dict[str, Any]]:
        """Return the figures of each way."""
        return {
            way: {
                **percentiles(times),
                **{what: round(total / len(times), 1) for what, total in self._sums[way].items()},
            }
            for way, times in self.times.items()
        }


@contextlib.contextmanager
def serving(directory: Path, parts: int | None, **options: Any) -> Iterator[Served]:
    """Serve a datastore, whole or in parts, each in a process of its own."""
    with contextlib.ExitStack() as stack:
        groups, metrics = [], []
        for number in range(1, (parts or 1) + 1):
            part = [] if parts is None else ["--part", f"{number}/{parts}"]
            command = ["-m", "rest_store", "serve", str(directory), "--listen", "127.0.0.1:0", *part]
            target, measured = stack.enter_context(started(*command, "--metrics", "127.0.0.1:0"))
            groups.append([target])
            metrics.append(measured)
        client = stack.enter_context(DatastoreClient(groups if parts else groups[0], timeout=TIMEOUT, **options))
        client.connect()
        yield Served(client, metrics)


def contexts_of(recordings: Sequence[Recording], number: int) -> list[list[int]]:
    """Return ends of texts at random places of the outputs."""
    chance, texts = random.Random(1), [np.concatenate([one.prompt, one.output]) for one in recordings]
    chosen = []
    for _ in range(number):
        text = chance.choice(texts)
        end = chance.randrange(SUFFIX, max(SUFFIX, text.size) + 1)
        chosen.append(text[max(0, end - SUFFIX) : end].tolist())
    return chosen


def measure_drafts(store: Datastore, ways: dict[str, Served], contexts: list[list[int]], nodes: int) -> dict[str, Any]:
    """Return the figures of a draft, by way."""
    turns = Turns({"in process": None, **ways})
    wrong = 0
    for start in range(0, len(contexts), ROUND):
        piece = contexts[start : start + ROUND]
        with turns.turn("in process") as times:
            times += time_each(lambda context: store.draft(context, max_nodes=nodes), piece)
        expected = [store.draft(context, max_nodes=nodes) for context in piece]
        for way, served in ways.items():
            trees: list[Any] = []

            def draft(context: list[int], served: Served = served, trees: list[Any] = trees) -> None:
                trees.append(served.client.draft(context, max_nodes=nodes))

            with turns.turn(way) as times:
                times += time_each(draft, piece)
            wrong += sum(tree != right for tree, right in zip(trees, expected, strict=True))
    return {**turns.figures(), "other trees": wrong}


def measure_steps(
    store: Datastore, ways: dict[str, Served], recordings: Sequence[Recording], nodes: int
) -> dict[str, Any]:
    """Return the figures of a session's step, and M, by way."""
    turns = Turns({"in process": None, **ways})
    counted = {way: [0, 0] for way in turns.times}
    for recording in recordings:
        for way in turns.times:
            sources = [store if way == "in process" else ways[way].client, PromptLookup(), RecycledLogits()]
            seconds: list[float] = []
            with turns.turn(way) as times:
                outcome = replay(
                    [recording], sources, Calibration.default(), max_nodes=nodes, learn=True, times=seconds
                )
                times += [1e6 * one for one in seconds]
            counted[way][0] += outcome.tokens
            counted[way][1] += outcome.steps
    figures = turns.figures()
    return {way: {**figures[way], "M": round(tokens / max(1, steps), 4)} for way, (tokens, steps) in counted.items()}


@click.command(
    help=__doc__,
    context_settings=SETTINGS,
    epilog="Example: python benchmarks/bench_parts.py --recordings traces.jsonl.gz --datastore python.ds",
)
@recordings_option()
@click.option("--datastore", metavar="DIR", type=PATH, required=True, help="With as many shards as parts, or more.")
@click.option("--parts", metavar="N", multiple=True, default=[2, 4], type=click.IntRange(2), help="Repeatable.")
@click.option("--drafts", metavar="N", default=500, type=click.IntRange(1), help="Contexts that are drafted.")
@every_option
@result_options
def main(
    recordings: tuple[Path, ...], datastore: Path, parts: tuple[int, ...], drafts: int, every: int, out: Destination
) -> None:
    store = Datastore.open(datastore)
    chosen = [recording for path in recordings for recording in read_recordings(path)][::every]
    chosen = [recording for recording in chosen if recording.output.size and recording.prompt.size >= SUFFIX]
    results: dict[str, Any] = {"tokens": store.info().token_count, "shards": len(store.shards)}
    with contextlib.ExitStack() as stack:
        whole = stack.enter_context(serving(datastore, None))
        merged = stack.enter_context(serving(datastore, None, send_text=False))
        ways = {f"{number} parts": stack.enter_context(serving(datastore, number)) for number in parts}
        contexts = contexts_of(chosen, drafts)
        for nodes in NODES:
            measure_drafts(store, {"one service": whole, **ways}, contexts[: 2 * ROUND], nodes)  # warms up
            drafts_of = measure_drafts(store, {"one service": whole, **ways}, contexts, nodes)
            sessions = {"in the service": whole, "merged, one service": merged}
            sessions |= {f"merged, {way}": served for way, served in ways.items()}
            steps_of = measure_steps(store, sessions, chosen, nodes)
            results |= {f"{nodes} nodes, drafts": drafts_of, f"{nodes} nodes, steps": steps_of}
            print(f"{nodes} nodes, drafts: {drafts_of}\n{nodes} nodes, steps: {steps_of}", flush=True)
    write_result(out, "parts", click.get_current_context().params, ("numpy", "grpcio"), results)


if __name__ == "__main__":
    main()
