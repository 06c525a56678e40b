"""Measure time and memory of sorting the suffixes of a shard.

Compared: pydivsufsort as it sorts integers itself, and build_index.suffix_array, which packs symbols into fewer bytes.
Each measurement runs in a process of its own, from the symbols in memory to the finished array: seconds, and the peak
of resident memory above what was resident before. Both must give the same array.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import numpy as np

from rest_store.bench.environment import write_result
from rest_store.bench.options import Destination, result_options
from rest_store.datastore.header import separator_id
from rest_store.datastore.shard import TokensFile
from rest_store.options import PATH, SETTINGS

SORTERS = ("pydivsufsort", "fitted")
ROOT = Path(__file__).resolve().parents[1]


@click.command(
    help=__doc__,
    context_settings=SETTINGS,
    epilog="Example: python benchmarks/bench_suffix_sort.py python.ds/shard-00000.tokens --positions 10000000",
)
@click.argument("tokens", metavar="FILE...", nargs=-1, type=PATH)
@click.option(
    "--positions", metavar="N", multiple=True, type=int, show_default="all", help="First symbols to sort. Repeatable."
)
@click.option("--threads", metavar="N", multiple=True, type=int, default=[1], help="OMP_NUM_THREADS. Repeatable.")
@click.option("--measure", nargs=3, hidden=True)
@result_options
def main(
    tokens: tuple[Path, ...],
    positions: tuple[int, ...],
    threads: tuple[int, ...],
    measure: tuple[str, str, str] | None,
    out: Destination,
) -> None:
    if measure is not None:
        print(json.dumps(sort_once(measure[0], Path(measure[1]), int(measure[2]))))
        return
    results = []
    for path in tokens:
        file = TokensFile.open(path)
        for count in positions or [file.header.position_count]:
            results += compare(file.symbols(0, count), file.header.vocabulary_size, threads)
    write_result(out, "suffix_sort", click.get_current_context().params, ("numpy", "pydivsufsort"), results)


def compare(symbols: np.ndarray, vocabulary_size: int, threads: tuple[int, ...]) -> list[dict[str, Any]]:
    """Measure both ways on one array of symbols, and require that they agree."""
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "symbols.npy")
        np.save(path, symbols)
        for sorter in SORTERS:
            for number in threads:
                command = [sys.executable, __file__, "--measure", sorter, str(path), str(vocabulary_size)]
                variables = {**os.environ, "OMP_NUM_THREADS": str(number), "PYTHONPATH": str(ROOT)}
                done = subprocess.run(command, env=variables, check=True, stdout=subprocess.PIPE, text=True)
                row = {"packing": sorter, "threads": number, "vocabulary_size": vocabulary_size}
                rows.append({**row, "positions": len(symbols), **json.loads(done.stdout)})
                print(rows[-1], flush=True)
    if len({row["sha256"] for row in rows}) > 1:
        raise SystemExit("the arrays differ")
    return rows


def sort_once(sorter: str, path: Path, vocabulary_size: int) -> dict[str, Any]:
    """Sort in this process, and return what it took."""
    import pydivsufsort

    from build_index.suffix_array import suffix_array

    def sort(symbols: np.ndarray) -> np.ndarray:
        if sorter == "fitted":
            return suffix_array(symbols, vocabulary_size=vocabulary_size)
        separators = np.count_nonzero(symbols == separator_id(vocabulary_size))
        return pydivsufsort.divsufsort(symbols)[: len(symbols) - separators]  # separators come last

    symbols = np.load(path)
    sort(symbols[:1000])  # what only the first call takes
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    start, cpu_start = time.perf_counter(), time.process_time()
    order = sort(symbols)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    peak = resident("VmHWM") - before
    digest = hashlib.sha256(np.ascontiguousarray(order, dtype=np.int32).data).hexdigest()
    return {"seconds": round(seconds, 3), "cpu_seconds": round(cpu_seconds, 3), "peak_bytes": peak, "sha256": digest}


def resident(field: str) -> int:
    """Return a field of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) * 1024


if __name__ == "__main__":
    main()
