"""A datastore that is served in parts, beside one service and one process: what a draft and a step cost, and M.

Drafts: contexts of the recordings are drafted in turns by the datastore in process, a service of the whole, and clients
of its parts. Of each: microseconds, and of the services the requests and the bytes of a draft, from their metrics.
Every tree is compared with that of the datastore in process.

Steps: recordings are replayed in process, by sessions that a service runs, and by sessions that merge in the client the
evidence of one service, or of several parts. Of each: microseconds of drafting and accepting, and M.

All services run on this machine and share its cores: parts show what they cost here, and not what they save.
"""

from __future__ import annotations

import contextlib
import random
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
COUNTS = {"received": "request bytes", "sent": "answer bytes", "requests": "requests"}


class Served(NamedTuple):
    """A datastore behind services: a client of all of them, and where their metrics are."""

    client: DatastoreClient
    metrics: list[str]

    def counts(self) -> dict[str, float]:
        """Return the requests for drafts and counts so far, and their bytes."""
        sums = dict.fromkeys(COUNTS.values(), 0.0)
        for address in self.metrics:
            with urllib.request.urlopen(address, timeout=TIMEOUT) as response:
                text = response.read().decode()
            for family in text_string_to_metric_families(text):
                for name, label in COUNTS.items():
                    if family.name in (f"rest_store_{name}", f"rest_store_{name}_bytes"):
                        sums[label] += sum(
                            sample.value
                            for sample in family.samples
                            if sample.name.endswith("_total") and sample.labels["method"] in ("Draft", "Count")
                        )
        return sums


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
    """Return the figures of a draft, by way, in turns."""
    times: dict[str, list[float]] = {"in process": [], **{way: [] for way in ways}}
    before = {way: served.counts() for way, served in ways.items()}
    wrong = 0
    for start in range(0, len(contexts), ROUND):
        piece = contexts[start : start + ROUND]
        times["in process"] += time_each(lambda context: store.draft(context, max_nodes=nodes), piece)
        for way, served in ways.items():
            trees: list[Any] = []

            def draft(context: list[int], served: Served = served, trees: list[Any] = trees) -> None:
                trees.append(served.client.draft(context, max_nodes=nodes))

            times[way] += time_each(draft, piece)
            wrong += trees != [store.draft(context, max_nodes=nodes) for context in piece]
    figures: dict[str, Any] = {way: percentiles(of_way) for way, of_way in times.items()}
    for way, served in ways.items():
        now = served.counts()
        figures[way] |= {what: round((now[what] - before[way][what]) / len(contexts), 2) for what in now}
        figures[way]["unproved"] = served.client.statistics.unproved_trees
    return {**figures, "other trees": wrong}


def measure_steps(sources: dict[str, object], recordings: Sequence[Recording], nodes: int) -> dict[str, Any]:
    """Return the figures of a session's step, and M, by way; the recordings are replayed in turns."""
    times: dict[str, list[float]] = {way: [] for way in sources}
    counted = {way: [0, 0] for way in sources}
    for recording in recordings:
        for way, source in sources.items():
            mine = [source, PromptLookup(), RecycledLogits()]
            outcome = replay([recording], mine, Calibration.default(), max_nodes=nodes, learn=True, times=times[way])
            counted[way][0] += outcome.tokens
            counted[way][1] += outcome.steps
    return {
        way: {**percentiles(1e6 * seconds for seconds in times[way]), "M": round(tokens / max(1, steps), 4)}
        for way, (tokens, steps) in counted.items()
    }


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
            for _ in range(2):  # the first time warms up
                figures = measure_drafts(store, {"one service": whole, **ways}, contexts, nodes)
            results[f"{nodes} nodes, drafts"] = figures
            sources = {
                "in process": store,
                "in the service": whole.client,
                "merged, one service": merged.client,
                **{f"merged, {way}": served.client for way, served in ways.items()},
            }
            results[f"{nodes} nodes, steps"] = measure_steps(sources, chosen, nodes)
            for what in ("drafts", "steps"):
                print(f"{nodes} nodes, {what}: {results[f'{nodes} nodes, {what}']}", flush=True)
    write_result(out, "parts", click.get_current_context().params, ("numpy", "grpcio"), results)


if __name__ == "__main__":
    main()
