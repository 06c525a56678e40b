r"""What a calibration learns online: M and calibration error on recordings, with learning and without.

    python benchmarks/bench_learning.py --recordings traces_dev.jsonl.gz --datastore python.ds --datastore chat.ds \
        --json benchmarks/results/learning.json

Recordings that the shipped calibration was not fitted to are replayed one after the other at 16 nodes, with each source
alone and with all of them. Learning, one copy of the shipped calibration goes through all recordings of a row.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rest_store.bench.environment import write_result
from rest_store.bench.recordings import FIT_PARTS, read_recordings
from rest_store.bench.replay import replay
from rest_store.datastore.datastore import Datastore
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.sources import PromptLookup, RecycledLogits

NODES = 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recordings", type=Path, required=True, help="JSONL with prompt, output and topk")
    parser.add_argument("--datastore", type=Path, action="append", default=[], help="may be repeated")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    held = [one for one in read_recordings(arguments.recordings) if one.part >= FIT_PARTS and one.output.size]
    sources: dict[str, object] = {"prompt lookup": PromptLookup(), "recycled logits": RecycledLogits()}
    sources |= {place.name: Datastore.open(place) for place in arguments.datastore}
    results: dict[str, Any] = {}
    print("sources: M, calibration error; the same with learning")
    for name, drafting in {**{name: [one] for name, one in sources.items()}, "all": list(sources.values())}.items():
        row = results[name] = {}
        for learn in (False, True):
            outcome = replay(held, drafting, Calibration.default(), max_nodes=NODES, learn=learn)
            row["learning" if learn else "as shipped"] = {
                "M": round(outcome.mean_accepted, 4),
                "calibration error": round(outcome.calibration_error, 4),
            }
        print(f"{name}: " + "; ".join(f"{one['M']:.3f}, {one['calibration error']:.4f}" for one in row.values()))
    write_result(arguments.json, "learning", arguments, ("numpy",), results)


if __name__ == "__main__":
    main()
