"""Measure drafts for models with recurrent state, on the CPU.

The models have shapes of this year's hybrids and about 100M random weights.

- pass: the time of a forward pass over 9 and 17 tokens behind a filled cache, relative to one
  token; and the time of the trial of an unknown class, in passes.
- speed: tokens a second with drafts whose tokens are right with a known probability each, in turns
  with plain generation; and the behaviour of transformers' prompt lookup with the model.
- memory: the peak beside plain generation, of a process each.

Times are processor times on one thread, so that other processes matter little, with prepacked
weights.
"""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
import transformers
from transformers import DynamicCache

import rest_store
from rest_store.bench.measurement_options import Destination, result_options
from rest_store.bench.results import write_result
from rest_store.command_options import SETTINGS
from rest_store.datastore.tree import TokenTree
from rest_store.drafting.draft_options import DraftOptions
from rest_store.drafting.members import MemberSettings
from rest_store.generation.cache import has_states
from rest_store.generation.continuation import difference
from rest_store.generation.prefill import prefill
from rest_store.generation.prepacking import prepacked_weights
from rest_store.generation.seam import name_of_cache
from rest_store.generation.verify import make_verifier

WIDTHS = (1, 2, 9, 17)
PROMPT = 64
RIGHT = (0.6, 0.8, 1.0)  # probabilities that a draft token is right
SIZES = {
    "full": {
        "vocab_size": 8192,
        "hidden_size": 768,
        "intermediate_size": 2048,
        "num_hidden_layers": 12,
    },
    "tiny": {"vocab_size": 256, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6},
}
USUAL = {
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}


def qwen3_5(sizes: dict[str, Any]) -> Any:
    """Three layers of the gated delta rule for each of attention."""
    head = sizes["hidden_size"] // 8
    heads = {"linear_num_key_heads": 8, "linear_num_value_heads": 8, "head_dim": head}
    heads |= {"linear_key_head_dim": head, "linear_value_head_dim": head}
    return transformers.Qwen3_5ForCausalLM(
        transformers.Qwen3_5TextConfig(**USUAL, **sizes, **heads)
    )


def lfm2(sizes: dict[str, Any]) -> Any:
    """Two layers of convolution for each of attention."""
    kinds = (["conv", "conv", "full_attention"] * sizes["num_hidden_layers"])[
        : sizes["num_hidden_layers"]
    ]
    config = transformers.Lfm2Config(
        **USUAL, **sizes, layer_types=kinds, block_auto_adjust_ff_dim=False
    )
    return transformers.Lfm2ForCausalLM(config)


def granite_4_h(sizes: dict[str, Any]) -> Any:
    """Five layers of Mamba 2 for each of attention."""
    kinds = ((["linear_attention"] * 5 + ["full_attention"]) * sizes["num_hidden_layers"])[
        : sizes["num_hidden_layers"]
    ]
    mamba = {"mamba_n_heads": 8, "mamba_d_head": sizes["hidden_size"] // 4, "mamba_d_state": 128}
    config = transformers.GraniteMoeHybridConfig(
        **USUAL,
        **sizes,
        **mamba,
        layer_types=kinds,
        num_local_experts=0,
        shared_intermediate_size=sizes["intermediate_size"],
    )
    return transformers.GraniteMoeHybridForCausalLM(config)


def llama(sizes: dict[str, Any]) -> Any:
    """Attention alone, to compare with."""
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**USUAL, **sizes))


SHAPES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "Qwen3.5": qwen3_5,
    "LFM2": lfm2,
    "Granite 4 H": granite_4_h,
    "Llama": llama,
}


