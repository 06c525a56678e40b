"""The command `rest-store bench live`: what remembering the outputs of a model adds to M, by replay of recordings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from rest_store.bench.datastores import open_datastores
from rest_store.bench.options import (
    Destination,
    calibration_of,
    calibration_option,
    datastores_option,
    every_option,
    recordings_option,
    require_datastores,
    result_options,
    tokenizer_option,
)
from rest_store.bench.recordings import Recording, amount, read_all, unfitted, without
from rest_store.bench.remembering import Order, among_others, in_turn, logits_of, new_live_datastore, with_all
from rest_store.bench.replay import Outcome, replay
from rest_store.bench.results import write_result
from rest_store.datastore.render import counted
from rest_store.datastore.store import Store
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.sources import PromptLookup, require_sources
from rest_store.options import max_nodes_option

# What a live datastore holds while a recording is replayed.
REMEMBERED: dict[str, Order] = {
    "those before it": in_turn,
    "all of other tasks": among_others,
    "all, itself too": with_all,
}
LOGITS = "the recycled logits of all others, no live datastore"


@click.command(epilog="Example: rest-store bench live --recordings traces.jsonl.gz --datastore python.ds")
@recordings_option()
@datastores_option
@tokenizer_option
@calibration_option
@max_nodes_option((16, 64), multiple=True)
@every_option
@result_options
def live(
    recordings: tuple[Path, ...],
    datastores: tuple[Path, ...],
    tokenizer: str | None,
    calibration: Path | None,
    max_nodes: tuple[int, ...],
    every: int,
    out: Destination,
) -> None:
    """Replay recordings with a live datastore that remembers others, and print M, tokens per forward pass.

    Each recording is replayed while nothing is remembered; in order, while those before it are; while all of other
    tasks are; and while all are, itself too: the same prompt asked again. Sessions share their recycled logits, which
    have learnt from what is remembered, as those of one program do; one row has these alone. With the datastores and
    without. All recordings are remembered; the figures are those of the recordings that the calibration was not fitted
    to. The first datastore says which tokenizer the tokens are from.
    """
    require_datastores(datastores, "bench live")
    stores = open_datastores(datastores)
    require_sources("--datastore", list(stores.values()))
    chosen = read_all(recordings, stores, tokenizer)[::every]
    used = calibration_of(calibration)
    reported = unfitted(chosen, used, "bench live")
    click.echo(
        f"{amount(reported)}{without(chosen, reported)}; M, where it lies for 95% of such samples, and by family:"
    )
    rows = measure_live(chosen, reported, stores, used, budgets=max_nodes, progress=click.echo)
    results = {
        "datastores": {name: store.info().token_count for name, store in stores.items()},
        "remembered": {"recordings": len(chosen), "tokens": sum(recording.output.size for recording in chosen)},
        "reported": len(reported),
        "rows": rows,
    }
    write_result(out, "live", click.get_current_context().params, ("numpy", "rest-store"), results)


def measure_live(
    recordings: Sequence[Recording],
    reported: Sequence[Recording],
    stores: Mapping[str, Store],
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
        `Outcome.as_json`.
    """
    tokenizer = next(iter(stores.values())).tokenizer
    reported_ids = {id(recording) for recording in reported}
    has_logits = any(recording.top_k.size for recording in recordings)
    rows: list[dict[str, Any]] = []

    def replay_one(recording: Recording, known: Sequence[Recording], sources: Sequence[object], nodes: int) -> Outcome:
        local = [PromptLookup(), *([logits_of(known)] if has_logits else [])]
        return replay([recording], [*local, *sources], calibration, max_nodes=nodes, share_logits=True)

    def remembering(order: Order, sources: Sequence[object], nodes: int) -> Outcome:
        with new_live_datastore(tokenizer) as memory:
            return Outcome.sum_of(
                replay_one(recording, known, [*sources, memory], nodes)
                for recording, known in order(recordings, memory, lambda one: id(one) in reported_ids)
            )

    def with_logits_of_others(sources: Sequence[object], nodes: int) -> Outcome:
        return Outcome.sum_of(
            replay_one(one, [other for other in recordings if other is not one], sources, nodes) for one in reported
        )

    def add(with_stores: bool, remembered: str, nodes: int, outcome: Outcome) -> None:
        row = {"datastores": with_stores, "remembered": remembered, "nodes": nodes, **outcome.as_json()}
        rows.append(row)
        besides = "datastores" if with_stores else "no datastores"
        progress(f"{besides}, remembered: {remembered}, {counted(nodes, 'node')}: {outcome}")
        if len(outcome.families) > 1:
            progress("    " + "  ".join(f"{name} {mean:.2f}" for name, mean in outcome.families.items()))

    for nodes in budgets:
        for with_stores in (True, False):
            sources = list(stores.values()) if with_stores else []
            nothing = Outcome.sum_of(replay_one(recording, (), sources, nodes) for recording in reported)
            add(with_stores, "nothing", nodes, nothing)
            if has_logits:
                add(with_stores, LOGITS, nodes, with_logits_of_others(sources, nodes))
            for remembered, order in REMEMBERED.items():
                add(with_stores, remembered, nodes, remembering(order, sources, nodes))
    return rows
