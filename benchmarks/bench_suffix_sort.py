r"""Time and memory of the suffix array of a shard, by how its symbols are packed into bytes for pydivsufsort.

Packings:
    pydivsufsort  as pydivsufsort sorts integers itself: two or four bytes each, its own filtering
    whole         two or three big-endian bytes a symbol, sorted in our own array, filtered there in blocks
    ranks         the same, of the ranks of the ids that occur: two bytes up to 65,536 distinct symbols
    fitted        build_index.suffix_array: one to three bytes, the fewer the more frequent

Every measurement runs in a process of its own and counts from the symbols in memory to the finished array: seconds,
and the peak of resident memory above what was resident before. All packings must give the same array.

    python benchmarks/bench_suffix_sort.py smollm2.u16:49152 tekken.u32:131072 \
        --positions 10000000 --positions 100000000 --threads 1 --threads 2

A `.tokens` file of rest-store is read as it says itself. `PATH:V` is a raw file of little-endian ids of a vocabulary of
V: up to 65,535 of 16 bits with 0xFFFF after each document, above of 32 bits with 0xFFFFFF. Without any file, seeded
Zipf ids stand in.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from rest_store.bench.environment import write_result

ROOT = Path(__file__).resolve().parents[1]
PACKINGS = ("pydivsufsort", "whole", "ranks", "fitted")
BLOCK = 2**14


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tokens", nargs="*", metavar="TOKENS[:V]", help="tokens files; Zipf ids if absent")
    parser.add_argument("--positions", type=int, action="append", help="measure this many positions; may be repeated")
    parser.add_argument("--packing", choices=PACKINGS, action="append", help="measure only this one; may be repeated")
    parser.add_argument("--threads", type=int, action="append", help="OMP_NUM_THREADS; may be repeated; 1 if absent")
    parser.add_argument("--repeat", type=int, default=1, help="the fastest of so many runs counts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write results and environment here")
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        packing, path, vocabulary_size = arguments.measure
        print(json.dumps(measure(packing, Path(path), int(vocabulary_size))))
        return

    sources = [read_symbols(name) for name in arguments.tokens] or [
        zipf_symbols(vocabulary_size, max(arguments.positions or [5_000_000]), arguments.seed)
        for vocabulary_size in (49_152, 131_072)
    ]
    results = []
    print(
        f"{'vocabulary':>10} {'positions':>11} {'distinct':>8} {'packing':<12} {'threads':>7} {'seconds':>8} ", end=""
    )
    print(f"{'ns/symbol':>9} {'peak MB':>8} {'bytes/symbol':>12}")
    for symbols, vocabulary_size in sources:
        for positions in arguments.positions or [len(symbols)]:
            results += compare(symbols[:positions], vocabulary_size, arguments)
    write_result(arguments.json, "suffix_sort", arguments, ("numpy", "pydivsufsort"), results)


def compare(symbols: np.ndarray, vocabulary_size: int, arguments: argparse.Namespace) -> list[dict[str, object]]:
    """Measure all packings of one array of symbols, and see that they agree."""
    results: list[dict[str, object]] = []
    distinct = int((np.bincount(symbols) > 0).sum())
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "symbols.npy")
        np.save(path, symbols)
        for packing in arguments.packing or PACKINGS:
            for threads in arguments.threads or [1]:
                command = [sys.executable, __file__, "--measure", packing, str(path), str(vocabulary_size)]
                variables = {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONPATH": str(ROOT)}
                runs = []
                for _ in range(arguments.repeat):
                    output = subprocess.run(command, env=variables, check=True, stdout=subprocess.PIPE, text=True)
                    runs.append(json.loads(output.stdout))
                best = min(runs, key=lambda run: run["seconds"])
                row = {"packing": packing, "threads": threads, "vocabulary_size": vocabulary_size}
                row |= {"positions": len(symbols), "distinct": distinct, **best}
                results.append(row)
                print(f"{vocabulary_size:>10} {len(symbols):>11} {distinct:>8} {packing:<12} {threads:>7} ", end="")
                print(f"{best['seconds']:>8.2f} {best['seconds'] / len(symbols) * 1e9:>9.1f} ", end="")
                print(f"{best['peak_bytes'] / 1e6:>8.0f} {best['peak_bytes'] / len(symbols):>12.2f}", flush=True)
    if len({row["sha256"] for row in results}) > 1:
        raise SystemExit("the packings disagree")
    return results


def measure(packing: str, path: Path, vocabulary_size: int) -> dict[str, object]:
    """Sort once, in this process, and return what it took."""
    symbols = np.load(path)
    separator = 2**16 - 1 if vocabulary_size < 2**16 else 2**24 - 1
    sort = {"pydivsufsort": sort_by_pydivsufsort, "whole": sort_whole, "ranks": sort_ranks, "fitted": sort_fitted}
    sort[packing](symbols[:1000], vocabulary_size, separator)  # imports
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    start, cpu_start = time.perf_counter(), time.process_time()
    result = sort[packing](symbols, vocabulary_size, separator)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu_start
    peak = resident("VmHWM") - before
    digest = hashlib.sha256(np.ascontiguousarray(result, dtype=np.int32).data).hexdigest()
    return {"seconds": round(seconds, 3), "cpu_seconds": round(cpu_seconds, 3), "peak_bytes": peak, "sha256": digest}


def sort_by_pydivsufsort(symbols: np.ndarray, vocabulary_size: int, separator: int) -> np.ndarray:
    import pydivsufsort

    order = pydivsufsort.divsufsort(symbols)
    return order[: len(symbols) - np.count_nonzero(symbols == separator)]  # separators come last


def sort_whole(symbols: np.ndarray, vocabulary_size: int, separator: int) -> np.ndarray:
    width = 2 if separator == 2**16 - 1 else 3
    text = np.empty((len(symbols), width), dtype=np.uint8)
    for start in range(0, len(symbols), BLOCK):
        wide = symbols[start : start + BLOCK].astype(">u4").view(np.uint8).reshape(-1, 4)
        text[start : start + BLOCK] = wide[:, 4 - width :]
    return sort_text(text, len(symbols) - np.count_nonzero(symbols == separator))


def sort_ranks(symbols: np.ndarray, vocabulary_size: int, separator: int) -> np.ndarray:
    occurs = np.zeros(vocabulary_size + 1, dtype=bool)
    for start in range(0, len(symbols), BLOCK):
        occurs[np.minimum(symbols[start : start + BLOCK], vocabulary_size)] = True
    width = 2 if np.count_nonzero(occurs) <= 2**16 else 3
    ranks = np.cumsum(occurs, dtype=np.uint32)
    ranks -= 1
    text = np.empty((len(symbols), width), dtype=np.uint8)
    for start in range(0, len(symbols), BLOCK):
        wide = (
            ranks.take(np.minimum(symbols[start : start + BLOCK], vocabulary_size))
            .astype(">u4")
            .view(np.uint8)
            .reshape(-1, 4)
        )
        text[start : start + BLOCK] = wide[:, 4 - width :]
    return sort_text(text, len(symbols) - np.count_nonzero(symbols == separator))


def sort_text(text: np.ndarray, token_count: int) -> np.ndarray:
    """Sort the bytes of `text`, shape `(P, w)`, and keep the first bytes of tokens, in place."""
    from pydivsufsort.dll import libdivsufsort

    width = text.shape[1]
    order = np.empty(text.size, dtype=np.int32)
    pointers = (array.ctypes.data_as(ctypes.c_void_p) for array in (text, order))
    if libdivsufsort.divsufsort(*pointers, ctypes.c_int32(text.size)):
        raise MemoryError
    kept = 0
    for start in range(0, len(order), BLOCK):
        offsets = order[start : start + BLOCK]
        positions = offsets[offsets % width == 0] // width
        order[kept : kept + len(positions)] = positions
        kept += len(positions)
    order.resize(token_count, refcheck=False)
    return order


def sort_fitted(symbols: np.ndarray, vocabulary_size: int, separator: int) -> np.ndarray:
    from build_index.suffix_array import suffix_array

    return suffix_array(symbols, vocabulary_size=vocabulary_size)


def resident(field: str) -> int:
    """Return a field of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) * 1024


