"""The command `rest-store bench live`: what remembering the outputs of a model adds to M, by replay of recordings."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from rest_store.bench.datastores import open_datastores
from rest_store.bench.environment import write_result
from rest_store.bench.options import (
    Destination,
    datastores_option,
    every_option,
    recordings_option,
    require_datastores,
    result_options,
    tokenizer_option,
)
from rest_store.bench.recordings import Recording, amount, read_all, unfitted, without
from rest_store.bench.remembering import (
    Known,
    among_others,
    in_turn,
    logits_of,
    new_live_datastore,
    with_all,
    without_one,
)
from rest_store.bench.replay import Outcome, replay
from rest_store.datastore.datastore import Datastore
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.sources import PromptLookup, require_sources
from rest_store.options import max_nodes_option

if TYPE_CHECKING:
    from rest_store.live.live_datastore import LiveDatastore

    Order = Callable[[Sequence[Recording], LiveDatastore, Callable[[Recording], bool]], Known]

# What is remembered while a recording is replayed.
IN_TURN = "those before it"
REMEMBERED: dict[str, Order] = {
    IN_TURN: in_turn,
    "all of other tasks": among_others,
    "all others, its task in another form too": functools.partial(among_others, same_task=True),
    "all, itself too": with_all,
}
LOGITS = "the recycled logits of all others, no live datastore"
_SLICES = 5  # of the recordings in order, for the curve

Replayed = list[tuple[int, Outcome]]  # tokens remembered before each recording, and its outcome


@click.command(epilog="Example: rest-store bench live --recordings traces.jsonl.gz --datastore python.ds")
@recordings_option()
@datastores_option
@tokenizer_option
@click.option("--calibration", metavar="FILE", default="default", help="'default': the one of the package; or a file.")
@max_nodes_option((16, 64), multiple=True)
@every_option
@result_options
def live(
    recordings: tuple[Path, ...],
    datastores: tuple[Path, ...],
    tokenizer: str | None,
    calibration: str,
    max_nodes: tuple[int, ...],
    every: int,
    out: Destination,
) -> None:
    """Replay recordings with a live datastore that remembers others, and print M, tokens per forward pass.

    Each recording is replayed while nothing is remembered; in order, while those before it are; and while all others
    are, without and with other prompts of its task, and itself too: the same prompt asked again. Sessions share their
    recycled logits, which have learnt from what is remembered, as those of one program do; one row has these alone.
    With the datastores and without. All recordings are remembered; the figures are those of the recordings that the
    calibration was not fitted to. The first datastore says which tokenizer the tokens are from.
    """
    require_datastores(datastores, "bench live")
    stores = open_datastores(datastores)
    require_sources("--datastore", list(stores.values()))
    chosen = read_all(recordings, stores, tokenizer)[::every]
    used = Calibration.default() if calibration == "default" else Calibration.load(calibration)
    reported = unfitted(chosen, used, "bench live")
    click.echo(f"{amount(reported)}{without(chosen, reported)}; M, and by family:")
    rows = measure_live(chosen, reported, stores, used, budgets=max_nodes, progress=click.echo)
    arguments = {"recordings": recordings, "datastore": datastores, "calibration": calibration}
    results = {
        "datastores": {name: store.info().token_count for name, store in stores.items()},
        "remembered": {"recordings": len(chosen), "tokens": sum(recording.output.size for recording in chosen)},
        "reported": len(reported),
        "rows": rows,
    }
    write_result(out, "live", arguments, ("numpy", "rest-store"), results)


def measure_live(
    recordings: Sequence[Recording],
    reported: Sequence[Recording],
    stores: Mapping[str, Datastore | LiveDatastore],
    calibration: Calibration,
    *,
    budgets: Sequence[int] = (16, 64),
    progress: Callable[[str], object] = lambda line: None,
) -> list[dict[str, Any]]:
    """Replay recordings with and without datastores, for each way to remember the others.

    Args:
        recordings: all of them, in order.
        reported: those to replay, in the same order; `calibration` must not have been fitted to them.
        stores: datastores by name, at least one.
        calibration: of the sessions; not changed.
        budgets: nodes of a step.
        progress: called with a line for each row.

    Returns:
        One row each: "datastores" (whether they are sources), "remembered", "nodes" and the figures of
        `Outcome.as_json`. Where those before it are remembered, also "curve": for each fifth of the recordings the mean
        of "remembered" tokens, "M", and "M without" a live datastore.
    """
    tokenizer = next(iter(stores.values())).tokenizer
    reported_ids = {id(recording) for recording in reported}
    has_logits = any(recording.top_k.size for recording in recordings)
    rows: list[dict[str, Any]] = []

    def replay_one(recording: Recording, known: Sequence[Recording], sources: Sequence[object], nodes: int) -> Outcome:
        local = [PromptLookup(), *([logits_of(known)] if has_logits else [])]
        return replay([recording], [*local, *sources], calibration, max_nodes=nodes, share_logits=True)

    def replayed(sources: Sequence[object], nodes: int, order: Order) -> Replayed:
        with new_live_datastore(tokenizer) as remembering:
            return [
                (remembering.info().token_count, replay_one(recording, known, [*sources, remembering], nodes))
                for recording, known in order(recordings, remembering, lambda recording: id(recording) in reported_ids)
            ]

    def add(with_stores: bool, remembered: str, nodes: int, each: Replayed) -> dict[str, Any]:
        total = Outcome.sum_of(outcome for _, outcome in each)
        row = {"datastores": with_stores, "remembered": remembered, "nodes": nodes, **total.as_json()}
        rows.append(row)
        families = "  ".join(f"{name} {figure:.2f}" for name, figure in row["families"].items())
        besides = "datastores" if with_stores else "no datastores"
        progress(f"{besides + ', remembered: ' + remembered:<72}{nodes:>4} nodes {row['M']:6.3f}   {families}")
        return row

    for nodes in budgets:
        for with_stores in (True, False):
            sources = list(stores.values()) if with_stores else []
            nothing = [(0, replay_one(recording, (), sources, nodes)) for recording in reported]
            add(with_stores, "nothing", nodes, nothing)
            if has_logits:
                others = [
                    (0, replay_one(recording, without_one(recordings, recording), sources, nodes))
                    for recording in reported
                ]
                add(with_stores, LOGITS, nodes, others)
            for remembered, order in REMEMBERED.items():
                each = replayed(sources, nodes, order)
                row = add(with_stores, remembered, nodes, each)
                if remembered == IN_TURN:
                    row["curve"] = _curve(each, nothing)
                    progress(
                        "  M by tokens remembered, and without: "
                        + ", ".join(
                            f"{part['remembered']}: {part['M']:.2f} ({part['M without']:.2f})" for part in row["curve"]
                        )
                    )
    return rows


def _curve(each: Replayed, nothing: Replayed) -> list[dict[str, Any]]:
    parts = []
    for places in np.array_split(np.arange(len(each)), min(_SLICES, len(each))):
        inside = [each[place] for place in places]
        parts.append(
            {
                "remembered": round(float(np.mean([tokens for tokens, _ in inside]))),
                "M": round(Outcome.sum_of(outcome for _, outcome in inside).mean_accepted, 4),
                "M without": round(Outcome.sum_of(nothing[place][1] for place in places).mean_accepted, 4),
            }
        )
    return parts
