r"""Compare with other engines, from their published packages: infini-gram and suffix decoding.

PYTHON is an interpreter with the peers' packages, which need no GPU and, once built, no torch:

\b
    python -m venv peers && PATH=$PWD/peers/bin:$PATH
    pip install 'numpy<3' infini-gram==2.6.0
    pip install torch==2.13.0 nanobind==2.9.2 ninja cmake setuptools wheel protobuf==5.29.6 grpcio-tools
    pip install --no-build-isolation --no-deps arctic-inference==0.3.0

Each peer runs in a process of its own and times its own calls. Requests to it and to rest-store take turns.

infini-gram (arXiv 2401.17377) is built by its own command on the tokens of the first datastore, in one shard with two
bytes a token. It is asked with prefetching off, which is several times as fast as its defaults where pages are in
memory. Compared: seconds of the build from tokens, bytes a token, microseconds for a count, for the distribution of the
next token, and for that after the longest suffix. Counts and matches must be equal. Its distributions come from a
sample of 1,000 occurrences (its default) where there are more; those of rest-store are exact, of the 64 most frequent
tokens.

The suffix decoding of arctic-inference (arXiv 2411.04975) replays the recordings as sessions do. Its cache is empty at
first and learns from each output in turn; or it holds the outputs of the recordings for fitting; or also tokens of the
last datastore. Settings: the documented defaults, and the best ones on the recordings for fitting. Beside it: sessions
with prompt lookup and the same texts as a datastore, which learn nothing from one recording to the next; and sessions
with all sources.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
from against_infini_gram import compare_infini_gram
from against_suffix_decoding import compare_suffix_decoding

from rest_store.bench.environment import write_result
from rest_store.bench.options import (
    Destination,
    datastores_option,
    every_option,
    recordings_option,
    result_options,
    seed_option,
)
from rest_store.bench.recordings import read_recordings
from rest_store.datastore.datastore import Datastore
from rest_store.options import PATH, SETTINGS


@click.command(
    help=__doc__.replace("\\b", "\b"),
    context_settings=SETTINGS,
    epilog="Example: python benchmarks/bench_peers.py --peers PYTHON --recordings traces.jsonl.gz "
    "--datastore python.ds --only infini-gram",
)
@click.option(
    "--peers", metavar="PYTHON", required=True, help="Interpreter in whose environment the peers are installed."
)
@recordings_option()
@datastores_option
@every_option
@click.option("--only", type=click.Choice(["infini-gram", "suffix decoding"]), help="Compare with this one alone.")
@click.option(
    "--work", metavar="DIR", type=PATH, default=Path("build/bench/peers"), help="Folder for the peers' files."
)
@click.option("--contexts", "count", metavar="N", default=4_000, help="Contexts that infini-gram is asked about.")
@click.option("--memory", metavar="GIB", default=4, help="Memory for infini-gram's build.")
@click.option(
    "--cache-tokens", metavar="N", default=1_000_000, help="Tokens of the last datastore in the largest cache."
)
@seed_option
@result_options
def main(
    peers: str,
    recordings: tuple[Path, ...],
    datastores: tuple[Path, ...],
    every: int,
    only: str | None,
    work: Path,
    count: int,
    memory: int,
    cache_tokens: int,
    seed: int,
    out: Destination,
) -> None:
    if not datastores:
        raise click.UsageError("at least one --datastore is needed")
    chosen = [recording for path in recordings for recording in read_recordings(path)][::every]
    results: dict[str, Any] = {"load average before": round(os.getloadavg()[0], 2)}
    if only != "suffix decoding":
        results["infini-gram"] = compare_infini_gram(
            chosen, datastores[0], peers=peers, work=work, count=count, memory=memory, seed=seed
        )
    if only != "infini-gram":
        stores = [Datastore.open(path) for path in datastores]
        results["suffix decoding"] = compare_suffix_decoding(
            chosen, stores, peers=peers, work=work, cache_tokens=cache_tokens
        )
    results["load average after"] = round(os.getloadavg()[0], 2)
    write_result(out, "peers", click.get_current_context().params, ("numpy", "rest-store"), results)


if __name__ == "__main__":
    main()