class Known:
    """A source whose draft tokens are right with a known probability each, which is their score.

    Args:
        text: the text that will be written.
        right: the probability.
        seed: the seed for the choice of wrong tokens.
    """

    has_references = False

    def __init__(self, text: Sequence[int], right: float, seed: int = 0) -> None:
        self._text = list(text)
        self._right = right
        self._random = np.random.default_rng(seed)

    def __str__(self) -> str:
        return "known"

    def members(self, settings: MemberSettings, text: Callable[[], Any]) -> Sequence[Any]:
        """Return itself: it has one session."""
        self._written = 0
        return [self]

    def send(self, options: DraftOptions) -> None:
        """Take the options of the next draft."""
        self._options = options

    def receive(self, timeout: float | None) -> TokenTree:
        """Return the chain that brings most for its costs."""
        size = min(self._options.max_nodes, len(self._text) - self._written)
        scores = self._right ** np.arange(1, size + 1)
        if len(self._options.costs):
            costs = self._options.costs[: size + 1]
            expected = 1 + np.append(0.0, np.cumsum(scores))
            size = int(np.argmax(expected[: costs.size] / costs))
        coming = self._text[self._written : self._written + size]
        wrong = self._random.random(size) >= self._right
        tokens = []
        for token, is_wrong in zip(coming, wrong, strict=True):
            tokens.append((token + 1) % 200 + 3 if is_wrong else token)
        chain = range(-1, size - 1)
        return TokenTree(tokens, chain, [1] * size, scores=scores[:size], origins=[1] * size)

    def accept(self, tokens: Any, top_k: Any, node_top_k: Any) -> None:
        """Move on by the tokens."""
        self._written += len(tokens)

    def close(self) -> None:
        """End."""


def make_model(shape: str, size: str) -> Any:
    """Return a model of random weights."""
    torch.manual_seed(0)
    return SHAPES[shape](dict(SIZES[size])).eval()


def make_prompt(model: Any) -> torch.Tensor:
    return torch.randint(3, 200, (1, PROMPT), generator=torch.Generator().manual_seed(0))


def measure_passes(model: Any, rounds: int) -> dict[str, Any]:
    """Return milliseconds of a pass over one token, and passes over more relative to it."""
    ids = make_prompt(model)
    drafts = {f"{width}_tokens": chain_of_length(width - 1) for width in WIDTHS[1:]}
    drafts["17_tree"] = bushy_tree()
    times: dict[str, list[float]] = {way: [] for way in ("one", *drafts)}
    for _ in range(rounds):
        for way, taken in times.items():
            draft = drafts.get(way, chain_of_length(0))
            cache = DynamicCache(config=model.config)
            own = {str(name_of_cache(model)): cache, "position_ids": torch.arange(PROMPT)[None]}
            with torch.no_grad():
                prompt = prefill(model, ids, None, own)
                verifier = make_verifier(model, prompt, max(WIDTHS))
                began = time.process_time()
                verifier.run(
                    [5],
                    [draft if verifier.shape == "tree" else chain_of_length(len(draft))],
                    1 + len(draft),
                )
                taken.append(time.process_time() - began)
                verifier.close()
    one = float(np.median(times.pop("one")))
    figures: dict[str, Any] = {"one_token_ms": round(1e3 * one, 1), "shape": verifier.shape}
    figures |= {way: round(float(np.median(taken)) / one, 2) for way, taken in times.items()}
    if not has_states(cache):
        return figures
    began = time.process_time()
    difference(model)
    return figures | {"trial": round((time.process_time() - began) / one, 1)}


def chain_of_length(length: int) -> TokenTree:
    return TokenTree(range(3, 3 + length), range(-1, length - 1), [1] * length)


def bushy_tree() -> TokenTree:
    """16 nodes, of which 8 are a path and the others branches from it."""
    parents = [*range(-1, 7), -1, -1, 0, 0, 1, 2, 3, 4]
    return TokenTree(range(3, 19), parents, [1] * 16)


