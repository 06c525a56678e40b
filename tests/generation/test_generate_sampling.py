"""Sampling with drafts: the model's own distribution, and with the same seed the same tokens."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    LogitsProcessorList,
    SynthIDTextWatermarkingConfig,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    WatermarkingConfig,
)

import rest_store.generation.generate as entry
from rest_store.bench.baselines import tree_of
from rest_store.generation.rows import Row
from rest_store.generation.sampling import Choice
from tests.shared.tiny import VOCABULARY, Scripted, bushy, futures_of, prompts, right, tiny_model, wrong

WARPERS = {
    "temperature": ({"temperature": 1.6, "top_k": 0}, [TemperatureLogitsWarper(1.6)]),
    "top_k": ({"top_k": 7, "temperature": 1.3}, [TemperatureLogitsWarper(1.3), TopKLogitsWarper(7)]),
    "top_p": ({"top_p": 0.8, "top_k": 0}, [TopPLogitsWarper(0.8)]),
}


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize(
    "options", [{}, *(options for options, _ in WARPERS.values()), {"min_p": 0.05}, {"repetition_penalty": 1.5}]
)
def test_the_same_seed_gives_the_same_tokens(options: dict[str, Any], rows: int) -> None:
    model = tiny_model("llama")
    inputs = prompts(rows)
    seen = set()
    for seed in range(2):
        fixed = {**options, "max_new_tokens": 25, "do_sample": True}
        torch.manual_seed(seed)
        plain = model.generate(**inputs, **fixed)
        after = torch.rand(1)
        futures = futures_of(inputs, plain)
        seen.add(tuple(plain.flatten().tolist()))
        for script in (right, wrong, bushy):
            torch.manual_seed(seed)
            output = model.generate(
                **inputs,
                **fixed,
                custom_generate=entry.generate,
                drafter=lambda prompt, futures=futures, script=script: Scripted(prompt, futures, script),
                adaptive=False,
                return_dict_in_generate=True,
            )
            assert torch.equal(output.sequences, plain)
            assert torch.equal(torch.rand(1), after), "as many draws as plain decoding"
            assert (output.statistics.drafts.accepted > 0) == (script is not wrong)
    assert len(seen) == 2


def test_rows_that_end_early_draw_on_as_they_do_in_plain_decoding() -> None:
    model = tiny_model("llama")
    inputs = prompts(4)
    ends = list(range(40, 55))
    for seed in range(3):
        fixed = {"max_new_tokens": 25, "do_sample": True, "eos_token_id": ends, "temperature": 2.0}
        torch.manual_seed(seed)
        plain = model.generate(**inputs, **fixed)
        after = torch.rand(1)
        futures = futures_of(inputs, plain)
        torch.manual_seed(seed)
        drafted = model.generate(
            **inputs,
            **fixed,
            custom_generate=entry.generate,
            drafter=lambda prompt, futures=futures: Scripted(prompt, futures, bushy),
            adaptive=False,
        )
        assert torch.equal(drafted, plain)
        assert torch.equal(torch.rand(1), after)


@pytest.mark.parametrize("rows", [1, 3])
def test_criteria_without_an_end_token_draw_on_for_rows_that_met_them(rows: int) -> None:
    model = tiny_model("llama")
    inputs = prompts(rows)

    def met(ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return torch.stack([(row[14:] < 30).sum() >= 3 for row in ids])

    for seed in range(3):
        fixed = {"max_new_tokens": 30, "do_sample": True, "stopping_criteria": [met]}
        torch.manual_seed(seed)
        plain = model.generate(**inputs, **fixed)
        after = torch.rand(1)
        assert plain.shape[1] < 44
        futures = futures_of(inputs, plain)
        for script in (right, bushy):
            torch.manual_seed(seed)
            drafted = model.generate(
                **inputs,
                **fixed,
                custom_generate=entry.generate,
                drafter=lambda prompt, futures=futures, script=script: Scripted(prompt, futures, script),
                adaptive=False,
            )
            assert torch.equal(drafted, plain)
            assert torch.equal(torch.rand(1), after)


@pytest.mark.parametrize(
    "options",
    [
        {"encoder_repetition_penalty": 1.7},
        {"encoder_no_repeat_ngram_size": 1},
        {"repetition_penalty": 1.5},
        {"no_repeat_ngram_size": 1},
        {"prefix_allowed_tokens_fn": lambda row, ids: range(3 + 13 * row, 23 + 13 * row)},
        {"min_new_tokens": 6, "eos_token_id": list(range(40, 55))},
        {"bad_words_ids": [[token] for token in range(10, 40)]},
        {"watermarking_config": WatermarkingConfig(bias=3.0)},
        {"watermarking_config": SynthIDTextWatermarkingConfig(keys=[3, 5, 7], ngram_len=3)},
    ],
    ids=lambda options: "+".join(options),
)
def test_several_rows_of_a_prompt_are_judged_as_plain_decoding_judges_them(options: dict[str, Any]) -> None:
    model = tiny_model("llama")
    inputs = prompts(2)
    fixed = {"max_new_tokens": 12, "do_sample": True, "num_return_sequences": 3, **options}
    torch.manual_seed(2)
    plain = model.generate(**inputs, **fixed)
    torch.manual_seed(2)
    without = model.generate(**inputs, **{**fixed, **dict.fromkeys(options)})
    assert not torch.equal(plain, without), "the option has to matter"
    likely = plain[:, 15:18].tolist()
    torch.manual_seed(2)
    output = model.generate(
        **inputs,
        **fixed,
        custom_generate=entry.generate,
        drafter=lambda _: Likely(likely),
        adaptive=False,
        max_nodes=32,
        return_dict_in_generate=True,
    )
    assert torch.equal(output.sequences, plain)
    assert output.statistics.drafts.accepted > 0


class Likely:
    """Drafts a tree of the tokens that the model likes best, the same whatever was drawn."""

    def __init__(self, paths: Sequence[Sequence[int]]) -> None:
        self.tree = tree_of(paths)

    def draft(self, *, max_nodes: int, costs: Any) -> Any:
        return self.tree

    def accept(self, tokens: Any, top_k: Any = None) -> None:
        pass

    def close(self) -> None:
        pass


def test_scores_are_on_the_device_of_the_text() -> None:
    """With a prompt on the CPU and a model elsewhere, `generate` judges and draws on the CPU."""

    class Elsewhere:
        """Logits that say where they were asked for."""

        def __init__(self, logits: torch.Tensor) -> None:
            self.shape, self.logits = logits.shape, logits
            self.asked: list[torch.device] = []

        def to(self, *, copy: bool, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
            self.asked.append(device)
            return self.logits.to(copy=copy, dtype=dtype)

    ids, logits = torch.tensor([[3]]), Elsewhere(torch.zeros(1, VOCABULARY))
    choice = Choice(LogitsProcessorList(), sample=False, rows=1, device=ids.device)
    assert choice.scores(0, ids, logits).shape == (1, VOCABULARY)  # type: ignore[arg-type]
    row = Row(ids[0], 1)
    row.keep(logits, None, logits=True, scores=True)  # type: ignore[arg-type]
    assert logits.asked == [ids.device] * 2


def surprise(observed: Counter[Any], expected: dict[Any, float], draws: int) -> float:
    """Pearson's statistic as a standard normal deviate (Wilson and Hilferty); rare outcomes are taken together."""
    common = {outcome: share * draws for outcome, share in expected.items() if share * draws >= 5}
    rare = draws - sum(common.values())
    statistic = sum((observed[outcome] - number) ** 2 / number for outcome, number in common.items())
    others = draws - sum(observed[outcome] for outcome in common)
    if rare >= 5:
        statistic += (others - rare) ** 2 / rare
    freedom = len(common) - (rare < 5)
    return ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))


