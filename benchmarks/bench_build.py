"""Measure time and memory of whole builds, from files to a datastore, by stage.

Each build from Python source runs in a process of its own, with `fastokens` and without it. Reported: tokens a second
by stage, the seconds gained by sorting shards while the next is tokenized, the peak of resident memory and its budget,
and bytes a token.
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

from rest_store.bench.environment import write_result
from rest_store.bench.options import Destination, result_options
from rest_store.options import SETTINGS

STAGES = ("read", "tokenize", "sort", "write")
PROGRAMS = {  # by what tokenizes
    "fastokens": "from build_index.cli import build; build()",
    "tokenizers": "import sys; sys.modules['fastokens'] = None; from build_index.cli import build; build()",
}


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
@click.option(
    "--shard-tokens",
    "sizes",
    metavar="N",
    multiple=True,
    default=["auto", str(1 << 24)],
    help="A build with so many tokens a shard; auto: as the memory budget allows. Repeatable.",
)
@click.option(
    "--encoder",
    "encoders",
    multiple=True,
    default=list(PROGRAMS),
    type=click.Choice(list(PROGRAMS)),
    help="What tokenizes. Repeatable.",
)
@click.option("--max-documents", metavar="N", type=int, help="Read at most N documents of each corpus.")
@result_options
def main(
    tokenizer: str,
    corpora: tuple[str, ...],
    memory: str,
    sizes: tuple[str, ...],
    encoders: tuple[str, ...],
    max_documents: int | None,
    out: Destination,
) -> None:
    command = ["--json", "--include", "*.py", "--tokenizer", tokenizer, "--memory", memory]
    if not corpora:
        command += ["--exclude", "site-packages"]  # of the standard library's folder
    for corpus in corpora or (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")):
        command += ["--corpus", corpus]
    if max_documents:
        command += ["--max-documents", str(max_documents)]
    rows = []
    for size, encoder in product(sizes, encoders):
        program = [sys.executable, "-c", PROGRAMS[encoder], *command]
        row = measure(program if size == "auto" else [*program, "--shard-tokens", size])
        rows.append({**row, "shard_tokens": size})
        rates = ", ".join(f"{stage} {rate / 1e6:.2f}" for stage, rate in row["tokens_per_second"].items())
        print(f"{encoder}, {row['shards']} shards, {row['tokens']:,} tokens, million a second: {rates}")
        print(f"  {row['overlap_seconds']:.1f} s overlap, peak {row['peak_memory'] / 2**20:.0f} MiB", end=" ")
        print(f"of {row['memory'] / 2**20:.0f}, {row['bytes_per_token']:.3f} bytes a token", flush=True)
    packages = ("numpy", "pydivsufsort", "tokenizers", "fastokens")
    write_result(out, "build", click.get_current_context().params, packages, rows)


def measure(command: list[str]) -> dict[str, Any]:
    """Build once, in a process of its own."""
    with tempfile.TemporaryDirectory() as directory:
        done = subprocess.run([*command, "--out", f"{directory}/datastore"], stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"the build failed with status {done.returncode}")
    summary: dict[str, Any] = json.loads(done.stdout)
    del summary["out"]
    stages = summary["stage_seconds"]
    seconds = summary["seconds"] - stages["load"]
    rates = {stage: summary["tokens"] / stages[stage] for stage in STAGES}
    return {
        **summary,
        "tokens_per_second": {**rates, "all": summary["tokens"] / seconds},
        "overlap_seconds": sum(stages[stage] for stage in STAGES) - seconds,
        "load_average": os.getloadavg()[1],  # over five minutes
    }


if __name__ == "__main__":
    main()