def measure_speed(model: Any, tokens: int, rounds: int) -> dict[str, Any]:
    """Return tokens a pass and speed relative to plain generation, for drafts of known quality."""
    ids = make_prompt(model)
    sampling = {"max_new_tokens": tokens, "do_sample": True, "top_k": 0, "temperature": 2.0}

    def write(**ours: Any) -> tuple[Any, float]:
        torch.manual_seed(1)
        began = time.process_time()
        output = model.generate(ids, **sampling, **ours, return_dict_in_generate=True)
        return output, time.process_time() - began

    plain = write()[0].sequences
    ways = {right: functools.partial(Known, plain[0, PROMPT:].tolist(), right) for right in RIGHT}
    seconds: dict[Any, list[float]] = {way: [] for way in ("plain", *RIGHT)}
    passes = dict.fromkeys(RIGHT, 0)
    for number in range(1 + rounds):
        for way, taken in seconds.items():
            ours: dict[str, Any] = {}
            if way != "plain":
                ours = {"custom_generate": rest_store.generate, "sources": [ways[way](number)]}
            output, time_taken = write(**ours)
            if not torch.equal(output.sequences, plain):
                raise click.ClickException(f"drafts ({way}) have changed the text")
            if number:  # the first round warms up
                taken.append(time_taken)
                if way != "plain":
                    passes[way] += output.statistics.forward_passes
    plain_seconds = sum(seconds.pop("plain"))
    figures: dict[str, Any] = {}
    for way, count in passes.items():
        figures[f"M at {way:.0%}"] = round(rounds * tokens / count, 2)
    for way, taken in seconds.items():
        figures[f"speed at {way:.0%}"] = round(plain_seconds / sum(taken), 2)
    try:
        model.generate(ids, max_new_tokens=4, do_sample=False, prompt_lookup_num_tokens=4)
        lookup = "runs"
    except ValueError as error:
        lookup = "raises: " + str(error).split(", ", maxsplit=1)[0]
    return figures | {"transformers' prompt lookup": lookup}


PEAK = """
import sys, bench_recurrent as bench, torch, rest_store
from pathlib import Path
shape, size, tokens, way = sys.argv[1:]
model = bench.make_model(shape, size)
ids = bench.make_prompt(model)
greedy = {"max_new_tokens": int(tokens), "do_sample": False}
plain = model.generate(ids, **greedy)
Path("/proc/self/clear_refs").write_text("5")
if way == "plain":
    model.generate(ids, **greedy)
else:
    source = bench.Known(plain[0, bench.PROMPT:].tolist(), 0.8)
    drafted = dict(custom_generate=rest_store.generate, sources=[source], adaptive=False)
    model.generate(ids, **greedy, **drafted)
lines = Path("/proc/self/status").read_text().splitlines()
peak = next(line for line in lines if line.startswith("VmHWM"))
print(peak.split()[1])
"""


def measure_memory(shape: str, size: str, tokens: int) -> dict[str, float]:
    """Return the peak of a process that generates, in MB, plainly and with drafts."""
    peaks = {}
    for way in ("plain", "drafts"):
        command = [sys.executable, "-W", "ignore", "-c", PEAK, shape, size, str(tokens), way]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path]),
        }
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        peaks[f"{way}_mb"] = round(int(done.stdout) / 1024)
    return peaks


@click.command(
    help=__doc__,
    context_settings=SETTINGS,
    epilog="Example: python benchmarks/bench_recurrent.py --out recurrent.json",
)
@click.option("--size", type=click.Choice(list(SIZES)), default="full", help="Of the models.")
@click.option(
    "--shape", "shapes", multiple=True, type=click.Choice(list(SHAPES)), default=list(SHAPES)
)
@click.option(
    "--tokens",
    metavar="N",
    type=click.IntRange(8),
    default=128,
    help="That each generation writes.",
)
@click.option("--rounds", metavar="N", type=click.IntRange(1), default=3, help="Turns.")
@result_options
def main(size: str, shapes: tuple[str, ...], tokens: int, rounds: int, out: Destination) -> None:
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    results: dict[str, Any] = {"pass": {}, "speed": {}, "memory": {}}
    for shape in shapes:
        model = make_model(shape, size)
        with prepacked_weights(model):
            results["pass"][shape] = {
                "parameters_m": round(sum(weights.numel() for weights in model.parameters()) / 1e6),
                **measure_passes(model, 3 * rounds),
            }
            print(shape, results["pass"][shape], flush=True)
            results["speed"][shape] = measure_speed(model, tokens, rounds)
            print(shape, results["speed"][shape], flush=True)
        del model
        results["memory"][shape] = measure_memory(shape, size, tokens)
        print(shape, results["memory"][shape], flush=True)
    write_result(
        out,
        "recurrent",
        click.get_current_context().params,
        ("numpy", "torch", "transformers"),
        results,
    )


if __name__ == "__main__":
    main()
