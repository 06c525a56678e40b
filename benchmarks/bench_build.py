"""Time and memory of whole builds, from files to a datastore, by stage.

Builds from Python source with a real tokenizer, each build in a process of its own, and reports tokens a second by
stage, what is gained by sorting one shard while the next is tokenized, the peak of resident memory against its budget,
and bytes a token.

    python benchmarks/bench_build.py --tokenizer SmolLM2-135M-Instruct.Q4_1.gguf --json results/build.json

Without `--corpus`, the standard library and the installed packages of the running interpreter are built from. There is
a build for each `--shard-tokens`; "auto" leaves the size of shards to the memory budget.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rest_store.bench.arguments import parser_of

from rest_store.bench.environment import write_result

ROOT = Path(__file__).resolve().parents[1]
STAGES = ("read", "tokenize", "sort", "write", "prepare")


def main(given: Sequence[str] | None = None) -> None:
    """Run the benchmark with the arguments given."""
    parser = parser_of("build", __doc__)
    parser.add_argument("--tokenizer", required=True, help="name or path")
    parser.add_argument("--corpus", action="append", help="directory or file; may be repeated")
    parser.add_argument("--memory", default="4G", help="budget of each build")
    parser.add_argument("--shard-tokens", action="append", help='tokens of a shard, or "auto"; may be repeated')
    parser.add_argument("--workers", type=int, help="tokenizing threads")
    parser.add_argument("--max-documents", type=int, help="of each corpus")
    parser.add_argument("--keep", type=Path, help="leave the datastore of the first build here")
    arguments = parser.parse_args(given)
    corpora = arguments.corpus or default_corpora()
    results: list[dict[str, Any]] = []
    print(f"{'shards':>6} {'tokens':>12} {'Mtokens/s':>9}   ", end="")
    print(*(f"{stage:>9}" for stage in STAGES), f"{'overlap s':>9} {'peak MiB':>9} {'of MiB':>7} {'bytes/token':>11}")
    for shard_tokens in arguments.shard_tokens or ["auto", str(1 << 24)]:
        row = measure(arguments, corpora, shard_tokens, arguments.keep if not results else None)
        results.append(row)
        print(f"{row['shards']:>6} {row['tokens']:>12} {row['tokens_per_second']['all'] / 1e6:>9.2f}   ", end="")
        print(*(f"{row['tokens_per_second'][stage] / 1e6:>9.2f}" for stage in STAGES), end=" ")
        print(
            f"{row['overlap_seconds']:>9.1f} {row['peak_memory'] / 2**20:>9.0f} {row['memory'] / 2**20:>7.0f} ", end=""
        )
        print(f"{row['bytes_per_token']:>11.3f}", flush=True)
    write_result(arguments.json, "build", arguments, ("numpy", "pydivsufsort", "tokenizers"), results)


def default_corpora() -> list[str]:
    """Return the standard library without what is installed in it, and the installed packages."""
    return [sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")]


def measure(arguments: argparse.Namespace, corpora: list[str], shard_tokens: str, keep: Path | None) -> dict[str, Any]:
    """Build once, in a process of its own."""
    with tempfile.TemporaryDirectory() as directory:
        out = keep or Path(directory, "datastore")
        command = [sys.executable, "-c", "from build_index.cli import build; build()", "--out", str(out)]
        command += ["--tokenizer", arguments.tokenizer, "--memory", arguments.memory, "--json", "--include", "*.py"]
        command += [part for corpus in corpora for part in ("--corpus", corpus)]
        command += [] if shard_tokens == "auto" else ["--shard-tokens", shard_tokens]
        command += ["--workers", str(arguments.workers)] if arguments.workers else []
        command += ["--max-documents", str(arguments.max_documents)] if arguments.max_documents else []
        command += ["--exclude", "site-packages"] if not arguments.corpus else []
        process = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True
        )
    if process.returncode:
        raise SystemExit(f"the build failed with status {process.returncode}")
    summary: dict[str, Any] = json.loads(process.stdout)
    del summary["out"]
    seconds = summary["seconds"] - summary["stage_seconds"]["load"]
    rates = {stage: summary["tokens"] / summary["stage_seconds"][stage] for stage in STAGES}
    rates["all"] = summary["tokens"] / seconds
    overlap = sum(summary["stage_seconds"][stage] for stage in STAGES) - seconds
    load = os.getloadavg()[1]  # over five minutes; with nothing else at work, about one for each core
    measured = {"tokens_per_second": rates, "overlap_seconds": overlap, "load_average": load}
    return {**summary, "shard_tokens": shard_tokens, **measured}


if __name__ == "__main__":
    main()
