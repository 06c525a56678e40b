r"""How long a step's draft takes in process, with a long context: median and 90th percentile of `DraftSession.draft`.

    python benchmarks/bench_drafting.py --recordings traces_dev.jsonl.gz --datastore python.ds \
        --json benchmarks/results/drafting.json

Recordings that the shipped calibration was not fitted to are replayed, each behind so much text of the other recordings
that its context is 2,000 tokens long, from prompt lookup, recycled logits and the datastores.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

from rest_store.bench.environment import write_result
from rest_store.bench.recordings import FIT_PARTS, read_recordings
from rest_store.datastore.datastore import Datastore
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import PromptLookup, RecycledLogits

CONTEXT = 2000  # tokens before the output


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recordings", type=Path, required=True, help="JSONL with prompt, output and topk")
    parser.add_argument("--datastore", type=Path, action="append", default=[], help="may be repeated")
    parser.add_argument("--every", type=int, default=1, help="take each n-th recording only")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    read = [one for one in read_recordings(arguments.recordings) if one.output.size]
    others = np.concatenate([text for one in read if one.part < FIT_PARTS for text in (one.prompt, one.output)])
    held = [one for one in read if one.part >= FIT_PARTS][:: arguments.every]
    stores = [Datastore.open(place) for place in arguments.datastore]
    results: dict[str, Any] = {"context": CONTEXT, "datastores": [one.manifest.token_count for one in stores]}
    for nodes in (16, 64):
        times: list[float] = []
        for place, one in enumerate(held):
            before = np.roll(others, -place * CONTEXT)[: max(0, CONTEXT - one.prompt.size)]
            text = np.concatenate([before, one.prompt, one.output])
            at = known = before.size + one.prompt.size
            top_k = one.top_k[one.prompt.size :]
            with DraftSession(
                [PromptLookup(), RecycledLogits(), *stores], text[:at], calibration=Calibration.default()
            ) as session:
                while at < text.size:
                    began = time.perf_counter()
                    tree = session.draft(nodes)
                    times.append(time.perf_counter() - began)
                    end = min(at + len(tree.longest_path(text[at:])) + 1, text.size)
                    rows = top_k[at - known : end - known] if top_k.size else None
                    session.accept(text[at:end], rows)
                    at = end
        median, late = (round(float(value) * 1e6, 1) for value in np.percentile(times, [50, 90]))
        results[f"{nodes} nodes"] = {"median_us": median, "p90_us": late, "steps": len(times)}
        print(f"{nodes} nodes: median {median} us, 90th percentile {late} us, {len(times)} steps", flush=True)
    write_result(arguments.json, "drafting", arguments, ("numpy",), results)


if __name__ == "__main__":
    main()
