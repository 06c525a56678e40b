"""Measure generation on an accelerator: tokens a second of a model of a given shape, whose weights are random.

The model has the shape of a 7B Llama. Its outputs are recorded ones, forced by a logits processor, so that acceptance
is that of the recordings' model. Reported: tokens a second beside `generate` of transformers with a static cache, which
replays the same recordings; and the share of a drafted generation that is spent outside forward passes.

--shape tiny --device cpu runs everything on a processor, to see that it works; such figures mean nothing.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from typing import Any

import click
import torch
from transformers import LlamaConfig, LlamaForCausalLM, LogitsProcessor

import rest_store
from rest_store.bench.options import datastores_option, recordings_option, result_options
from rest_store.bench.recordings import Recording, read_recordings
from rest_store.bench.results import write_result
from rest_store.options import SETTINGS

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
    recordings = [one for path in options["recordings"] for one in read_recordings(path)][: options["prompts"]]
    results = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "none",
        "generation": generation_rates(model, recordings, options),
    }
    print(json.dumps(results, indent=1))
    write_result(options["out"], "gpu", options, ("numpy", "torch", "transformers"), results)


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
