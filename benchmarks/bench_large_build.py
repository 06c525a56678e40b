"""Build one large datastore and keep it: time by stage, processor time by stage, peak memory, bytes a token.

Unlike `bench_build.py`, which compares small builds, this is one build of as much text as there is. Processor time is
that of threads: the main one reads, finds duplicates and writes tokens; one thread a shard sorts and writes suffix
arrays; all others belong to the tokenizer. It also holds on a machine that does other work meanwhile.
"""

from __future__ import annotations

import os
import resource
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from build_index.builder import build
from build_index.corpus_spec import CorpusSpec
from build_index.options import BuildOptions
from build_index.progress import StageProgress
from build_index.size import parse_size
from rest_store.bench.environment import write_result
from rest_store.bench.options import Destination, result_options
from rest_store.options import SETTINGS

SECONDS_BETWEEN_SAMPLES = 0.5
TICKS = os.sysconf("SC_CLK_TCK")


class ThreadTimes:
    """Processor seconds of this process's threads by what they do, sampled while it runs."""

    def __init__(self) -> None:
        self._seconds: dict[int, tuple[str, float]] = {}
        self._ended = threading.Event()
        self._sampler = threading.Thread(target=self._run, name="sampler", daemon=True)
        self._sampler.start()

    def stop(self) -> dict[str, float]:
        """Return the seconds by stage."""
        self._ended.set()
        self._sampler.join()
        total: dict[str, float] = {}
        for stage, seconds in self._seconds.values():
            total[stage] = round(total.get(stage, 0.0) + seconds, 1)
        return total

    def _run(self) -> None:
        while not self._ended.wait(SECONDS_BETWEEN_SAMPLES):
            names = {thread.native_id: thread.name for thread in threading.enumerate()}
            for task in Path("/proc/self/task").iterdir():
                try:
                    fields = (task / "stat").read_text().rpartition(") ")[2].split()
                except OSError:  # it has ended
                    continue
                number = int(task.name)
                known = self._seconds.get(number)
                stage = known[0] if known else _stage(names.get(number, ""))
                self._seconds[number] = stage, (int(fields[11]) + int(fields[12])) / TICKS


def _stage(name: str) -> str:
    if name == "MainThread":
        return "read and write tokens"
    return "sort and write suffixes" if name.startswith("sort") else "other" if name == "sampler" else "tokenize"


@click.command(
    help=__doc__,
    context_settings=SETTINGS,
    epilog="Example: python benchmarks/bench_large_build.py --corpus sources/ --tokenizer SmolLM2.gguf --datastore ds",
)
@click.option("--corpus", "corpora", metavar="PATH", multiple=True, required=True, help="Repeatable.")
@click.option("--lang", "langs", metavar="NAME", multiple=True, help="Read only records in this language. Repeatable.")
@click.option("--tokenizer", metavar="NAME_OR_PATH", required=True, help="Tokenizer of the build.")
@click.option("--memory", metavar="SIZE", default="5G", help="Budget of the build.")
@click.option("--shard-tokens", metavar="N", type=int, help="Tokens in a shard; without it, as the memory allows.")
@click.option("--datastore", metavar="DIR", required=True, type=click.Path(path_type=Path), help="Directory to create.")
@result_options
def main(
    corpora: tuple[str, ...],
    langs: tuple[str, ...],
    tokenizer: str,
    memory: str,
    shard_tokens: int | None,
    datastore: Path,
    out: Destination,
) -> None:
    specs = tuple(CorpusSpec(corpus, langs=langs) for corpus in corpora)
    options = BuildOptions(specs, tokenizer, datastore, shard_tokens=shard_tokens, memory=parse_size(memory))
    loads: list[float] = []
    shown = time.monotonic()

    def progress(stages: list[StageProgress]) -> None:
        nonlocal shown
        if time.monotonic() - shown > 10:
            shown = time.monotonic()
            loads.append(os.getloadavg()[0])
            click.echo("  ".join(f"{one.stage} {one.done:,} of {one.total or 0:,}" for one in stages), err=True)

    times = ThreadTimes()
    summary: dict[str, Any] = asdict(build(options, progress))
    del summary["out"]
    used = resource.getrusage(resource.RUSAGE_SELF)
    results = {
        **summary,
        "processor_seconds": times.stop(),
        "all_processor_seconds": used.ru_utime + used.ru_stime,
        "load_average": sum(loads) / max(len(loads), 1),
    }
    click.echo(f"{summary['tokens']:,} tokens in {summary['seconds']:.0f} s; {results['processor_seconds']}")
    write_result(out, "large_build", click.get_current_context().params, ("pydivsufsort", "fastokens"), results)


if __name__ == "__main__":
    main()
