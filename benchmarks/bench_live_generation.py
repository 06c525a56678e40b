"""Measure generation with a service that remembers: two processes that share it, one of them killed and restarted.

Two processes continue different recorded prompts, families in turns. Each prompt is continued three times, in turns: by
plain `generate`; with drafts of the service's frozen datastores; and with drafts of these and of its live datastore,
which remembers what both processes write. Half-way through, one process is killed and another takes its place. Reported
for each quarter of the prompts: tokens a second relative to plain, M, and how many texts are those of plain.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import torch

import rest_store
from rest_store.bench.environment import write_result
from rest_store.bench.options import datastores_option, families_option, recordings_option, result_options
from rest_store.bench.prompts import Prompt, interleaved, limited, recorded_prompts
from rest_store.bench.recordings import read_recordings, unfitted
from rest_store.bench.serving import TIMEOUT, started
from rest_store.bench.speed import write
from rest_store.drafting.calibration import Calibration
from rest_store.generation.model import load_model
from rest_store.options import SETTINGS, max_new_tokens_option, model_option

PARTS = 4  # of the prompts, in order, each with figures of its own
LIVE = "live"


@click.command(
    help=__doc__,
    context_settings=SETTINGS,
    epilog="Example: python benchmarks/bench_live_generation.py --model SmolLM2.gguf --recordings traces.jsonl.gz",
)
@model_option
@recordings_option()
@datastores_option
@families_option
@click.option("--prompts", metavar="N", default=10, type=click.IntRange(1), help="Most prompts of each family.")
@max_new_tokens_option(128, least=8)
@result_options
def main(**options: Any) -> None:
    recorded = [one for path in options["recordings"] for one in read_recordings(path)]
    recordings = unfitted(recorded, Calibration.default(), "bench_live_generation.py")
    prompts = interleaved(limited(recorded_prompts(recordings), options["prompts"], options["families"]))
    frozen = {str(place): directory for place, directory in enumerate(options["datastores"])}
    with tempfile.TemporaryDirectory(prefix="rest-store-") as name:
        folder = Path(name)
        served = [*(f"{name}={directory}" for name, directory in frozen.items()), "--live", f"{LIVE}={folder / 'live'}"]
        command = ["-m", "rest_store", "serve", *served, "--live-tokenizer", options["model"]]
        with started(*command, "--listen", f"unix:{folder}/socket") as (target,), contextlib.ExitStack() as stack:
            work = (options["model"], target, tuple(frozen), options["max_new_tokens"])
            shares = [list(enumerate(prompts))[place::2] for place in range(2)]
            files = [folder / f"{place}.jsonl" for place in range(2)]
            first, second = (stack.enter_context(running(work, *both)) for both in zip(shares, files, strict=True))
            while len(runs_in(files[0])) < len(shares[0]) // 2 and first.is_alive():
                time.sleep(0.1)
            first.kill()
            first.join()
            again = stack.enter_context(running(work, shares[0][len(runs_in(files[0])) :], files[0]))
            for process in (second, again):
                process.join()
            runs = sorted((run for file in files for run in runs_in(file)), key=lambda run: run["number"])
    if len(runs) < len(prompts):
        raise click.ClickException(f"{len(runs)} of {len(prompts)} prompts were continued: a process failed")
    bounds = [len(runs) * place // PARTS for place in range(PARTS + 1)]
    figures = {"quarters": [summarize(runs[bounds[place] : bounds[place + 1]]) for place in range(PARTS)]}
    for place, methods in enumerate(figures["quarters"], 1):
        print(f"prompts of quarter {place}")
        for method, row in methods.items():
            print(
                f"  {method:<12}{row['speedup']:.2f} of plain  M {row['mean_tokens']:.2f}  identical {row['identical']}"
            )
    write_result(options["out"], "live_generation", options, ("numpy", "torch", "transformers"), figures)


@contextlib.contextmanager
def running(work: tuple[Any, ...], share: Sequence[tuple[int, Prompt]], out: Path) -> Any:
    """Run `continue_all` in a new process; end it afterwards."""
    process = multiprocessing.get_context("spawn").Process(target=continue_all, args=(*work, share, out), daemon=True)
    process.start()
    try:
        yield process
    finally:
        process.kill()
        process.join()


def continue_all(
    model: str,
    target: str,
    frozen: tuple[str, ...],
    max_new_tokens: int,
    share: Sequence[tuple[int, Prompt]],
    out: Path,
) -> None:
    """Continue the prompts of one process, and append a line to `out` for each."""
    torch.set_num_threads(1)  # two processes share the machine
    network, _ = load_model(model)
    options = {"custom_generate": rest_store.generate, "return_dict_in_generate": True}
    local = [rest_store.PromptLookup(), rest_store.RecycledLogits()]
    with (
        rest_store.DatastoreClient(target, datastore=list(frozen) or None, timeout=TIMEOUT) as without,
        rest_store.DatastoreClient(target, timeout=TIMEOUT, remember=LIVE) as client,
        rest_store.prepacked_weights(network),
    ):
        methods: dict[str, Any] = {
            "plain": {},
            "frozen": {**options, "drafter": [*([without] if frozen else []), *local]},
            "remembering": {
                **options,
                "drafter": [client, rest_store.PromptLookup(), rest_store.RecycledLogits()],
            },
        }
        for method in methods.values():
            write(network, method, share[0][1].tokens, 8, {}, 0)
        for number, prompt in share:
            names = list(methods)[number % 3 :] + list(methods)[: number % 3]
            runs = {name: write(network, methods[name], prompt.tokens, max_new_tokens, {}, 0) for name in names}
            for run in runs.values():
                run["identical"] = run["written"] == runs["plain"]["written"]
            lines = {name: {key: run[key] for key in KEPT} for name, run in runs.items()}
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"number": number, "methods": lines}) + "\n")


KEPT = ("seconds", "passes", "tokens", "identical")


def runs_in(file: Path) -> list[dict[str, Any]]:
    """Return the whole lines of `file`."""
    lines = file.read_text(encoding="utf-8").split("\n")[:-1] if file.exists() else []
    return [json.loads(line) for line in lines]


def summarize(runs: Sequence[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return for each method its speed relative to plain (of all seconds, median over prompts), M and identity."""
    figures = {}
    for method in runs[0]["methods"]:
        rows, plain = ([run["methods"][name] for run in runs] for name in (method, "plain"))
        total = {key: sum(row[key] for row in rows) for key in KEPT}
        ratios = [one["seconds"] / row["seconds"] for one, row in zip(plain, rows, strict=True)]
        figures[method] = {
            "speedup": round(sum(row["seconds"] for row in plain) / total["seconds"], 3),
            "median_speedup": round(statistics.median(ratios), 3),
            "mean_tokens": round(total["tokens"] / total["passes"], 3),
            "tokens_per_second": round(total["tokens"] / total["seconds"], 2),
            "identical": f"{total['identical']} of {len(rows)}",
        }
    return figures


if __name__ == "__main__":
    main()
