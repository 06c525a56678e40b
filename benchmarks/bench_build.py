"""Measure time and memory of whole builds, from files to a datastore, by stage.

Each build from Python source is a command of its own, with `fastokens` and without it, by one process and by several
workers. Reported: tokens a second by stage, the peak of resident
memory of all processes and its budget, bytes a token, and how many tokens a second `tokenizers` alone produces before
each build: `encode_batch_fast` of one document in eight, all at once, on all cores. Builds take turns. For each kind,
the build with the median rate is reported, beside the median rate of `tokenizers` alone.
"""

from __future__ import annotations

import json
import os
import pickle
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from itertools import islice, product
from pathlib import Path
from typing import Any

import click

from build_index.corpus import open_corpus
from build_index.corpus_spec import CorpusSpec
from build_index.tokenization import load_tokenizer
from rest_store.bench.environment import write_result
from rest_store.bench.options import Destination, result_options
from rest_store.options import SETTINGS

SAMPLED = 8  # of the documents, one in so many is tokenized by `tokenizers` alone
STAGES = ("read", "tokenize", "sort", "write")
BUILD = "from build_index.cli import build; build()"
WITHOUT_FASTOKENS = f"import sys; sys.modules['fastokens'] = None; {BUILD}"
PROGRAMS = {"fastokens": BUILD, "tokenizers": WITHOUT_FASTOKENS}  # by what tokenizes
OWN = """
import pickle, sys, time
from tokenizers import Tokenizer
tokenizer_json, texts = pickle.load(sys.stdin.buffer)
tokenizer = Tokenizer.from_str(tokenizer_json)
start = time.perf_counter()
encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
count = sum(len(encoding.ids) for encoding in encodings)
print(count / (time.perf_counter() - start))
"""


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
@click.option(
    "--workers",
    metavar="N",
    multiple=True,
    type=click.IntRange(1),
    default=[1, 2, 4],
    help="A build with so many processes. Repeatable.",
)
@click.option("--max-documents", metavar="N", type=int, help="Read at most N documents of each corpus.")
@click.option("--rounds", metavar="N", type=click.IntRange(1), default=1, help="Make each build N times.")
@result_options
def main(
    tokenizer: str,
    corpora: tuple[str, ...],
    memory: str,
    sizes: tuple[str, ...],
    encoders: tuple[str, ...],
    workers: tuple[int, ...],
    max_documents: int | None,
    rounds: int,
    out: Destination,
) -> None:
    exclude = () if corpora else ("site-packages",)  # of the standard library's folder
    paths = corpora or (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))
    specs = [
        CorpusSpec(path, include=("*.py",), exclude=exclude, max_documents=max_documents)
        if Path(path).is_dir()
        else CorpusSpec(path, max_documents=max_documents)
        for path in paths
    ]
    command = ["--json", "--include", "*.py", "--tokenizer", tokenizer, "--memory", memory]
    for pattern in exclude:
        command += ["--exclude", pattern]
    for path in paths:
        command += ["--corpus", path]
    if max_documents:
        command += ["--max-documents", str(max_documents)]
    texts = [document.text for spec in specs for document in islice(open_corpus(spec), 0, None, SAMPLED)]
    alone = pickle.dumps((load_tokenizer(tokenizer).to_json(), texts))
    kinds = list(product(encoders, sizes, workers))
    builds: dict[tuple[str, str, int], list[dict[str, Any]]] = {kind: [] for kind in kinds}
    own = []
    for _, (kind, rows_of_kind) in product(range(rounds), builds.items()):
        encoder, size, number = kind
        own.append(own_rate(alone))
        program = [sys.executable, "-c", PROGRAMS[encoder], *command, "--workers", str(number)]
        row = measure(program if size == "auto" else [*program, "--shard-tokens", size])
        rows_of_kind.append({**row, "shard_tokens": size})
        rates = ", ".join(f"{stage} {rate / 1e6:.2f}" for stage, rate in row["tokens_per_second"].items())
        print(f"{encoder}, {row['workers']} processes, {row['shards']} shards, {row['tokens']:,} tokens", end=", ")
        print(f"million a second: {rates}; tokenizers alone before it: {own[-1] / 1e6:.2f}")
        print(f"  {row['cpu_seconds']:.1f} s of all cores, peak {row['peak_memory'] / 2**20:.0f} MiB", end=" ")
        print(f"of {row['memory'] / 2**20:.0f}, {row['bytes_per_token']:.3f} bytes a token", flush=True)
    rows = [reported(same, own) for same in builds.values()]
    for row in rows:
        print(f"{row['of_tokenizers']:.2f} of tokenizers alone: {row['encoders'][0]}")
    packages = ("numpy", "pydivsufsort", "tokenizers", "fastokens")
    write_result(out, "build", click.get_current_context().params, packages, rows)


def reported(same: list[dict[str, Any]], own: list[float]) -> dict[str, Any]:
    """Return the build with the median rate among those of one kind, beside what `tokenizers` makes by itself."""
    rates = [row["tokens_per_second"]["all"] for row in same]
    row = same[rates.index(statistics.median_low(rates))]
    alone = statistics.median(own)
    row |= {"rates": rates, "own_tokens_per_second": alone, "of_tokenizers": statistics.median(rates) / alone}
    return row


def measure(command: list[str]) -> dict[str, Any]:
    """Build once, in a process of its own."""
    before = os.times()
    with tempfile.TemporaryDirectory() as directory:
        done = subprocess.run(
            [*command, "--out", f"{directory}/datastore"],
            stdout=subprocess.PIPE,
            text=True,
        )
    after = os.times()
    if done.returncode:
        raise SystemExit(f"the build failed with status {done.returncode}")
    summary: dict[str, Any] = json.loads(done.stdout)
    summary["encoders"] = [summary.pop("encoder")]
    del summary["out"]
    stages = summary["stage_seconds"]
    seconds = summary["seconds"] - stages["load"]
    rates = {stage: summary["tokens"] / stages[stage] for stage in STAGES}
    return {
        **summary,
        "tokens_per_second": {**rates, "all": summary["tokens"] / seconds},
        "cpu_seconds": sum(after[2:4]) - sum(before[2:4]),  # of children
        "load_average": os.getloadavg()[1],  # over five minutes
    }


def own_rate(pickled: bytes) -> float:
    """Return the tokens that `tokenizers` makes in a second on all cores of what is pickled: a tokenizer and texts."""
    done = subprocess.run([sys.executable, "-c", OWN], input=pickled, capture_output=True, check=True)
    return float(done.stdout)


if __name__ == "__main__":
    main()
