r"""M of a session on all recordings, each replayed with a calibration that was fitted to other tasks.

    python benchmarks/bench_folds.py --recordings traces_dev.jsonl.gz --datastore python.ds --datastore chat.ds \
        --json benchmarks/results/folds.json

The recordings are split by task into as many folds as asked for (`HumanEval/7`, raw and chat, is one task). For each
fold a calibration is fitted to the others from nothing: an untrained rule guides the first fit, each fit the next one.
The shipped calibration has no part in it. What is reported on parts of the recordings alone (`rest-store bench
quality`) depends on which parts these are; this does not.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path
from typing import Any

from rest_store.bench.environment import write_result
from rest_store.bench.recordings import PARTS, Recording, read_recordings
from rest_store.bench.replay import fit_calibration, replay
from rest_store.datastore.datastore import Datastore
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.sources import PromptLookup, RecycledLogits

NODES = (16, 64)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recordings", type=Path, required=True, help="JSONL with prompt, output and topk")
    parser.add_argument("--datastore", type=Path, action="append", default=[], help="may be repeated")
    parser.add_argument("--folds", type=int, default=3, help="2..10")
    parser.add_argument("--rounds", type=int, default=2, help="fits, each guided by the one before")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if not 2 <= arguments.folds <= PARTS or arguments.rounds < 1:
        parser.error(f"--folds is 2..{PARTS}, --rounds at least 1")
    sources = [PromptLookup(), RecycledLogits(), *(Datastore.open(place) for place in arguments.datastore)]
    recordings = [one for one in read_recordings(arguments.recordings) if one.output.size]

    steps: dict[int, dict[str, list[int]]] = {nodes: defaultdict(lambda: [0, 0]) for nodes in NODES}
    folds: list[dict[str, Any]] = []
    for fold in range(arguments.folds):
        reported = [one for one in recordings if one.part % arguments.folds == fold]
        others = [one for one in recordings if one.part % arguments.folds != fold]
        calibration = fitted(others, sources, arguments.rounds)
        row: dict[str, Any] = {"recordings": len(reported), "fitted to": len(others)}
        for nodes in NODES:
            outcome = replay(reported, sources, calibration, max_nodes=nodes)
            for family, (tokens, taken) in outcome.families.items():
                steps[nodes][family][0] += tokens
                steps[nodes][family][1] += taken
            row[f"M, {nodes} nodes"] = round(outcome.mean_accepted, 4)
        print(f"fold {fold}: {row}", flush=True)
        folds.append(row)

    families = {
        nodes: {family: round(tokens / taken, 4) for family, (tokens, taken) in sorted(rows.items())}
        for nodes, rows in steps.items()
    }
    results: dict[str, Any] = {"recordings": len(recordings), "folds": folds}
    for nodes, rows in steps.items():
        tokens, taken = (sum(row[place] for row in rows.values()) for place in (0, 1))
        results[f"M, {nodes} nodes"] = {"all": round(tokens / taken, 4), **families[nodes]}
        print(f"{nodes} nodes: {results[f'M, {nodes} nodes']}")
    write_result(arguments.json, "folds", arguments, ("numpy",), results)


def fitted(recordings: list[Recording], sources: list[object], rounds: int) -> Calibration:
    calibration: Calibration | None = None
    for _ in range(rounds):
        calibration = fit_calibration([(recordings, sources)], start=calibration)
    assert calibration is not None
    return calibration


if __name__ == "__main__":
    main()
