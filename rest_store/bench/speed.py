r"""How much sooner text is there: drafting methods against plain `generate`, on one model, in one run.

    rest-store bench speed --model SmolLM2.gguf --traces traces_dev.jsonl.gz --datastore python.ds \
        --datastore chat.ds --prompts 10 --json results/speed.json

Every method writes the greedy continuation of every prompt, one method after the other for each prompt, each prompt
beginning with another method, so that a machine that is slower for a while is slower for all. Reported for each family
of prompts and over all: tokens a second relative to plain `generate` of transformers (sums of seconds over the same
prompts, and the median over prompts), M (generated tokens for each forward pass), and the share of prompts whose tokens
are those of plain `generate`; where they are not, the rounding of a wider pass decided between two tokens.

`--dtype bfloat16` shows how often that happens in reduced precision; `--packed` gives every method, plain `generate`
included, the same linear layers from packed weights (`rest_store.packed`). Of the traces, prompts are
used that the shipped calibration was not fitted to, and nothing but the prompts.
Targets: 2.2 on HumanEval, 1.8 over all families, ahead of transformers' prompt lookup on all, none below 1.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

import rest_store
from rest_store.bench.arguments import parser_of
from rest_store.bench.environment import write_result
from rest_store.bench.replay import FIT_PARTS, read_recordings
from rest_store.generation.assistant import AssistantRule
from rest_store.generation.baselines import MergedRules, PromptLookupRule, RestRule
from rest_store.generation.loading import load_model

Run = dict[str, Any]
Runs = dict[str, dict[str, list[Run]]]  # by family and method
PACKAGES = ("numpy", "torch", "transformers")


def main(given: Sequence[str] | None = None) -> None:
    """Run `rest-store bench speed` with the arguments given."""
    parser = parser_of("speed", __doc__)
    parser.add_argument("--model", required=True, help="Hugging Face name, directory or GGUF file")
    parser.add_argument("--traces", type=Path, required=True, help="JSONL with set, id and prompt as token ids")
    parser.add_argument("--datastore", action="append", default=[], help="a datastore's directory; may be repeated")
    parser.add_argument("--assistant", help="a smaller model, to draft as in assisted generation")
    parser.add_argument("--methods", nargs="*", help="only these")
    parser.add_argument("--prompts", type=int, default=10, help="prompts of each family")
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--max-nodes", type=int, default=16)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device")
    parser.add_argument("--packed", action="store_true", help="all methods with packed weights, plain `generate` too")
    arguments = parser.parse_args(given)

    model, tokenizer = load_model(arguments.model, dtype=arguments.dtype, device=arguments.device)
    stores = [rest_store.Datastore.open(place, tokenizer=tokenizer) for place in arguments.datastore]
    methods = make_methods(model, stores, arguments)
    prompts = read_prompts(arguments.traces, arguments.prompts)
    with rest_store.packed(model) if arguments.packed else nullcontext():
        runs = write_all(model, methods, prompts, arguments.new_tokens)
    table = summarize(runs, list(methods))
    show(table, list(methods))
    write_result(arguments.json, "speed", arguments, PACKAGES, {"threads": torch.get_num_threads(), "families": table})


def write_all(model: Any, methods: dict[str, dict[str, Any]], prompts: list[dict[str, Any]], new_tokens: int) -> Runs:
    """Write every prompt with every method; return what each took, by family and method."""
    write(model, methods["plain"], prompts[0]["prompt"], 8)  # allocations and caches of the first pass
    runs: Runs = defaultdict(lambda: defaultdict(list))
    names = list(methods)
    for number, prompt in enumerate(prompts):
        results = {}
        for place in range(len(names)):
            name = names[(number + place) % len(names)]
            results[name] = write(model, methods[name], prompt["prompt"], new_tokens)
        expected, seconds = results["plain"]["written"], results["plain"]["seconds"]
        for name, run in results.items():
            run["identical"] = run.pop("written") == expected
            run["of_plain"] = seconds / run["seconds"]
            runs[prompt["set"]][name].append(run)
        print(f"{number + 1}/{len(prompts)} {prompt['set']}", flush=True)
    return runs


def make_methods(model: Any, stores: list[Any], arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """What each method passes to `model.generate`."""

    def drafted(drafter: Any, **options: Any) -> dict[str, Any]:
        ours = {"custom_generate": rest_store.generate, "drafter": drafter, "max_nodes": arguments.max_nodes}
        return {**ours, "return_dict_in_generate": True, **options}

    lookup = PromptLookupRule.of(tokens=10)
    methods: dict[str, dict[str, Any]] = {
        "plain": {},
        "transformers prompt lookup": {"prompt_lookup_num_tokens": 10},
        "no drafts": drafted(None),
        "prompt lookup": drafted(lookup),
    }
    if stores:
        methods["REST's rule"] = drafted(RestRule.of(stores[0]))
        methods["merged rules"] = drafted(MergedRules.of([lookup, *(RestRule.of(store) for store in stores)]))
    methods["DraftSession"] = drafted([*stores, rest_store.PromptLookup(), rest_store.RecycledLogits()])
    if arguments.assistant:
        smaller, _ = load_model(arguments.assistant, dtype=arguments.dtype, device=arguments.device)
        methods["assistant"] = drafted(AssistantRule.of(smaller))
    if arguments.methods:
        methods = {name: methods[name] for name in ["plain", *arguments.methods]}
    return methods


def read_prompts(path: Path, count: int) -> list[dict[str, Any]]:
    """Up to `count` prompts of each family, families taking turns; none that the shipped calibration was fitted to."""
    families: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for recording in read_recordings(path):
        if recording.part >= FIT_PARTS and len(families[recording.family]) < count:
            families[recording.family].append({"set": recording.family, "prompt": recording.prompt.tolist()})
    return [rows[place] for place in range(count) for rows in families.values() if place < len(rows)]


def write(model: Any, method: dict[str, Any], prompt: list[int], new_tokens: int) -> Run:
    """Write with one method; seconds, tokens, forward passes, and what was written."""
    passes = 0

    def count(*_: Any) -> None:
        nonlocal passes
        passes += 1

    ids = torch.tensor([prompt], device=model.device)
    hook = model.register_forward_pre_hook(count)
    try:
        began = time.perf_counter()
        output = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new_tokens,
            do_sample=False,
            **method,
        )
        seconds = time.perf_counter() - began
    finally:
        hook.remove()
    sequences = getattr(output, "sequences", output)
    run: Run = {"seconds": seconds, "passes": passes, "written": sequences[0, len(prompt) :].tolist()}
    run["tokens"] = len(run["written"])
    counts = getattr(getattr(output, "statistics", None), "drafts", None)
    if counts is not None:
        run |= {"nodes": counts.nodes, "accepted": counts.accepted, "errors": counts.errors}
        run["rests"] = output.statistics.rests
    return run


def summarize(runs: Runs, names: list[str]) -> dict[str, dict[str, dict[str, float]]]:
    """Figures for each family and method, and for all families together."""
    families = dict(runs)
    families["all"] = {name: [run for family in runs.values() for run in family[name]] for name in names}
    return {
        family: {name: figures(found[name], found["plain"]) for name in names} for family, found in families.items()
    }


def figures(own: list[Run], plain: list[Run]) -> dict[str, float]:
    rate = sum(run["tokens"] for run in own) / sum(run["seconds"] for run in own)
    plain_rate = sum(run["tokens"] for run in plain) / sum(run["seconds"] for run in plain)
    return {
        "prompts": len(own),
        "tokens_per_second": round(rate, 2),
        "speedup": round(rate / plain_rate, 3),
        "median_speedup": round(statistics.median(run["of_plain"] for run in own), 3),
        "mean_tokens": round(sum(run["tokens"] for run in own) / sum(run["passes"] for run in own), 3),
        "identical": round(sum(run["identical"] for run in own) / len(own), 4),
        "nodes_per_pass": round(sum(run.get("nodes", 0) for run in own) / sum(run["passes"] for run in own), 2),
    }


def show(table: dict[str, dict[str, dict[str, float]]], names: list[str]) -> None:
    print("family: method, speedup over plain generate (median over prompts), M, identical")
    for family, found in table.items():
        print(f"{family} ({found['plain']['prompts']} prompts)")
        for name in names:
            one = found[name]
            print(
                f"  {name:<28}{one['speedup']:.2f} ({one['median_speedup']:.2f})  M {one['mean_tokens']:.2f}"
                f"  identical {100 * one['identical']:.1f} %"
            )


if __name__ == "__main__":
    main()