@pytest.mark.parametrize("name", WARPERS)
def test_the_distribution_is_the_models(name: str) -> None:
    """Many continuations of two tokens and one more, the second and third among accepted and rejected drafts.

    REST_STORE_DRAWS=20000 draws as many; the default is for every day.
    """
    options, warpers = WARPERS[name]
    model = tiny_model("llama")
    prompt = prompts(1)["input_ids"]

    def chances(contexts: torch.Tensor, chain: Any) -> np.ndarray[Any, Any]:
        with torch.no_grad():
            scores = model(contexts).logits[:, -1]
        scores = LogitsProcessorList(chain)(contexts, scores)
        found: np.ndarray[Any, Any] = scores.softmax(-1).double().numpy()
        return found

    def joint(chain: Any) -> dict[tuple[int, int], float]:
        first = chances(prompt, chain)[0]
        every = torch.cat([prompt.expand(VOCABULARY, -1), torch.arange(VOCABULARY)[:, None]], dim=1)
        second = chances(every, chain)
        return {(a, b): first[a] * second[a, b] for a in range(VOCABULARY) for b in range(VOCABULARY)}

    expected = joint(warpers)
    likely = [token for token, _ in Counter({b: expected[a, b] for a, b in expected}).most_common(6)]
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
            drafter=lambda _: Likely(paths),
            max_nodes=32,
            adaptive=False,
            return_dict_in_generate=True,
        )
        observed.update((int(a), int(b)) for a, b in output.sequences[:, -3:-1])
        accepted += output.statistics.drafts.accepted
    draws = rows * runs
    assert 0.05 * draws < accepted < 1.9 * draws, "drafts are accepted at times and rejected at times"
    assert surprise(observed, expected, draws) < 3.7
    other = joint([TemperatureLogitsWarper(0.6), *warpers])
    assert surprise(observed, other, draws) > 10, "the test tells temperatures apart"
