"""Generations of models with recurrent state, in float32, against plain `generate` of transformers.

Drafts are the text to come with noise, so that most passes accept a part. A sampled batch draws its
own numbers, the same whatever is drafted: it is compared with ours without drafts.
"""

from __future__ import annotations

import functools
import random
import warnings
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import transformers

import rest_store
from rest_store.bench.baselines import merge_paths
from tests.fuzz import campaign
from tests.shared.families import family_model
from tests.shared.tiny import VOCABULARY, Drafted, Scripted, futures_of, prompts

FAMILIES = (
    "bamba",
    "falcon_h1",
    "granitemoehybrid",
    "kimi_linear",
    "lfm2",
    "lfm2_moe",
    "mamba2",
    "nemotron_h",
    "olmo_hybrid",
    "qwen3_5_moe_text",
    "qwen3_5_text",
    "qwen3_next",
    "zamba2",
)


@functools.cache
def model_of(family: str) -> Any:
    return family_model(family)


def noisy(future: list[int], random: Any, max_nodes: int, noise: float, branches: int) -> Any:
    """The text to come, with some tokens replaced, and branches of other tokens."""
    true = [
        token if random.random() >= noise else int(random.integers(VOCABULARY)) for token in future
    ]
    true = true[: int(random.integers(1, max_nodes + 1))] if max_nodes else []
    paths = [true] if true else []
    for _ in range(branches if true else 0):
        other = future[: int(random.integers(0, len(true) + 1))]
        path = [*other, *random.integers(0, VOCABULARY, 1 + int(random.integers(3))).tolist()]
        tree = merge_paths([*paths, path])
        if len(tree) <= max_nodes:
            paths.insert(int(random.integers(len(paths) + 1)), path)
    return merge_paths(paths)


class Fuzzer(campaign.Fuzzer):
    """Generates in both ways, and compares."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        super().__init__(directory, stack)
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.callback(
            transformers.utils.logging.set_verbosity, transformers.utils.logging.get_verbosity()
        )
        transformers.utils.logging.set_verbosity_error()

    def run(self, chance: random.Random) -> Counter[str]:
        """Run one case."""
        family = chance.choice(FAMILIES)
        rows = chance.choice([1, 1, 2, 3, 4])
        model = model_of(family)
        seed = chance.randrange(2**32)
        inputs = prompts(rows, chance.choice([8, 14, 30]), seed=seed, padded=chance.random() < 0.7)
        options: dict[str, Any] = {
            "max_new_tokens": chance.randrange(1, 48),
            "do_sample": chance.random() < 0.5,
        }
        options |= (
            {"top_k": 0, "temperature": chance.choice([0.7, 1.0])} if options["do_sample"] else {}
        )
        if chance.random() < 0.4:
            options["eos_token_id"] = chance.sample(range(3, VOCABULARY), 4)
        if chance.random() < 0.2:
            options["repetition_penalty"] = 1.2
        drafting = {
            "adaptive": chance.random() < 0.3,
            "max_nodes": chance.choice([1, 2, 5, 8, 16, 40]),
        }
        noise = chance.choice([0.05, 0.2, 0.4, 1.0])
        branches = chance.choice([0, 0, 1, 3])
        self.case = f"{family}, {rows} rows of {inputs['input_ids'].shape[1]}, seed {seed}\n"
        self.case += f"noise {noise}, {branches} branches\n{options}\n{drafting}"
        ours = {"custom_generate": rest_store.generate} if options["do_sample"] and rows > 1 else {}
        torch.manual_seed(seed)
        plain = model.generate(**inputs, **options, **ours)
        draw = torch.rand(1)
        futures = futures_of(inputs, plain)
        make = functools.partial(
            Scripted,
            futures=futures,
            script=functools.partial(noisy, noise=noise, branches=branches),
        )
        torch.manual_seed(seed)
        output = model.generate(
            **inputs,
            **options,
            **drafting,
            custom_generate=rest_store.generate,
            sources=[Drafted(make)],
            return_dict_in_generate=True,
        )
        assert torch.equal(output.sequences, plain), (
            f"{output.sequences.tolist()} for {plain.tolist()}"
        )
        assert torch.equal(torch.rand(1), draw), "another number of random draws"
        drafts = output.statistics.drafts
        assert not drafts.errors, drafts.errors
        partly = 0 < drafts.accepted < drafts.nodes
        kind = f"{'sampled' if options['do_sample'] else 'greedy'}, {rows} rows"
        return Counter([f"{family}: equal", kind, *(["partly accepted drafts"] if partly else [])])
