r"""Verification on an accelerator: what a step costs by width, and tokens a second of a model of a given shape.

    python benchmarks/bench_gpu.py --traces traces_dev.jsonl.gz --datastore python.ds --json benchmarks/results/gpu.json

The model has the shape of a 7B Llama and random weights, which are honest for time and for nothing else; what it
"writes" is taken from recorded outputs, replayed as its choices by a logits processor, so that acceptance is that of
the recordings' model. Compared with `generate` of transformers with a static cache and its own compiled graphs, which
replays the same recordings. Reported: seconds of a step by width, with recorded graphs and without; tokens a second;
the share of a drafted generation spent outside forward passes (target: at most 5%).

`--shape tiny --device cpu` runs everything on a processor, to see that it works; such figures mean nothing.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, LogitsProcessor

import rest_store
from rest_store.bench.baselines import MergedRules, PromptLookupRule, RestRule, tree_of
from rest_store.bench.environment import write_result
from rest_store.generation.cache import TreeCache
from rest_store.generation.graphs import FixedVerifier
from rest_store.generation.verify import Step, Verifier, patterns_of

SHAPES = {
    "7b": {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32},
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4},
}
VOCABULARY = 49_152  # of the recordings


class Replay(LogitsProcessor):
    """Makes a recorded output the model's choice, token by token."""

    def __init__(self, prompt_length: int, output: list[int], device: torch.device) -> None:
        self.prompt_length = prompt_length
        self.output = torch.tensor(output, device=device)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Leave the recorded token alone possible."""
        token = self.output[input_ids.shape[1] - self.prompt_length]
        forced = torch.full_like(scores, float("-inf"))
        return forced.scatter_(1, token.view(1, 1), 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="7b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--traces", type=Path, required=True, help="JSONL with prompt and output as token ids")
    parser.add_argument("--datastore", help="a datastore's directory; without it prompt lookup drafts alone")
    parser.add_argument("--prompts", type=int, default=10)
    parser.add_argument("--widths", type=int, nargs="*", default=[1, 9, 17, 33, 65])
    parser.add_argument("--context", type=int, default=512, help="tokens in the cache when steps are timed")
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device(arguments.device)
    sizes = {"vocab_size": VOCABULARY, "max_position_embeddings": 4096, "eos_token_id": None}
    config = LlamaConfig(**sizes, **SHAPES[arguments.shape])
    with device:
        torch.set_default_dtype(torch.bfloat16)
        model = LlamaForCausalLM(config).eval()
        torch.set_default_dtype(torch.float32)
    steps = step_times(model, arguments)
    rates = generation_rates(model, arguments)
    print(json.dumps({"steps": steps, "generation": rates}, indent=1))
    what = torch.cuda.get_device_name(device) if device.type == "cuda" else "none"
    results = {"device": what, "steps": steps, "generation": rates}
    write_result(arguments.json, "gpu", arguments, ("numpy", "torch", "transformers"), results)


def seconds(run: Callable[[], Any], repeats: int, device: torch.device) -> float:
    """Median seconds of `run`, the device's work included."""
    times = []
    for _ in range(repeats + 3):
        began = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - began)
    return statistics.median(times[3:])


@torch.no_grad()
def step_times(model: Any, arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Seconds of one verification step by width, as it is and with fixed shapes (graphs on a CUDA device)."""
    length, device = arguments.context, model.device
    prompt = torch.randint(3, VOCABULARY, (1, length), device=device)
    filled = DynamicCache(config=model.config)
    model(prompt, past_key_values=filled, logits_to_keep=1)
    patterns = patterns_of(model.config, len(filled.layers))
    given: dict[str, Any] = {"seen": None, "positions": torch.full((1, 1), length)}
    plain = Verifier(model, TreeCache(filled, patterns, length), **given)
    fixed_cache = TreeCache(filled, patterns, length, length + 2 * max(arguments.widths))
    fixed = FixedVerifier(model, fixed_cache, arguments.widths, **given)
    found = {}
    for width in arguments.widths:
        step = Step([5], [tree_of([list(range(10, 9 + width))])], width)
        found[str(width)] = {
            "seconds": seconds(lambda step=step: plain.run(step), arguments.repeats, device),
            "seconds_fixed": seconds(lambda step=step: fixed.run(step), arguments.repeats, device),
        }
    return found


def generation_rates(model: Any, arguments: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Tokens a second and forward passes, plain and drafted, replaying recordings."""
    opened: Callable[..., Any] = gzip.open if arguments.traces.suffix == ".gz" else open
    with opened(arguments.traces, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line, _ in zip(lines, range(arguments.prompts), strict=False)]
    drafter = PromptLookupRule.of()
    if arguments.datastore:
        drafter = MergedRules.of([drafter, RestRule.of(rest_store.Datastore.open(arguments.datastore))])
    ours = {"custom_generate": rest_store.generate, "drafter": drafter, "return_dict_in_generate": True}
    methods: dict[str, dict[str, Any]] = {
        "transformers, static cache": {"cache_implementation": "static"},
        "drafted": {**ours, "widths": ()},
        "drafted, fixed widths": {**ours, "widths": tuple(arguments.widths)},
    }
    found = {}
    for name, options in methods.items():
        tokens, spent, passes, forward = 0, 0.0, 0, 0.0
        for number, row in enumerate([rows[0], *rows]):  # the first one twice: once to compile and record
            ids = torch.tensor([row["prompt"]], device=model.device)
            replay = Replay(ids.shape[1], row["output"], model.device)
            began = time.perf_counter()
            output = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=len(row["output"]),
                do_sample=False,
                logits_processor=[replay],
                **options,
            )
            if model.device.type == "cuda":
                torch.cuda.synchronize(model.device)
            took = time.perf_counter() - began
            written = getattr(output, "sequences", output)[0, ids.shape[1] :].tolist()
            assert written == row["output"], "the recording was not replayed"
            if number:
                tokens += len(written)
                spent += took
                counted = getattr(output, "statistics", None)
                if counted is not None:
                    passes += counted.forward_passes
                    forward += counted.forward_seconds
        found[name] = {"tokens_per_second": tokens / spent}
        if passes:
            found[name] |= {"mean_tokens": tokens / passes, "share_outside_forward": 1 - forward / spent}
    return found


if __name__ == "__main__":
    main()
