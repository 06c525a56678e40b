"""Measure the time of a step on an accelerator, and write a cost model for `bench replay`.

The model is one of your own, or has the shape of a 7B Llama and random weights. Its forward passes
are timed for several numbers of sequences, cached tokens and verified tokens, and the constants are
fitted to them. `rest-store bench speed --device cuda` measures the speed of a model with drafts.

--shape tiny --device cpu runs everything on a processor, as a trial; such figures mean nothing.
"""

from __future__ import annotations

import json
import time
from itertools import product
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
import transformers
from transformers import AutoModelForCausalLM, LlamaConfig

from rest_store.bench.results import write_text
from rest_store.command_options import FILE, SETTINGS, check_writable, json_option
from rest_store.generation.seam import CACHE
from rest_store.generation.support import vocabulary_size

SHAPES = {
    "7b": {
        "hidden_size": 4096,
        "intermediate_size": 11008,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    },
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    },
}
# Shapes of the steps that are measured.
SEQUENCES = (1, 4, 16)
CACHED = (128, 1024)
VERIFIED = (1, 8, 32)
PASSES = 10  # of each step; the fastest counts


@click.command(
    help=__doc__,
    context_settings=SETTINGS,
    epilog="Example: python benchmarks/bench_gpu.py --out costs.json",
)
@click.option(
    "--model", metavar="NAME_OR_PATH", show_default="random weights", help="Model of transformers."
)
@click.option(
    "--shape", type=click.Choice(list(SHAPES)), default="7b", help="Of a model with random weights."
)
@click.option("--device", metavar="DEVICE", default="cuda", help="Where the model runs.")
@click.option(
    "--out",
    metavar="FILE",
    type=FILE,
    required=True,
    callback=check_writable,
    help="The cost model to write, as JSON.",
)
@json_option
def main(model: str | None, shape: str, device: str, out: Path, as_json: bool) -> None:
    torch.manual_seed(0)
    if model is None:
        config = LlamaConfig(vocab_size=32_000, max_position_embeddings=4096, **SHAPES[shape])
        with torch.device(device):
            loaded = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    else:
        loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.bfloat16).to(device)
    name = (
        torch.cuda.get_device_name(loaded.device) if loaded.device.type == "cuda" else "a processor"
    )
    source = (
        f"transformers {transformers.__version__}, {model or f'shape {shape}'}, bfloat16, on {name}"
    )
    costs = step_costs(loaded.eval())
    facts = json.dumps({"source": source, **costs}, indent=1)
    write_text(out, facts + "\n")
    if as_json:
        click.echo(facts)
        return
    fixed = 1e3 * costs["fixed"]
    verified = 1e3 * costs["verified_token"]
    cached = 1e6 * costs["cached_token"]
    click.echo(
        f"{out}: a step takes {fixed:.2f} ms, and {verified:.3g} ms more for each token that it"
        " verifies, and"
    )
    click.echo(f"{cached:.3g} ms more for each 1,000 tokens in the KV cache")


def step_costs(model: Any) -> dict[str, float]:
    """Return the constants of a `CostModel`, fitted to forward passes over random tokens.

    `fixed` includes the overhead.
    """
    widths = []
    seconds = []
    vocabulary = vocabulary_size(model)
    for sequences, cached in product(SEQUENCES, CACHED):
        cache = transformers.DynamicCache()
        with torch.no_grad():
            prompt = torch.randint(vocabulary, (sequences, cached), device=model.device)
            model(prompt, **{CACHE: cache})
            for verified in VERIFIED:
                ids = torch.randint(vocabulary, (sequences, verified), device=model.device)
                times = []
                for _ in range(PASSES):
                    began = time.perf_counter()
                    model(ids, **{CACHE: cache})[0][0, 0, 0].item()  # waits for the device
                    times.append(time.perf_counter() - began)
                    cache.crop(-verified)
                widths.append((1, sequences * cached, sequences * verified))
                seconds.append(min(times))
    fixed, cached_token, verified_token = np.linalg.lstsq(
        np.array(widths, float), np.array(seconds), rcond=None
    )[0]
    return {
        "overhead": 0.0,
        "fixed": max(float(fixed), 0.0),
        "cached_token": max(float(cached_token), 0.0),
        "verified_token": max(float(verified_token), 0.0),
    }


if __name__ == "__main__":
    main()
