"""Measure how often drafted text is that of plain `generate`, token for token.

Greedy continuations of HumanEval prompts and of as many others, plain and drafted. In float32 all are expected to be
equal. In reduced precision (--dtype bfloat16) rounding decides now and then: for each text that differs, the report
holds the first place and how far apart the logits of the two tokens were in the plain pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click
import torch

import rest_store
from rest_store.bench.environment import write_result
from rest_store.bench.options import datastores_option, recordings_option, result_options
from rest_store.bench.recordings import Recording, read_recordings
from rest_store.generation.model import load_model
from rest_store.options import (
    SETTINGS,
    device_option,
    dtype_option,
    max_new_tokens_option,
    max_nodes_option,
    model_option,
)


@click.command(
    help=__doc__,
    context_settings=SETTINGS,
    epilog="Example: python benchmarks/bench_exactness.py --model SmolLM2.gguf --recordings traces.jsonl.gz",
)
@model_option
@recordings_option()
@datastores_option
@click.option("--prompts", metavar="N", default=50, help="Most prompts of HumanEval, and of all others.")
@max_new_tokens_option()
@max_nodes_option(16)
@dtype_option("float32")
@device_option
@click.option("--prepacked-weights", is_flag=True, help="Draft with prepacked weights; plain generation has none.")
@click.option("--recorded", is_flag=True, help="Compare with the recorded outputs of plain generation.")
@click.option(
    "--control", is_flag=True, help="Also count the texts that transformers' prompt lookup, with wider passes, writes."
)
@result_options
def main(**options: Any) -> None:
    model, tokenizer = load_model(options["model"], dtype=options["dtype"], device=options["device"])
    stores = [rest_store.Datastore.open(path, tokenizer=tokenizer) for path in options["datastores"]]
    sources = [*stores, rest_store.PromptLookup(), rest_store.RecycledLogits()]
    groups: dict[str, dict[str, Any]] = {}
    for name, prompts in read_prompts(options["recordings"], options["prompts"]).items():
        texts = [compare(model, prompt, sources, options) for prompt in prompts]
        groups[name] = summarize(texts)
        print(f"{name}: {groups[name]['identical']} of {len(texts)} texts identical, {groups[name]['tokens']} tokens")
        if options["control"]:
            print(f"  {groups[name]['identical_control']} of transformers' prompt lookup")
        for text in texts:
            if "differs_at" in text:
                print(f"  differs at token {text['differs_at']}, logits {text['gap']:.4g} apart")
    write_result(options["out"], "exactness", options, ("numpy", "torch", "transformers"), groups)


def read_prompts(paths: Sequence[Path], count: int) -> dict[str, list[Recording]]:
    """Return up to `count` prompts of HumanEval and of all other families."""
    groups: dict[str, list[Recording]] = {"HumanEval": [], "Spec-Bench": []}
    for recording in (one for path in paths for one in read_recordings(path)):
        group = groups["HumanEval" if recording.family.startswith("humaneval") else "Spec-Bench"]
        if len(group) < count:
            group.append(recording)
    return {name: group for name, group in groups.items() if group}


def compare(model: Any, prompt: Recording, sources: list[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Continue one prompt with plain generation and with drafts."""
    ids = torch.tensor([prompt.prompt.tolist()], device=model.device)
    settings = {"attention_mask": torch.ones_like(ids), "do_sample": False}
    settings["max_new_tokens"] = prompt.output.size if options["recorded"] else options["max_new_tokens"]
    if options["recorded"]:
        plain = prompt.output.tolist()
    else:
        plain = model.generate(ids, **settings)[0, ids.shape[1] :].tolist()
    with rest_store.prepacked_weights(model) if options["prepacked_weights"] else nullcontext():
        drafted = model.generate(
            ids,
            custom_generate=rest_store.generate,
            drafter=sources,
            max_nodes=options["max_nodes"],
            return_dict_in_generate=True,
            **settings,
        )
    written, statistics = drafted.sequences[0, ids.shape[1] :].tolist(), drafted.statistics
    text = {"tokens": len(plain), "forward_passes": statistics.forward_passes, "accepted": statistics.drafts.accepted}
    if options["control"]:
        control = model.generate(ids, prompt_lookup_num_tokens=10, **settings)
        text["control"] = control[0, ids.shape[1] :].tolist() == plain
    if written == plain:
        return text
    place = next(n for n, (a, b) in enumerate(zip(plain, written, strict=False)) if a != b)
    with torch.no_grad():
        logits = model(torch.cat([ids[0], ids.new_tensor(plain[:place])])[None]).logits[0, -1].float()
    return {**text, "differs_at": place, "gap": abs(float(logits[plain[place]] - logits[written[place]]))}


def summarize(texts: list[dict[str, Any]]) -> dict[str, Any]:
    same = [text for text in texts if "differs_at" not in text]
    control = {"identical_control": sum(text["control"] for text in texts)} if "control" in texts[0] else {}
    return {
        "prompts": len(texts),
        "identical": len(same),
        **control,
        "tokens": sum(text["tokens"] for text in texts),
        "accepted": sum(text["accepted"] for text in texts),
        "mean_tokens": round(sum(text["tokens"] for text in texts) / sum(text["forward_passes"] for text in texts), 3),
        "differences": [{name: text[name] for name in ("differs_at", "gap")} for text in texts if text not in same],
    }


if __name__ == "__main__":
    main()
