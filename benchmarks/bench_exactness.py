r"""How often drafted text is token for token that of plain `generate`, and what decided where it is not.

    python benchmarks/bench_exactness.py --model SmolLM2.gguf --traces traces_dev.jsonl.gz --datastore python.ds \
        --datastore chat.ds --prompts 50 --json benchmarks/results/exactness.json

Greedy continuations of so many HumanEval and so many other prompts, plain and drafted. In float32 all are to be equal.
`--dtype bfloat16` shows how often rounding decides in reduced precision; for each text that differs, the report holds
where it first does, and how far apart the two tokens' logits were in the plain pass. `--packed` drafts with packed
weights, and still compares with plain `generate` without them. `--recorded` compares with the outputs in the traces,
where plain `generate` of the same model wrote these. `--control` also writes each text with transformers' own prompt
lookup, which verifies drafts in wider passes as we do: what it changes, rounding changes.
"""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

import rest_store
from rest_store.bench.environment import write_result
from rest_store.bench.recordings import Recording, read_recordings
from rest_store.generation.loading import load_model

PACKAGES = ("numpy", "torch", "transformers")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="Hugging Face name, directory or GGUF file")
    parser.add_argument("--traces", type=Path, required=True, help="JSONL with set, id and prompt as token ids")
    parser.add_argument("--datastore", action="append", default=[], help="a datastore's directory; may be repeated")
    parser.add_argument("--prompts", type=int, default=50, help="prompts of HumanEval, and as many others")
    parser.add_argument("--new-tokens", type=int, default=256)
    parser.add_argument("--max-nodes", type=int, default=16)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device")
    parser.add_argument("--packed", action="store_true", help="draft with packed weights")
    parser.add_argument("--recorded", action="store_true", help="take the traces' outputs for what is to be written")
    parser.add_argument("--control", action="store_true", help="write with transformers' prompt lookup as well")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()

    model, tokenizer = load_model(arguments.model, dtype=arguments.dtype, device=arguments.device)
    stores = [rest_store.Datastore.open(place, tokenizer=tokenizer) for place in arguments.datastore]
    sources = [*stores, rest_store.PromptLookup(), rest_store.RecycledLogits()]
    groups: dict[str, dict[str, Any]] = {}
    for name, prompts in read_prompts(arguments.traces, arguments.prompts).items():
        texts = [compare(model, prompt, sources, arguments) for prompt in prompts]
        groups[name] = summarize(texts)
        print(f"{name}: {groups[name]['identical']} of {len(texts)} texts identical, {groups[name]['tokens']} tokens")
        if arguments.control:
            print(f"  {groups[name]['identical_control']} of transformers' prompt lookup")
        for text in texts:
            if "differs_at" in text:
                print(f"  differs at token {text['differs_at']}, logits {text['gap']:.4g} apart")
    write_result(arguments.json, "exactness", arguments, PACKAGES, groups)


def read_prompts(path: Path, count: int) -> dict[str, list[Recording]]:
    """Up to `count` prompts of HumanEval and of all other families."""
    groups: dict[str, list[Recording]] = {"HumanEval": [], "Spec-Bench": []}
    for recording in read_recordings(path):
        group = groups["HumanEval" if recording.family.startswith("humaneval") else "Spec-Bench"]
        if len(group) < count:
            group.append(recording)
    return {name: group for name, group in groups.items() if group}


def compare(model: Any, prompt: Recording, sources: list[Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """Write one prompt both ways."""
    ids = torch.tensor([prompt.prompt.tolist()], device=model.device)
    options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": arguments.new_tokens, "do_sample": False}
    if arguments.recorded:
        plain = prompt.output.tolist()
        options["max_new_tokens"] = len(plain)
    else:
        plain = model.generate(ids, **options)[0, ids.shape[1] :].tolist()
    with rest_store.packed(model) if arguments.packed else nullcontext():
        drafted = model.generate(
            ids,
            custom_generate=rest_store.generate,
            drafter=sources,
            max_nodes=arguments.max_nodes,
            return_dict_in_generate=True,
            **options,
        )
    written, statistics = drafted.sequences[0, ids.shape[1] :].tolist(), drafted.statistics
    text = {"tokens": len(plain), "forward_passes": statistics.forward_passes, "accepted": statistics.drafts.accepted}
    if arguments.control:
        control = model.generate(ids, prompt_lookup_num_tokens=10, **options)
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