def read_symbols(name: str) -> tuple[np.ndarray, int]:
    """Return the symbols of a file, uint16 or uint32, and the vocabulary size."""
    path, _, size = name.rpartition(":")
    if path:
        return np.fromfile(path, dtype="<u2" if int(size) < 2**16 else "<u4"), int(size)
    with Path(name).open("rb") as file:
        header = file.read(256)
    if not header.startswith(b"\x89RSTTOK\n"):
        raise SystemExit(f"{name}: the file is not a tokens file, expected its magic, or PATH:V for raw ids")
    width, vocabulary_size = (int(field) for field in np.frombuffer(header, dtype="<u4", count=2, offset=16))
    count = int(np.frombuffer(header, dtype="<u8", count=1, offset=24)[0])
    payload = np.fromfile(name, dtype=np.uint8, count=width * count, offset=256).reshape(-1, width)
    wide = np.zeros((count, 4 if width == 3 else 2), dtype=np.uint8)
    wide[:, -width:] = payload
    symbols = wide.reshape(-1).view(">u4" if width == 3 else ">u2")
    return symbols.astype(np.uint32 if width == 3 else np.uint16), vocabulary_size


def zipf_symbols(vocabulary_size: int, count: int, seed: int) -> tuple[np.ndarray, int]:
    """Return ids by Zipf's law, the frequent ones low, in documents of 499."""
    symbols = np.minimum(np.random.default_rng(seed).zipf(1.2, count) - 1, vocabulary_size - 1)
    symbols[499::500] = 2**16 - 1 if vocabulary_size < 2**16 else 2**24 - 1
    return symbols.astype(np.uint16 if vocabulary_size < 2**16 else np.uint32), vocabulary_size


if __name__ == "__main__":
    main()
