"""Join runs of agents on one repository to long ones, for `rest-store bench replay --compact`.

A run is a JSON line of `{"task", "ids", "turns"}`; its repository is the name of its task up to the
last hyphen. The runs of a repository are joined in their order until they have --tokens tokens;
then the next joined run begins. Runs that remain, too few for another one, are left out. The tokens
that a run has in common with the first one, from the beginning on, are the instructions of the
agent; a joined run has them once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click

from rest_store.bench.recordings import read_lines
from rest_store.command_options import FILE, PATH, SETTINGS, check_writable
from rest_store.datastore.render import counted


def joined_runs(runs: Iterable[Mapping[str, Any]], tokens: int) -> Iterator[dict[str, Any]]:
    """Yield joined runs of at least `tokens` tokens, as the lines of a file have them."""
    unfinished: dict[str, dict[str, Any]] = {}
    numbers: dict[str, int] = {}
    for run in runs:
        repository = str(run["task"]).rpartition("-")[0]
        joined = unfinished.setdefault(repository, {"ids": [], "turns": []})
        before_answers = run["ids"][: run["turns"][0][0]] if run["turns"] else run["ids"]
        begin = common_length(joined["ids"], before_answers)
        shift = len(joined["ids"]) - begin
        joined["ids"] += run["ids"][begin:]
        joined["turns"] += [[first + shift, last + shift] for first, last in run["turns"]]
        if len(joined["ids"]) >= tokens:
            numbers[repository] = numbers.get(repository, 0) + 1
            yield {"task": f"{repository}/joined-{numbers[repository]}", **joined}
            del unfinished[repository]


def common_length(first: list[int], second: list[int]) -> int:
    """Return the number of tokens that both texts begin with."""
    length = 0
    for one, other in zip(first, second, strict=False):
        if one != other:
            break
        length += 1
    return length


@click.command(
    help=__doc__,
    context_settings=SETTINGS,
    epilog="Example: python benchmarks/join_runs.py --recordings third.jsonl --out joined.jsonl",
)
@click.option(
    "--recordings", metavar="FILE", type=PATH, required=True, help="The runs, as JSON lines."
)
@click.option(
    "--tokens",
    metavar="N",
    default=60_000,
    type=click.IntRange(1),
    help="Tokens that a joined run has at least.",
)
@click.option(
    "--out",
    metavar="FILE",
    type=FILE,
    callback=check_writable,
    required=True,
    help="Destination of the joined runs.",
)
def main(recordings: Path, tokens: int, out: Path) -> None:
    runs = (json.loads(line) for _, line in read_lines(recordings))
    joined = list(joined_runs(runs, tokens))
    out.write_text("".join(json.dumps(run) + "\n" for run in joined), encoding="utf-8")
    size = sum(len(run["ids"]) for run in joined)
    click.echo(f"{out}: {counted(len(joined), 'joined run')} of {counted(size, 'token')}")


if __name__ == "__main__":
    main()
