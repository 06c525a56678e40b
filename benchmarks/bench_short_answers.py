"""Measure whether drafting ever makes short answers slower, from the first generation of a process on.

Each length is measured in new processes. A process warms plain `generate` up on all prompts, then writes answers to
them, plain and drafted in turns, and then all of them once more. Half of the prompts are recorded ones, continued
greedily. The others are random tokens, continued by sampling at a temperature of 2: nothing that can be drafted.
Reported is the time of plain `generate` divided by that of drafting, for each prompt the median over processes.

The loop itself is measured without drafts on a model whose passes take about two milliseconds.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

import rest_store
from rest_store.bench.environment import write_result
from rest_store.bench.options import datastores_option, recordings_option, result_options
from rest_store.bench.recordings import read_recordings
from rest_store.generation.model import load_model
from rest_store.options import SETTINGS, model_option

KINDS = {"recorded": {"do_sample": False}, "nothing to draft": {"do_sample": True, "temperature": 2.0, "top_k": 0}}
Ratios = list[list[float]]  # by round and prompt


@click.command(
    help=__doc__,
    context_settings=SETTINGS,
    epilog="Example: python benchmarks/bench_short_answers.py --model SmolLM2.gguf --recordings traces.jsonl.gz",
)
@model_option
@recordings_option()
@datastores_option
@click.option("--prompts", metavar="N", default=20, type=click.IntRange(2), help="Number of prompts.")
@click.option(
    "--length",
    "lengths",
    metavar="N",
    multiple=True,
    default=(8, 16, 32, 64),
    type=click.IntRange(2),
    help="New tokens.",
)
@click.option(
    "--processes",
    metavar="N",
    default=5,
    type=click.IntRange(1),
    help="New processes for each length; twice as many up to 16 tokens, whose times vary more.",
)
@result_options
def main(**options: Any) -> None:
    figures: dict[str, Any] = {"lengths": {}, "loop": measured(bare_loop)}
    print(f"the loop without drafts: {figures['loop']:.3f} of plain")
    for length in options["lengths"]:
        processes = options["processes"] * (2 if length <= 16 else 1)
        runs = [measured(short_answers, options, length, number) for number in range(processes)]
        figures["lengths"][str(length)] = summarize(runs)
        for name, row in figures["lengths"][str(length)].items():
            print(f"{length} tokens, {name}: median {row['median']:.2f}, least {row['least']:.2f}")
    write_result(options["out"], "short_answers", options, ("numpy", "torch", "transformers"), figures)


def measured(task: Any, *arguments: Any) -> Any:
    """Return what `task` returns in a new process."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(task, *arguments).result()


def short_answers(options: Mapping[str, Any], length: int, number: int) -> Ratios:
    """Return the time of plain generation relative to that with drafts, of two rounds over all prompts.

    Args:
        options: of the command.
        length: new tokens of each answer.
        number: of this process; in odd ones the other way of each pair begins.
    """
    model, tokenizer = load_model(options["model"])
    stores = [rest_store.Datastore.open(path, tokenizer=tokenizer) for path in options["datastores"]]
    prompts = prompts_of(options["recordings"], options["prompts"], model.config.vocab_size)
    with rest_store.prepacked_weights(model):
        for place, (prompt, settings) in enumerate(prompts):
            seconds(model, prompt, length if place < 4 else 1, settings)  # each length of prompt is slow at first
        rounds: Ratios = []
        for turn in range(2):
            # Logits of the first round would draft the second, which writes the same texts.
            sources = [*stores, rest_store.PromptLookup(), rest_store.RecycledLogits()]
            drafted = {"custom_generate": rest_store.generate, "drafter": sources}
            rounds.append(
                [
                    ratio(model, prompt, length, settings, drafted, (turn + place // 2 + number) % 2)
                    for place, (prompt, settings) in enumerate(prompts)
                ]
            )
        return rounds


def prompts_of(recordings: Sequence[Path], count: int, vocabulary: int) -> list[tuple[list[int], dict[str, Any]]]:
    """Return prompts with their settings, one of each kind in turns."""
    rng = np.random.default_rng(0)
    recorded = [one.prompt.tolist() for path in recordings for one in read_recordings(path)]
    chosen = recorded[:: max(1, 2 * len(recorded) // count)]
    prompts = []
    for number in range(count):
        kind = list(KINDS)[number % 2]
        prompt = chosen[number // 2 % len(chosen)]
        if kind != "recorded":
            prompt = rng.integers(vocabulary, size=len(prompt)).tolist()
        prompts.append((prompt, KINDS[kind]))
    return prompts


def ratio(
    model: Any, prompt: list[int], length: int, settings: dict[str, Any], drafted: dict[str, Any], first: int
) -> float:
    """Return the time of plain generation relative to that with drafts; `first`: which of them begins."""
    methods: list[dict[str, Any]] = [{}, drafted]
    times = {}
    for place in (first, 1 - first):
        times[place] = seconds(model, prompt, length, {**settings, **methods[place]})
    return times[0] / times[1]


def seconds(model: Any, prompt: list[int], length: int, arguments: dict[str, Any]) -> float:
    """Return the time of one generation of exactly `length` tokens."""
    ids = torch.tensor([prompt])
    torch.manual_seed(0)
    began = time.perf_counter()
    model.generate(ids, attention_mask=torch.ones_like(ids), min_new_tokens=length, max_new_tokens=length, **arguments)
    return time.perf_counter() - began


def bare_loop() -> float:
    """Return the time of plain generation relative to that of the loop without drafts, on a small random model."""
    config = LlamaConfig(
        vocab_size=8000, hidden_size=256, intermediate_size=512, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=4, eos_token_id=None, pad_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    bare = {"do_sample": False, "custom_generate": rest_store.generate}
    ratios = [ratio(model, list(range(50)), 128, {"do_sample": False}, bare, turn % 2) for turn in range(22)]
    return round(statistics.median(ratios[2:]), 3)


def summarize(runs: list[Ratios]) -> dict[str, dict[str, float]]:
    """Return median and least ratio over prompts, of the first round and of the second, each prompt's the median."""
    figures = {}
    for turn, name in enumerate(("first", "later")):
        ratios = [statistics.median(times) for times in zip(*(run[turn] for run in runs), strict=True)]
        parts = {name: ratios, **{f"{name}, {kind}": ratios[place::2] for place, kind in enumerate(KINDS)}}
        for part, values in parts.items():
            figures[part] = {"median": round(statistics.median(values), 3), "least": round(min(values), 3)}
    return figures


if __name__ == "__main__":
    main()
