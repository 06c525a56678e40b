"""Measure time and memory of whole builds, from files to a datastore, by stage.

Each build from Python source is a command of its own, with `fastokens` and without it, by one process and by several.
Reported: tokens a second, also by stage, processor seconds of all processes, the peak of their resident memory, and
bytes a token.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from itertools import product
from typing import Any

import click

from rest_store.bench.options import Destination, result_options
from rest_store.bench.results import write_result
from rest_store.options import SETTINGS

BUILD = "from rest_store.cli import main; main()"
PROGRAMS = {"fastokens": BUILD, "tokenizers": f"import sys; sys.modules['fastokens'] = None; {BUILD}"}


@click.command(
    help=__doc__,
    context_settings=SETTINGS,
    epilog="Example: python benchmarks/bench_build.py --tokenizer SmolLM2.gguf --out build.json",
)
@click.option("--tokenizer", metavar="NAME_OR_PATH", required=True, help="Tokenizer of the builds.")
@click.option(
    "--corpus",
    "corpora",
    metavar="PATH",
    multiple=True,
    show_default="the standard library and the installed packages",
    help="Directory or file. Repeatable.",
)
@click.option("--memory", metavar="SIZE", default="4G", help="Budget of each build.")
@click.option("--shard-tokens", metavar="N", show_default="as the memory allows", help="Tokens of a shard.")
@click.option(
    "--encoder",
    "encoders",
    multiple=True,
    default=list(PROGRAMS),
    type=click.Choice(list(PROGRAMS)),
    help="What tokenizes. Repeatable.",
)
@click.option(
    "--workers",
    metavar="N",
    multiple=True,
    type=click.IntRange(1),
    default=[1, 2, 4],
    help="A build with so many processes. Repeatable.",
)
@click.option("--max-documents", metavar="N", type=int, help="Read at most N documents of each corpus.")
@result_options
def main(
    tokenizer: str,
    corpora: tuple[str, ...],
    memory: str,
    shard_tokens: str | None,
    encoders: tuple[str, ...],
    workers: tuple[int, ...],
    max_documents: int | None,
    out: Destination,
) -> None:
    command = ["build", "--json", "--include", "*.py", "--tokenizer", tokenizer, "--memory", memory]
    if not corpora:
        command += ["--exclude", "site-packages"]  # of the standard library's folder
    for path in corpora or (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")):
        command += ["--corpus", path]
    if max_documents:
        command += ["--max-documents", str(max_documents)]
    if shard_tokens:
        command += ["--shard-tokens", shard_tokens]
    rows = []
    for encoder, number in product(encoders, workers):
        row = {"encoder": encoder, "workers": number}
        row |= measured(PROGRAMS[encoder], [*command, "--workers", str(number)])
        rows.append(row)
        print(f"{encoder}, {number} processes, {row['shards']} shards, {row['tokens']:,} tokens", end=", ")
        print(
            f"{row['tokens_per_second'] / 1e6:.2f} million a second, {row['cpu_seconds']:.1f} s of all cores", end=", "
        )
        print(f"peak {row['peak_memory'] / 2**20:.0f} MiB, {row['bytes_per_token']:.3f} bytes a token", flush=True)
    packages = ("numpy", "pydivsufsort", "tokenizers", "fastokens")
    write_result(out, "build", click.get_current_context().params, packages, rows)


def measured(program: str, words: list[str]) -> dict[str, Any]:
    """Build once, in a process of its own; return what the command says and what it took."""
    before = os.times()
    with tempfile.TemporaryDirectory() as directory:
        command = [sys.executable, "-c", program, *words, "--out", f"{directory}/datastore"]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    after = os.times()
    if done.returncode:
        raise SystemExit(f"the build failed with status {done.returncode}")
    summary = json.loads(done.stdout)
    tokens, stages = summary["tokens"], summary["stage_seconds"]
    return {
        **{name: summary[name] for name in ("tokens", "shards", "peak_memory", "bytes_per_token")},
        "tokens_per_second": tokens / (summary["seconds"] - stages["load"]),
        "stage_seconds": stages,
        "cpu_seconds": sum(after[2:4]) - sum(before[2:4]),  # of children
        "load_average": os.getloadavg()[1],  # over five minutes
    }


if __name__ == "__main__":
    main()
