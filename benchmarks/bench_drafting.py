"""Measure `DraftSession.draft` in process with a long context: median and 90th percentile of a step.

Recordings that the shipped calibration was not fitted to are replayed, each after so much text of the other recordings
that its context is 2,000 tokens long, from prompt lookup, recycled logits and the datastores.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click
from timing import percentiles
from walks import CONTEXT, long_walks

from rest_store.bench.datastores import open_datastores
from rest_store.bench.environment import write_result
from rest_store.bench.options import SHOW_DEFAULTS, datastores_option, every_option, json_option, recordings_option
from rest_store.bench.recordings import read_recordings, split
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import PromptLookup, RecycledLogits


@click.command(
    help=__doc__,
    context_settings=SHOW_DEFAULTS,
    epilog="Example: python benchmarks/bench_drafting.py --recordings traces.jsonl.gz --datastore python.ds",
)
@recordings_option
@datastores_option
@every_option
@json_option
def main(recordings: tuple[Path, ...], datastores: tuple[Path, ...], every: int, json_file: Path | None) -> None:
    chosen = [recording for path in recordings for recording in read_recordings(path)]
    fitting, held_out = split(chosen, "bench_drafting.py")
    stores = list(open_datastores(datastores).values())
    walks = long_walks(held_out[::every], fitting)
    results: dict[str, Any] = {"context": CONTEXT, "datastores": [store.manifest.token_count for store in stores]}
    for nodes in (16, 64):
        times: list[float] = []
        for walk in walks:
            place = walk.start
            sources = [PromptLookup(), RecycledLogits(), *stores]
            with DraftSession(sources, walk.text[:place], calibration=Calibration.default()) as session:
                while place < walk.text.size:
                    began = time.perf_counter()
                    tree = session.draft(nodes)
                    times.append((time.perf_counter() - began) * 1e6)
                    path = tree.longest_path(walk.text[place:])
                    end = walk.end_of(place, path)
                    session.accept(walk.text[place:end], **walk.likely(place, tree, path))
                    place = end
        figures = percentiles(times)
        row = {"median_us": round(figures["median"], 1), "p90_us": round(figures["p90"], 1), "steps": len(times)}
        results[f"{nodes} nodes"] = row
        print(f"{nodes} nodes: {row}", flush=True)
    write_result(json_file, "drafting", click.get_current_context().params, ("numpy",), results)


if __name__ == "__main__":
    main()
