"""Plans of generations: a model, a prompt, the options of plain generation, and ours."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from tests.shared.tiny import ARCHITECTURES, VOCABULARY, text_tokenizer, tiny_model


@dataclass
class Plan:
    """One case.

    Attributes:
        model: makes the model.
        inputs: token ids, and mostly a mask.
        options: of plain generation.
        drafting: options of ours.
        way: how ours is called.
        words: the case, for people.
        rows: that are written.
    """

    model: Callable[[], Any]
    inputs: dict[str, torch.Tensor]
    seed: int
    options: dict[str, Any] = field(default_factory=dict)
    drafting: dict[str, Any] = field(default_factory=dict)
    way: str = "generate"
    words: str = ""
    rows: int = 1


def by_last_token(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Favours tokens near the last one of each row."""
    distance = (torch.arange(scores.shape[-1]) - input_ids[:, -1:]).abs()
    return scores - distance.to(scores) / 50


def few_small(limit: int, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
    """A criterion: enough tokens of a small number."""
    return torch.stack([(row < VOCABULARY // 3).sum() >= limit for row in input_ids])


def some_tokens(chance: random.Random, most: int) -> list[int]:
    return [chance.randrange(3, VOCABULARY) for _ in range(chance.randrange(1, most))]


# Options that change what is written; each is given a source of randomness.
SETTINGS: dict[str, Callable[[random.Random], Any]] = {
    "repetition_penalty": lambda chance: chance.choice([0.7, 1.2, 3.0]),
    "encoder_repetition_penalty": lambda chance: chance.choice([0.7, 1.5]),
    "no_repeat_ngram_size": lambda chance: chance.randrange(1, 4),
    "encoder_no_repeat_ngram_size": lambda chance: chance.randrange(1, 4),
    "bad_words_ids": lambda chance: [some_tokens(chance, 4) for _ in range(chance.randrange(1, 9))],
    "sequence_bias": lambda chance: {
        tuple(some_tokens(chance, 3)): chance.uniform(-9, 9) for _ in range(4)
    },
    "suppress_tokens": lambda chance: some_tokens(chance, 40),
    "begin_suppress_tokens": lambda chance: some_tokens(chance, 40),
    "forced_bos_token_id": lambda chance: chance.randrange(VOCABULARY),
    "forced_eos_token_id": lambda chance: chance.randrange(VOCABULARY),
    "min_new_tokens": lambda chance: chance.randrange(12),
    "exponential_decay_length_penalty": lambda chance: (
        chance.randrange(6),
        chance.uniform(1, 1.5),
    ),
    "renormalize_logits": lambda chance: True,
    "remove_invalid_values": lambda chance: True,
    "logits_processor": lambda chance: [by_last_token],
    "cache_implementation": lambda chance: chance.choice(["dynamic", "static"]),
    "use_cache": lambda chance: False,
    "stopping_criteria": lambda chance: [partial(few_small, chance.randrange(1, 20))],
}
SAMPLING: dict[str, Callable[[random.Random], Any]] = {
    "temperature": lambda chance: chance.choice([0.2, 0.9, 2.5]),
    "top_k": lambda chance: chance.choice([0, 1, 5, 200]),
    "top_p": lambda chance: chance.choice([0.01, 0.5, 0.95]),
    "min_p": lambda chance: chance.choice([0.01, 0.3]),
    "typical_p": lambda chance: chance.choice([0.3, 0.9]),
    "epsilon_cutoff": lambda chance: 0.01,
    "eta_cutoff": lambda chance: 0.02,
}


def precise_model(architecture: str, positions: int | None = None) -> Any:
    """A model that computes with 64 bits, as neither eager attention nor grouped experts do."""
    model = tiny_model(architecture, attention="sdpa", dtype=torch.float64, positions=positions)
    model.set_experts_implementation("eager")
    return model


def some_inputs(chance: random.Random) -> dict[str, torch.Tensor]:
    """Token ids of some rows, padded on the left; texts that repeat themselves among them."""
    rows = chance.choice([1, 1, 2, 3, 5])
    length = chance.randrange(1, 20)
    few = chance.choice([3, 10, VOCABULARY])
    ids = torch.tensor(
        [[chance.randrange(3, 3 + few) % VOCABULARY for _ in range(length)] for _ in range(rows)]
    )
    mask = torch.ones_like(ids)
    for row in range(rows):
        padding = chance.randrange(length) if chance.random() < 0.5 else 0
        mask[row, :padding] = 0
        ids[row, :padding] = 0
    return {"input_ids": ids, "attention_mask": mask}


def some_plan(chance: random.Random) -> Plan:
    """A case, all but its drafter."""
    # Which has eager attention only.
    architecture = chance.choice([name for name in ARCHITECTURES if name != "gemma2"])
    positions = chance.choice([None, None, 24, 32])
    inputs = some_inputs(chance)
    rows, length = inputs["input_ids"].shape
    new = chance.choice([1, 2, chance.randrange(1, 16), chance.randrange(16, 45)])
    if positions is not None and chance.random() < 0.8:
        new = max(1, positions - length + chance.choice([0, 0, 0, -1, 1]))
    plan = Plan(partial(precise_model, architecture, positions), inputs, chance.randrange(2**31))
    plan.words = f"{architecture}, {positions} positions, {rows} rows of {length} and {new} new"
    options = plan.options
    options.update(
        {"max_length": length + new} if chance.random() < 0.3 else {"max_new_tokens": new}
    )
    options["do_sample"] = chance.random() < 0.4
    for name in chance.sample(list(SETTINGS), chance.choice([0, 0, 1, 2, 4])):
        options[name] = SETTINGS[name](chance)
    if options["do_sample"]:
        for name in chance.sample(list(SAMPLING), chance.choice([0, 1, 2])):
            options[name] = SAMPLING[name](chance)
        if chance.random() < 0.3:
            options["num_return_sequences"] = chance.randrange(2, 4)
    if chance.random() < 0.5 or "exponential_decay_length_penalty" in options:
        options["eos_token_id"] = chance.sample(range(3, VOCABULARY), chance.choice([1, 6, 20]))
    if "stopping_criteria" in options and rows * options.get("num_return_sequences", 1) > 1:
        # Without one, plain generation writes on to rows that have ended.
        options.setdefault("eos_token_id", [3])
    if chance.random() < 0.3:
        options.update(
            return_dict_in_generate=True, output_scores=True, output_logits=chance.random() < 0.5
        )
    if chance.random() < 0.1:
        del inputs["attention_mask"]
    if options.get("use_cache") is False:
        options.pop("cache_implementation", None)
    plan.rows = rows * options.get("num_return_sequences", 1)
    some_way(chance, plan)
    return plan


def some_way(chance: random.Random, plan: Plan) -> None:
    """Decide how ours is called, and with which options."""
    drafting = plan.drafting
    plan.way = chance.choice(["generate"] * 4 + ["generator"])
    drafting["adaptive"] = chance.random() < 0.3
    if chance.random() < 0.6:
        drafting["max_nodes"] = chance.choice([0, 1, 3, 16, 64, 200])
    if plan.way == "generator":
        plan.options.pop("return_dict_in_generate", None)  # it returns its own output
        if chance.random() < 0.3:
            tokenizer = text_tokenizer()
            tokens = [chance.randrange(30, VOCABULARY) for _ in range(chance.randrange(1, 5))]
            plan.options["stop_strings"] = [tokenizer.decode([token]) or "a" for token in tokens]
            plan.options["tokenizer"] = tokenizer
            if plan.rows > 1:
                plan.options.setdefault("eos_token_id", [3])
