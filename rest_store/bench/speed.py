r"""How much sooner text is there: drafting methods against plain `generate`, on one model, in one run.

    rest-store bench speed --model SmolLM2.gguf --traces traces_dev.jsonl.gz --datastore python.ds \
        --datastore chat.ds --prompts 10 --json results/speed.json

Every method writes the continuation of every prompt, one method after the other for each prompt, each prompt
beginning with another method, so that a machine that is slower for a while is slower for all. Reported for each family
of prompts and over all: tokens a second relative to plain `generate` of transformers (sums of seconds over the same
prompts, and the median over prompts), M (generated tokens for each forward pass), and the share of prompts whose tokens
are those of plain `generate`; where they are not, the rounding of a wider pass decided between two tokens.

`--sampling nucleus` draws with the temperatures and top-p of REST's Table 1, plain `generate` and every method from one
seed for each prompt. In our loop the tokens then are still those of plain `generate`; transformers' own drafting
methods draw otherwise, from the same distribution, and write other texts.

`--questions` takes MT-Bench's or Spec-Bench's questions: the second turn's prompt holds the first, the model's own
greedy answer, and the second. `--assistant` adds drafting by a smaller model, in our loop and in that of transformers;
`early-exit:8` is the model's own first eight layers with its own head: nothing to download, and not trained for it.

`--dtype bfloat16` shows how often rounding decides in reduced precision; `--prepacked-weights` gives every method, also
plain `generate` and the assistant, the same linear layers from prepacked weights (`rest_store.prepacked_weights`).
Prompts are used that the shipped calibration was not fitted to; of traces, nothing but the prompts.
Targets: 2.2 on HumanEval, 1.8 over all families, ahead of transformers' prompt lookup on all, none below 1.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

import rest_store
from rest_store.bench.arguments import parser_of
from rest_store.bench.environment import write_result
from rest_store.bench.methods import Method, decoding, load_assistant, make_methods
from rest_store.bench.questions import asked, in_turns, read_questions, recorded
from rest_store.bench.record import Prompt
from rest_store.errors import RecordingError, describe
from rest_store.generation.generator import load_model

Run = dict[str, Any]
Runs = dict[str, dict[str, list[Run]]]  # by family and method
PACKAGES = ("numpy", "torch", "transformers")


def main(given: Sequence[str] | None = None) -> None:
    """Run `rest-store bench speed` with the arguments given."""
    parser = parser_of("speed", __doc__)
    parser.add_argument("--model", required=True, help="Hugging Face name, directory or GGUF file")
    parser.add_argument("--traces", type=Path, help="JSONL with set, id and prompt as token ids")
    parser.add_argument("--questions", type=Path, help="JSONL with question_id, category and turns, asked as a chat")
    parser.add_argument("--families", nargs="*", default=[], help="prompts of these alone")
    parser.add_argument("--datastore", action="append", default=[], help="a datastore's directory; may be repeated")
    parser.add_argument("--assistant", help="a smaller model, to draft as in assisted generation, or early-exit:LAYERS")
    parser.add_argument("--methods", nargs="*", default=[], help="only these, and plain generation")
    parser.add_argument("--sampling", choices=("greedy", "nucleus"), default="greedy")
    parser.add_argument("--seed", type=int, default=0, help="of the first prompt; each other one has the next")
    parser.add_argument("--prompts", type=int, default=10, help="prompts of each family")
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--max-nodes", type=int, default=16)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device")
    parser.add_argument(
        "--prepacked-weights", action="store_true", help="all methods with packed weights, plain `generate` too"
    )
    arguments = parser.parse_args(given)
    if arguments.traces is None and arguments.questions is None:
        parser.error("prompts are needed: --traces or --questions")

    model, tokenizer = load_model(arguments.model, dtype=arguments.dtype, device=arguments.device)
    stores = [rest_store.Datastore.open(place, tokenizer=tokenizer) for place in arguments.datastore]
    assistant = None
    if arguments.assistant:
        assistant = load_assistant(model, arguments.assistant, dtype=arguments.dtype, device=arguments.device)
    methods = make_methods(stores, assistant, max_nodes=arguments.max_nodes, only=arguments.methods)
    with ExitStack() as packing:
        for one in (model, assistant) if arguments.prepacked_weights else ():
            if one is not None:
                packing.enter_context(rest_store.prepacked_weights(one))
        prompts = read_prompts(arguments, model, tokenizer)
        runs = write_all(model, methods, prompts, arguments)
    table = summarize(runs, list(methods))
    show(table, list(methods))
    facts: dict[str, Any] = {"threads": torch.get_num_threads(), "sampling": {"kind": arguments.sampling}}
    facts["sampling"] |= {family: decoding(arguments.sampling, family) for family in runs}
    facts["prompts"] = [
        {"family": prompt.family, "key": prompt.key, "seed": arguments.seed + number}
        for number, prompt in enumerate(prompts)
    ]
    write_result(arguments.json, "speed", arguments, PACKAGES, {**facts, "families": table})


def read_prompts(arguments: argparse.Namespace, model: Any, tokenizer: Any) -> list[Prompt]:
    """Return the prompts that the arguments ask for, families taking turns; second turns follow the greedy answer.

    Raises:
        RecordingError: a file cannot be read, or there is no prompt of these families that nothing was fitted to.
    """
    prompts: list[Prompt] = []
    which: dict[str, Any] = {"count": arguments.prompts, "families": arguments.families}

    def answer(prompt: list[int]) -> str:
        ids = write(model, {}, prompt, arguments.new_tokens, {"do_sample": False}, 0)["written"]
        return str(tokenizer.decode(ids, skip_special_tokens=True))

    if arguments.traces is not None:
        prompts += recorded(arguments.traces, **which)
    if arguments.questions is not None:
        prompts += asked(read_questions(arguments.questions), tokenizer, answer, **which)
    if not prompts:
        of = f" of {', '.join(arguments.families)}" if arguments.families else ""
        expected = "at least one: record more, or ask more questions"
        raise RecordingError(describe("bench speed", f"prompts{of} that no calibration was fitted to", 0, expected))
    return in_turns(prompts)


def write_all(model: Any, methods: dict[str, Method], prompts: Sequence[Prompt], arguments: argparse.Namespace) -> Runs:
    """Write every prompt with every method; return what each took, by family and method."""
    write(model, methods["plain"], prompts[0].tokens, 8, {"do_sample": False}, 0)  # what only a first pass takes
    runs: Runs = defaultdict(lambda: defaultdict(list))
    names = list(methods)
    for number, prompt in enumerate(prompts):
        results = {}
        how = decoding(arguments.sampling, prompt.family)
        for place in range(len(names)):
            name = names[(number + place) % len(names)]
            results[name] = write(
                model, methods[name], prompt.tokens, arguments.new_tokens, how, arguments.seed + number
            )
        expected, seconds = results["plain"]["written"], results["plain"]["seconds"]
        for name, run in results.items():
            run["identical"] = run.pop("written") == expected
            run["of_plain"] = seconds / run["seconds"]
            runs[prompt.family][name].append(run)
        print(f"{number + 1}/{len(prompts)} {prompt.family}", flush=True)
    return runs


def write(model: Any, method: Method, prompt: list[int], new_tokens: int, decoding: dict[str, Any], seed: int) -> Run:
    """Write with one method; seconds, tokens, forward passes, and what was written."""
    passes = 0

    def count(*_: Any) -> None:
        nonlocal passes
        passes += 1

    ids = torch.tensor([prompt], device=model.device)
    torch.manual_seed(seed)
    hook = model.register_forward_pre_hook(count)
    try:
        began = time.perf_counter()
        output = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new_tokens,
            **decoding,
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
        run["pauses"] = output.statistics.pauses
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
                f"  {name:<34}{one['speedup']:.2f} ({one['median_speedup']:.2f})  M {one['mean_tokens']:.2f}"
                f"  identical {100 * one['identical']:.1f} %"
            )


if __name__ == "__main__":
    main()
