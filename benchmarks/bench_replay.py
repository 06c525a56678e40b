"""Replay recordings to learn what limits M, what online calibration adds, and how M varies between tasks.

`rest-store bench quality` measures M itself. All commands draft from prompt lookup, recycled logits and the datastores.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from rest_store.bench.datastores import open_datastores
from rest_store.bench.environment import write_result
from rest_store.bench.options import Destination, datastores_option, every_option, recordings_option, result_options
from rest_store.bench.recordings import PARTS, Recording, read_recordings, unfitted
from rest_store.bench.replay import fit_calibration, known_rows, replay
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.session import DraftSession
from rest_store.drafting.sources import PromptLookup, RecycledLogits
from rest_store.options import SETTINGS

NODES = (16, 64)
MANY_NODES = (256, 1024)
Sources = dict[str, object]


@click.group(
    help=__doc__,
    context_settings=SETTINGS,
    epilog="Example: python benchmarks/bench_replay.py limits --recordings traces.jsonl.gz --datastore python.ds",
)
def main() -> None:
    pass


def common(command: Any) -> Any:
    for option in (result_options, every_option, datastores_option, recordings_option()):
        command = option(command)
    return command


def read(recordings: tuple[Path, ...], datastores: tuple[Path, ...], every: int) -> tuple[list[Recording], Sources]:
    sources: Sources = {"prompt lookup": PromptLookup(), "recycled logits": RecycledLogits()}
    chosen = [recording for path in recordings for recording in read_recordings(path)][::every]
    return [recording for recording in chosen if recording.output.size], {**sources, **open_datastores(datastores)}


@main.command
@common
def limits(recordings: tuple[Path, ...], datastores: tuple[Path, ...], every: int, out: Destination) -> None:
    """Measure what limits M: the sources, the ranking, or the number of nodes.

    Recordings that the shipped calibration was not fitted to are replayed. Reported: the share of tokens that some
    source proposes (covered), and the share that gets the highest score (ranked first); M if every covered token were
    ranked first; M with more nodes than a step could verify; M with a calibration fitted to these very recordings,
    which is no fair figure, but an upper bound for ranking.
    """
    chosen, sources = read(recordings, datastores, every)
    default = Calibration.default()
    held_out = unfitted(chosen, default, "limits")
    covered = first = 0
    steps = dict.fromkeys(NODES, 0)
    for recording in held_out:
        proposed, ranked = proposals(recording, list(sources.values()), default)
        covered += sum(proposed)
        first += ranked
        for nodes in NODES:
            steps[nodes] += chain_steps(proposed, nodes)
    tokens = sum(recording.output.size for recording in held_out)

    def measured(calibration: Calibration, budgets: Sequence[int]) -> dict[int, float]:
        outcomes = {nodes: replay(held_out, list(sources.values()), calibration, max_nodes=nodes) for nodes in budgets}
        return {nodes: round(outcome.mean_accepted, 4) for nodes, outcome in outcomes.items()}

    fitted = fit_calibration([(held_out, list(sources.values()))], start=default)
    results: dict[str, Any] = {
        "tokens": tokens,
        "covered": round(covered / tokens, 4),
        "ranked first": round(first / tokens, 4),
        "M if always ranked first": {nodes: round(tokens / steps[nodes], 4) for nodes in NODES},
        "M with many nodes": measured(default, MANY_NODES),
        "M fitted to these recordings": measured(fitted, NODES),
    }
    for name, value in results.items():
        print(f"{name}: {value}")
    write_result(out, "limits", click.get_current_context().params, ("numpy",), results)


def proposals(recording: Recording, sources: Sequence[object], calibration: Calibration) -> tuple[list[bool], int]:
    """Return for each token of the output whether some source proposes it, and how many have the highest score."""
    text = np.concatenate([recording.prompt, recording.output])
    fresh = [RecycledLogits() if isinstance(source, RecycledLogits) else source for source in sources]
    covered, first, known = [], 0, 0
    with DraftSession(fresh, recording.prompt, calibration=calibration, learn=False) as session:
        session.sources.native.record(True)
        for place in range(recording.prompt.size, text.size):
            tree = session.draft(NODES[0])
            best = int(tree.tokens[np.argmax(tree.scores)]) if len(tree) else -1
            first += best == int(text[place])
            session.accept(text[place : place + 1], known_rows(recording.top_k, known, place + 1))
            known = place
            covered.append(bool(np.frombuffer(session.sources.native.recorded()[1], np.uint8).any()))
    return covered, first


def chain_steps(covered: Sequence[bool], nodes: int) -> int:
    """Return the steps of an output if each step drafts the covered tokens, up to `nodes` of them."""
    place = steps = 0
    while place < len(covered):
        end = min(place + nodes, len(covered))
        while place < end and covered[place]:
            place += 1
        place, steps = place + 1, steps + 1
    return steps


@main.command
@common
def learning(recordings: tuple[Path, ...], datastores: tuple[Path, ...], every: int, out: Destination) -> None:
    """Measure M and calibration error with online calibration and without, from each source and from all.

    Recordings that the shipped calibration was not fitted to are replayed one after the other. With learning, one copy
    of the shipped calibration goes through all recordings of a row.
    """
    chosen, sources = read(recordings, datastores, every)
    held_out = unfitted(chosen, Calibration.default(), "learning")
    results: dict[str, Any] = {}
    print("sources: M, calibration error; the same with learning")
    for name, drafting in {**{name: [one] for name, one in sources.items()}, "all": [*sources.values()]}.items():
        row = results[name] = {}
        for learn in (False, True):
            outcome = replay(held_out, drafting, Calibration.default(), max_nodes=NODES[0], learn=learn)
            row["learning" if learn else "as shipped"] = {
                "M": round(outcome.mean_accepted, 4),
                "calibration error": round(outcome.calibration_error, 4),
            }
        print(f"{name}: " + "; ".join(f"{each['M']:.3f}, {each['calibration error']:.4f}" for each in row.values()))
    write_result(out, "learning", click.get_current_context().params, ("numpy",), results)


@main.command
@common
@click.option("--folds", "count", metavar="N", default=3, type=click.IntRange(2, PARTS), help="Number of folds.")
@click.option("--rounds", metavar="N", default=2, type=click.IntRange(1), help="Fits, each guided by the one before.")
def folds(
    recordings: tuple[Path, ...],
    datastores: tuple[Path, ...],
    every: int,
    out: Destination,
    count: int,
    rounds: int,
) -> None:
    """Measure M on all recordings, each replayed with a calibration that was fitted to other tasks.

    The recordings are split by task into folds (`HumanEval/7`, raw and chat, is one task). For each fold a calibration
    is fitted to the others from nothing; the shipped one has no part in it. The result does not depend on which tasks
    are held out.
    """
    chosen, by_name = read(recordings, datastores, every)
    sources = list(by_name.values())
    steps: dict[int, dict[str, list[int]]] = {nodes: defaultdict(lambda: [0, 0]) for nodes in NODES}
    rows: list[dict[str, Any]] = []
    for fold in range(count):
        reported = [recording for recording in chosen if recording.part % count == fold]
        others = [recording for recording in chosen if recording.part % count != fold]
        calibration: Calibration | None = None
        for _ in range(rounds):
            calibration = fit_calibration([(others, sources)], start=calibration)
        assert calibration is not None
        row: dict[str, Any] = {"recordings": len(reported), "fitted to": len(others)}
        for nodes in NODES:
            outcome = replay(reported, sources, calibration, max_nodes=nodes)
            for family, counts in {**outcome.families, "all": [outcome.tokens, outcome.steps]}.items():
                steps[nodes][family][0] += counts[0]
                steps[nodes][family][1] += counts[1]
            row[f"M, {nodes} nodes"] = round(outcome.mean_accepted, 4)
        print(f"fold {fold}: {row}", flush=True)
        rows.append(row)
    results: dict[str, Any] = {"recordings": len(chosen), "folds": rows}
    for nodes, families in steps.items():
        figures = {family: round(tokens / taken, 4) for family, (tokens, taken) in sorted(families.items())}
        results[f"M, {nodes} nodes"] = figures
        print(f"{nodes} nodes: {figures}")
    write_result(out, "folds", click.get_current_context().params, ("numpy",), results)


if __name__ == "__main__":
    main()
