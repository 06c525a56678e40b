"""The command `rest-store calibrate`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from rest_store.bench.measurement_options import (
    datastores_option,
    recordings_option,
    tokenizer_option,
)
from rest_store.bench.recordings import FIT_FOLDS, MIN_TO_FIT, read_all, split
from rest_store.bench.replay import fit_calibration, replay
from rest_store.bench.results import file_hash
from rest_store.command_options import FILE, check_writable, json_option
from rest_store.datastore.render import counted
from rest_store.drafting.calibration import Calibration
from rest_store.drafting.sources import PromptLookup, RecycledLogits, require_sources
from rest_store.live.open_store import open_datastores

# Nodes, and tokens of the output that count as prompt, of each replay.
_BUDGETS = ((24, 0), (24, 2), (64, 1))


@click.command(
    epilog=(
        "Example: rest-store calibrate --recordings mine.jsonl --datastore python.ds --out"
        " mine.calibration"
    ),
)
@recordings_option()
@datastores_option
@tokenizer_option
@click.option(
    "--out",
    metavar="FILE",
    required=True,
    type=FILE,
    callback=check_writable,
    help="Destination of the result: the calibration.",
)
@click.option(
    "--trees",
    metavar="N",
    default=250,
    type=click.IntRange(1, 2000),
    help="Number of boosted trees.",
)
@json_option
def calibrate(
    recordings: tuple[Path, ...],
    datastores: tuple[Path, ...],
    tokenizer: str | None,
    out: Path,
    trees: int,
    as_json: bool,
) -> None:
    """Fit a calibration to recordings of your own model, and show how good it is.

    The fit uses seven tenths of the prompts, by a fixed hash; the figures are of the others. The
    result is for `rest-store generate --calibration`, `bench speed --calibration` and
    `Generator(calibration=...)`.
    """
    stores = open_datastores(datastores)
    require_sources("--datastore", list(stores.values()))
    fitting, held_out = split(
        read_all(recordings, stores, tokenizer), "calibrate", minimum=MIN_TO_FIT
    )
    sources = [PromptLookup(), RecycledLogits(), *stores.values()]
    provenance = {
        "recordings": [path.name for path in recordings],
        "prompts": f"folds 0..{FIT_FOLDS - 1} of 10",
        "data": [file_hash(path) for path in recordings],
        "datastores": [path.name for path in datastores],
        "trees": trees,
    }
    default = Calibration.default()
    record: list[tuple[bytes, bytes, bytes]] = []
    for nodes, skip in _BUDGETS:
        replay(
            fitting,
            sources,
            default,
            max_nodes=nodes,
            learn=False,
            skip=skip,
            record=record,
        )
    fitted = fit_calibration(record, trees=trees, provenance=provenance)
    fitted.save(out)
    outcomes = {}
    for name, calibration in (("default", default), ("fitted", fitted)):
        for nodes in (16, 64):
            outcome = replay(held_out, sources, calibration.copy(), max_nodes=nodes)
            outcomes[name, nodes] = outcome
    if as_json:
        table_rows = [
            {"calibration": name, "nodes": nodes, **outcome.as_json()}
            for (name, nodes), outcome in outcomes.items()
        ]
        summary = {"out": str(out), "fitted": len(fitting), "reported": len(held_out)}
        click.echo(json.dumps({**summary, "rows": table_rows}))
        return
    click.echo(f"{out}: fitted to {counted(len(fitting), 'recording')}; on {len(held_out)} others:")
    for (name, nodes), outcome in outcomes.items():
        click.echo(
            f"  {name:<8} {nodes:>3} nodes  M {outcome}  calibration error"
            f" {outcome.calibration_error:.3f}"
        )
