"""Measure generation on an accelerator: tokens a second of a model of a given shape, whose weights are random.

The model has the shape of a 7B Llama. Its outputs are recorded ones, forced by a logits processor, so that acceptance
is that of the recordings' model. Reported: tokens a second beside `generate` of transformers with a static cache, which
replays the same recordings; and the share of a drafted generation that is spent outside forward passes.

--cost-model writes what a step takes by its rows, cached and verified tokens; `rest-store bench replay` reads it.

--shape tiny --device cpu runs everything on a processor, to see that it works; such figures mean nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import click
import numpy as np
import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM, LogitsProcessor

import rest_store
from rest_store.bench.options import datastores_option, recordings_option, result_options
from rest_store.bench.recordings import Recording, read_recordings
from rest_store.bench.results import write_result, write_text
from rest_store.options import FILE, SETTINGS, to_be_written

SHAPES = {
    "7b": {"hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32},
    "tiny": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4},
}
VOCABULARY = 49_152  # of the recordings
ROWS, CACHED, VERIFIED = (1, 4, 16), (128, 1024), (1, 8, 32)  # of the steps that are measured
PASSES = 10  # over each, of which the fastest counts


class Replay(LogitsProcessor):
    """Makes a recorded output the model's choice, token by token."""

    def __init__(self, prompt_length: int, output: list[int], device: torch.device) -> None:
        self.prompt_length = prompt_length
        self.output = torch.tensor(output, device=device)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Allow the recorded token alone."""
        token = self.output[input_ids.shape[1] - self.prompt_length]
        forced = torch.full_like(scores, float("-inf"))
        return forced.scatter_(1, token.view(1, 1), 0.0)


@click.command(
    help=__doc__,
    context_settings=SETTINGS,
    epilog="Example: python benchmarks/bench_gpu.py --recordings traces.jsonl.gz --datastore python.ds --out gpu.json",
)
@click.option("--shape", type=click.Choice(list(SHAPES)), default="7b", help="Of the model.")
@click.option("--device", metavar="DEVICE", default="cuda", help="Where the model runs.")
@recordings_option()
@datastores_option
@click.option("--prompts", metavar="N", default=10, help="Recordings to replay.")
@click.option(
    "--cost-model", metavar="FILE", type=FILE, callback=to_be_written, help="Write what a step takes, as JSON."
)
@result_options
def main(**options: Any) -> None:
    torch.manual_seed(0)
    device = torch.device(options["device"])
    sizes = {"vocab_size": VOCABULARY, "max_position_embeddings": 4096, "eos_token_id": None}
    config = LlamaConfig(**sizes, **SHAPES[options["shape"]])
    with device:
        torch.set_default_dtype(torch.bfloat16)
        model = LlamaForCausalLM(config).eval()
        torch.set_default_dtype(torch.float32)
    if options["cost_model"] is not None:
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else "a processor"
        source = f"transformers {transformers.__version__}, shape {options['shape']}, bfloat16, on {name}"
        write_text(options["cost_model"], json.dumps({"source": source, **step_costs(model)}, indent=1) + "\n")
    recordings = [one for path in options["recordings"] for one in read_recordings(path)][: options["prompts"]]
    results = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "none",
        "generation": generation_rates(model, recordings, options),
    }
    print(json.dumps(results, indent=1))
    write_result(options["out"], "gpu", options, ("numpy", "torch", "transformers"), results)


def step_costs(model: Any) -> dict[str, float]:
    """Return the constants of a `CostModel`, fitted to forward passes over random tokens; `fixed` has the overhead."""
    widths, seconds = [], []
    for rows in ROWS:
        for cached in CACHED:
            cache = transformers.DynamicCache()
            with torch.no_grad():
                model(torch.randint(VOCABULARY, (rows, cached), device=model.device), past_key_values=cache)
                for verified in VERIFIED:
                    ids = torch.randint(VOCABULARY, (rows, verified), device=model.device)
                    times = []
                    for _ in range(PASSES):
                        began = time.perf_counter()
                        model(ids, past_key_values=cache)[0][0, 0, 0].item()  # waits for the device
                        times.append(time.perf_counter() - began)
                        cache.crop(-verified)
                    widths.append((1, rows * cached, rows * verified))
                    seconds.append(min(times))
    fixed, cached_token, verified_token = np.linalg.lstsq(np.array(widths, float), np.array(seconds), rcond=None)[0]
    least = {"fixed": fixed, "cached_token": cached_token, "verified_token": verified_token}
    return {"overhead": 0.0, **{name: max(float(time), 0.0) for name, time in least.items()}}


def generation_rates(
    model: Any, recordings: Sequence[Recording], options: Mapping[str, Any]
) -> dict[str, dict[str, float]]:
    """Return tokens a second and tokens per forward pass, plain and drafted, replaying recordings."""
    drafter = [*(rest_store.Datastore.open(path) for path in options["datastores"]), rest_store.PromptLookup()]
    ours = {"custom_generate": rest_store.generate, "drafter": drafter, "return_dict_in_generate": True}
    methods: dict[str, dict[str, Any]] = {
        "transformers, static cache": {"cache_implementation": "static"},
        "drafted": ours,
    }
    # The longest one first, and not counted: transformers compiles a step for the longest static cache so far.
    longest = max(recordings, key=lambda one: one.prompt.size + one.output.size)
    rates = {}
    for name, method in methods.items():
        tokens, spent, passes, forward = 0, 0.0, 0, 0.0
        for number, recording in enumerate([longest, *recordings]):
            ids = torch.tensor([recording.prompt.tolist()], device=model.device)
            output = recording.output.tolist()
            replay = Replay(ids.shape[1], output, model.device)
            began = time.perf_counter()
            generated = model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=len(output),
                do_sample=False,
                logits_processor=[replay],
                **method,
            )
            if model.device.type == "cuda":
                torch.cuda.synchronize(model.device)
            took = time.perf_counter() - began
            written = getattr(generated, "sequences", generated)[0, ids.shape[1] :].tolist()
            assert written == output, "the recording was not replayed"
            if number:
                tokens += len(written)
                spent += took
                counted = getattr(generated, "statistics", None)
                if counted is not None:
                    passes += counted.forward_passes
                    forward += counted.forward_seconds
        rates[name] = {"tokens_per_second": tokens / spent}
        if passes:
            rates[name] |= {"mean_tokens": tokens / passes, "share_outside_forward": 1 - forward / spent}
    return rates


if __name__ == "__main__":
    main()
