"""The command `python benchmarks/bench_paper.py`."""

from __future__ import annotations

from pathlib import Path

import click

from rest_store.errors import RecordingError, describe


@click.command(
    epilog="Example: python benchmarks/bench_paper.py --recordings traces.jsonl.gz --datastore a.ds --datastore b.ds"
)
@click.option(
    "--recordings",
    "paths",
    multiple=True,
    required=True,
    type=click.Path(path_type=Path),
    help="JSON lines of prompt and output as token ids, also .gz. May be repeated.",
)
@click.option(
    "--datastore", "stores", multiple=True, required=True, type=click.Path(path_type=Path), help="May be repeated."
)
@click.option("--every", default=1, show_default=True, type=click.IntRange(1), help="Take each n-th recording only.")
@click.option("--seed", default=0, show_default=True, help="Of the random continuations.")
@click.option("--json", "result", type=click.Path(path_type=Path), help="Write all figures to this file.")
@click.option(
    "--plots", type=click.Path(path_type=Path), help="Folder for plots, PNG and SVG; takes the extra [plots]."
)
def paper(
    paths: tuple[Path, ...], stores: tuple[Path, ...], every: int, seed: int, result: Path | None, plots: Path | None
) -> None:
    """Repeat the experiments of REST's paper with its own rule, by replay of recordings.

    M and the time of retrieval by size of the datastore (Table 2, Figure 2; give several), the most frequent
    continuations against random ones (Table 3), and M by longest suffix (Figure 3).
    """
    from paper import experiments

    from rest_store.bench.environment import write_result
    from rest_store.bench.exhibits import shown
    from rest_store.bench.recordings import read_recordings
    from rest_store.bench.tables import paper_tables
    from rest_store.datastore.datastore import Datastore

    recordings = [one for path in paths for one in read_recordings(path)][::every]
    if not recordings:
        raise RecordingError(describe("bench paper", "number of recordings", 0, "at least one"))
    rows = experiments(recordings, {path.name: Datastore.open(path) for path in stores}, seed=seed)
    figures = {"recordings": len(recordings), "rows": rows}
    for table in paper_tables(figures):
        click.echo(table.title)
        texts = [list(table.header), *([shown(cell) for cell in row] for row in table.rows)]
        widths = [max(len(row[column]) for row in texts) for column in range(len(table.header))]
        for row in texts:
            cells = [f"{text:>{width}}" for text, width in zip(row[1:], widths[1:], strict=True)]
            click.echo(f"  {row[0]:<{widths[0]}}  {'  '.join(cells)}")
    given = {"recordings": list(paths), "datastore": list(stores), "every": every, "seed": seed, "plots": plots}
    write_result(result, "paper", given, ("numpy", "rest-store"), figures)


if __name__ == "__main__":
    paper()
