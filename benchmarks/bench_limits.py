r"""What limits M on recordings: what the sources know, how it is ranked, or how many nodes there are.

    python benchmarks/bench_limits.py --recordings traces_dev.jsonl.gz --datastore python.ds --datastore chat.ds \
        --json benchmarks/results/limits.json

Recordings that the shipped calibration was not fitted to are replayed with sessions of datastores, prompt lookup and
recycled logits. Reported:

- covered: the share of tokens that some source proposes, ranked first: the share to which the session gives the highest
  score; and M at 16 and 64 nodes if the right proposal were always the one that is drafted;
- M with many more nodes than a step could verify;
- M with a calibration that was fitted to these very recordings: no fair figure, but hard to beat by ranking.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rest_store.bench.environment import write_result
from rest_store.bench.recordings import FIT_PARTS, Recording, read_recordings
from rest_store.bench.replay import fit_calibration, replay
from rest_store.datastore.datastore import Datastore
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import PromptLookup, RecycledLogits

NODES = (16, 64)
MANY_NODES = (256, 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recordings", type=Path, required=True, help="JSONL with prompt, output and topk")
    parser.add_argument("--datastore", type=Path, action="append", default=[], help="may be repeated")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    stores = [Datastore.open(place) for place in arguments.datastore]
    held = [one for one in read_recordings(arguments.recordings) if one.part >= FIT_PARTS and one.output.size]
    sources = [PromptLookup(), RecycledLogits(), *stores]
    default = Calibration.default()

    covered, first = 0, 0
    steps = dict.fromkeys(NODES, 0)
    for recording in held:
        known, ranked = proposals(recording, stores, default)
        covered += sum(known)
        first += ranked
        for nodes in NODES:
            steps[nodes] += chain_steps(known, nodes)
    tokens = sum(one.output.size for one in held)
    results: dict[str, Any] = {
        "tokens": tokens,
        "covered": round(covered / tokens, 4),
        "ranked first": round(first / tokens, 4),
        "M if always ranked first": {nodes: round(tokens / steps[nodes], 4) for nodes in NODES},
    }
    results["M with many nodes"] = measured(held, sources, default, MANY_NODES)
    fitted = fit_calibration([(held, sources)], start=default)
    results["M fitted to these recordings"] = measured(held, sources, fitted, NODES)
    for name, value in results.items():
        print(f"{name}: {value}")
    write_result(arguments.json, "limits", arguments, ("numpy",), results)


def proposals(recording: Recording, stores: Sequence[Datastore], calibration: Calibration) -> tuple[list[bool], int]:
    """Say of each token of the output whether some source proposes it; count those with the highest score."""
    text = np.concatenate([recording.prompt, recording.output])
    covered, first, known = [], 0, 0
    own = [PromptLookup(), RecycledLogits(), *stores]
    with DraftSession(own, recording.prompt, calibration=calibration, learn=False) as session:
        session._native.record(True)
        for place in range(recording.prompt.size, text.size):
            tree = session.draft(NODES[0])
            best = int(tree.tokens[np.argmax(tree.scores)]) if len(tree) else -1
            first += best == int(text[place])
            session.accept(text[place : place + 1])
            if recording.top_k.size:
                session._native.learn_text(known, np.ascontiguousarray(recording.top_k[known:place]))
            known = place
            covered.append(bool(np.frombuffer(session._native.recorded()[1], np.uint8).any()))
    return covered, first


def chain_steps(covered: Sequence[bool], nodes: int) -> int:
    """Return the steps of an output of which each step drafts the covered tokens, up to `nodes` of them."""
    place = steps = 0
    while place < len(covered):
        taken = 0
        while taken < nodes and place + taken < len(covered) and covered[place + taken]:
            taken += 1
        place += taken + 1
        steps += 1
    return steps


def measured(
    recordings: list[Recording], sources: list[object], calibration: Calibration, budgets: Sequence[int]
) -> dict[int, float]:
    return {
        nodes: round(replay(recordings, sources, calibration, max_nodes=nodes).mean_accepted, 4) for nodes in budgets
    }


if __name__ == "__main__":
    main()
