"""Sampling with drafts: the model's own distribution, and with the same seed the same tokens."""

from __future__ import annotations

import math
import os
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

import rest_store.generation.generate as entry
from tests.shared.tiny import (
    VOCABULARY,
    Drafted,
    SameTree,
    Scripted,
    bushy,
    drafted,
    futures_of,
    prompts,
    right,
    tiny_model,
    wrong,
)

WARPERS = {
    "temperature": ({"temperature": 1.6, "top_k": 0}, [TemperatureLogitsWarper(1.6)]),
    "top_k": (
        {"top_k": 7, "temperature": 1.3},
        [TemperatureLogitsWarper(1.3), TopKLogitsWarper(7)],
    ),
    "top_p": ({"top_p": 0.8, "top_k": 0}, [TopPLogitsWarper(0.8)]),
}


@pytest.mark.parametrize(
    "options",
    [
        {},
        *(options for options, _ in WARPERS.values()),
        {"min_p": 0.05},
        {"repetition_penalty": 1.5},
    ],
)
def test_a_row_draws_what_plain_decoding_draws_with_the_same_seed(options: dict[str, Any]) -> None:
    model = tiny_model("llama")
    inputs = prompts(1)
    seen = set()
    for seed in range(2):
        fixed = {**options, "max_new_tokens": 25, "do_sample": True}
        torch.manual_seed(seed)
        plain = model.generate(**inputs, **fixed)
        after = torch.rand(1)
        seen.add(tuple(plain.flatten().tolist()))
        for script in (right, wrong, bushy):
            torch.manual_seed(seed)
            output = drafted(model, inputs, plain, script, **fixed)
            assert torch.equal(output.sequences, plain)
            assert torch.equal(torch.rand(1), after), "as many draws as plain decoding"
            assert (output.statistics.drafts.accepted > 0) == (script is not wrong)
    assert len(seen) == 2


def test_a_batch_draws_the_same_with_the_same_seed_whatever_is_drafted() -> None:
    model = tiny_model("llama")
    inputs = prompts(4)
    fixed = {
        "max_new_tokens": 25,
        "do_sample": True,
        "temperature": 2.0,
        "eos_token_id": list(range(40, 44)),
    }

    def write(seed: int, drafter: Any) -> tuple[torch.Tensor, torch.Tensor]:
        torch.manual_seed(seed)
        options = {"custom_generate": entry.generate, "sources": drafter, "adaptive": False}
        return model.generate(**inputs, **fixed, **options), torch.rand(1)

    for seed in range(3):
        expected, after = write(seed, None)
        futures = futures_of(inputs, expected)
        for script in (right, wrong, bushy):
            output = write(seed, [Drafted(lambda prompt: Scripted(prompt, futures, script))])
            assert torch.equal(output[0], expected)
            assert torch.equal(output[1], after), "as many draws from torch's own generator"
    assert not torch.equal(expected, write(7, None)[0])


class Numbers(TorchDispatchMode):
    """Counts the numbers that operators return."""

    total = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, arguments: Any = (), options: Any = None
    ) -> Any:
        output = function(*arguments, **(options or {}))
        self.total += output.numel() if isinstance(output, torch.Tensor) else 0
        return output


@pytest.mark.parametrize(
    "options", [{}, {"encoder_repetition_penalty": 1.3}, {"encoder_no_repeat_ngram_size": 2}]
)
def test_a_token_of_a_large_batch_costs_what_one_of_a_small_batch_costs(
    options: dict[str, Any],
) -> None:
    model = tiny_model("llama")
    totals = []
    for rows in (4, 32):
        with Numbers() as numbers:
            model.generate(
                prompts(1)["input_ids"].expand(rows, -1),
                max_new_tokens=8,
                do_sample=True,
                **options,
                custom_generate=entry.generate,
            )
        totals.append(numbers.total / rows)
    assert totals[1] < 1.1 * totals[0]


def surprise(observed: Counter[Any], expected: dict[Any, float], draws: int) -> float:
    """Pearson's statistic as a standard normal deviate (Wilson and Hilferty).

    Rare outcomes are taken together.
    """
    common = {outcome: share * draws for outcome, share in expected.items() if share * draws >= 5}
    rare = draws - sum(common.values())
    statistic = sum(
        (observed[outcome] - number) ** 2 / number for outcome, number in common.items()
    )
    others = draws - sum(observed[outcome] for outcome in common)
    if rare >= 5:
        statistic += (others - rare) ** 2 / rare
    freedom = len(common) - (rare < 5)
    return ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(
        2 / (9 * freedom)
    )


@pytest.mark.parametrize("name", WARPERS)
def test_the_distribution_is_the_models(name: str) -> None:
    """Many samples of three tokens agree, the last two among accepted and rejected drafts.

    REST_STORE_DRAWS=20000 draws as many; the default is for every day.
    """
    options, warpers = WARPERS[name]
    model = tiny_model("llama")
    prompt = prompts(1)["input_ids"]

    def chances(contexts: torch.Tensor, chain: Any) -> np.ndarray[Any, Any]:
        with torch.no_grad():
            scores = model(contexts).logits[:, -1]
        scores = LogitsProcessorList(chain)(contexts, scores)
        probabilities: np.ndarray[Any, Any] = scores.softmax(-1).double().numpy()
        return probabilities

    def joint(chain: Any) -> dict[tuple[int, int], float]:
        first = chances(prompt, chain)[0]
        every = torch.cat([prompt.expand(VOCABULARY, -1), torch.arange(VOCABULARY)[:, None]], dim=1)
        second = chances(every, chain)
        return {
            (a, b): first[a] * second[a, b] for a in range(VOCABULARY) for b in range(VOCABULARY)
        }

    expected = joint(warpers)
    likely = [
        token for token, _ in Counter({b: expected[a, b] for a, b in expected}).most_common(6)
    ]
    paths = [[token, other] for token in likely for other in likely[:2]]
    rows = 40
    runs = -(-int(os.environ.get("REST_STORE_DRAWS", "3000")) // rows)
    observed: Counter[tuple[int, int]] = Counter()
    accepted = 0
    torch.manual_seed(11)
    for _ in range(runs):
        output = model.generate(
            prompt.expand(rows, -1),
            max_new_tokens=3,
            do_sample=True,
            **options,
            custom_generate=entry.generate,
            sources=[Drafted(lambda _: SameTree(paths))],
            max_nodes=32,
            adaptive=False,
            return_dict_in_generate=True,
        )
        observed.update((int(a), int(b)) for a, b in output.sequences[:, -3:-1])
        accepted += output.statistics.drafts.accepted
    draws = rows * runs
    assert 0.05 * draws < accepted < 1.9 * draws, (
        "drafts are accepted at times and rejected at times"
    )
    assert surprise(observed, expected, draws) < 3.7
    other = joint([TemperatureLogitsWarper(0.6), *warpers])
    assert surprise(observed, other, draws) > 10, "the test tells temperatures apart"
